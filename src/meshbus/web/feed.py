"""The feed of the live page: looks at the node while somebody watches, and has only the newest document.

All watchers get the same bytes, so that many cost a node little more than one. A watcher that is slower than the documents
come misses some of them; none is kept for it. Nobody watching means no work. Looking takes at most a twentieth of the node's
time: the larger the mesh, the longer the pause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Self

from meshbus.node.driving.tasks import TaskOwner
from meshbus.policy.bound import Bound, By
from meshbus.web.document import Document, encode
from meshbus.web.rates import with_rates
from meshbus.web.snapshot import MAX_BYTES

MAX_WATCHERS = 16
"""Pages that are open at a time. Our choice: a quarter of all connections, so that metrics and health stay in reach."""
PAUSE_S = 1.0
"""The shortest pause between two documents."""
LONGEST_PAUSE_S = 10.0
SHARE = 20
"""A pause is at least this many times as long as the look before it."""

BOUNDS = (
    Bound(
        name="web_watchers",
        what="live pages that are open",
        by=By.OUTSIDER,
        per_node=MAX_WATCHERS,
        per={"page, in bytes of the one document that waits for it": MAX_BYTES},
        full="the new one is answered with status 503; a page that does not read is disconnected",
        counter="status 503",
    ),
)

Look = Callable[[], Awaitable[Document]]
"""Returns the state of the node now."""


class Feed:
    """Documents of one node for those who watch it."""

    def __init__(self, look: Look, logger: logging.Logger) -> None:
        self._look = look
        # If looking fails, those who watch are let go; they come back, and it begins again.
        self._tasks = TaskOwner("the feed of the live page", logger, on_failure=self._wake)
        self._watchers = 0
        self._running: asyncio.Task[None] | None = None
        self._newest: Document | None = None
        self._encoded = b""
        self._number = 0
        self._changed = asyncio.Event()
        self._closed = False

    def watch(self) -> Watch | None:
        """Return what iterates over the documents from now on, until it is closed; None if too many watch."""
        if self._watchers >= MAX_WATCHERS:
            return None
        self._watchers += 1
        if self._running is None and not self._closed:
            self._running = self._tasks.start(self._run())
        return Watch(self)

    def leave(self) -> None:
        """Stop looking at the node if this was the last one who watched."""
        self._watchers -= 1
        if self._watchers or self._running is None:
            return
        self._running.cancel()
        # A rate over the time in which nobody watched would mislead.
        self._running, self._newest, self._encoded = None, None, b""

    async def newer_than(self, number: int) -> tuple[int, bytes] | None:
        """Wait for a document with a higher number, and return both; None when no more will come."""
        while self._running is not None and not self._running.done():
            if self._encoded and self._number > number:
                return self._number, self._encoded
            await self._changed.wait()
        return None

    async def close(self) -> None:
        """End all iterations; closing twice is fine."""
        self._closed = True
        await self._tasks.close()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()  # for what comes next

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            self._newest = with_rates(self._newest, await self._look())
            self._encoded = encode(self._newest)
            took_s = time.monotonic() - began
            self._number += 1
            self._wake()
            await asyncio.sleep(pause_after(took_s))


def pause_after(took_s: float) -> float:
    """Return how long to wait after a look that took so long, in seconds."""
    return min(max(PAUSE_S, SHARE * took_s), LONGEST_PAUSE_S)


class Watch:
    """One who watches: iterates over the documents of a feed, from the newest on."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Feed | None = feed
        self._seen = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        found = None if self._feed is None else await self._feed.newer_than(self._seen)
        if found is None:
            raise StopAsyncIteration
        self._seen, document = found
        return document

    async def aclose(self) -> None:
        """Watch no longer; closing twice is fine."""
        if self._feed is not None:
            self._feed.leave()
            self._feed = None
