"""The input logs of a daemon: reads each from where the daemon is, and keeps a few events ready for its next turn.

    the log of this node           pages, as other nodes would get them (node/logs/logs.py)
    the log of another node,       a subscription that begins in the log (node/channels/historyreader.py); it begins again, after a
    or of a replicated channel     pause, when it fails

Events are numbered by their log, so that nothing is missed or read twice, however often a reading begins again. Events that
are no longer in the log are left out, which the runner sees by the numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from meshbus.compute.daemon import DaemonEvent
from meshbus.errors import LogError, LogFault, MeshError
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.logs.logs import Logs
from meshbus.wire.messages.checkpoint import InputPosition

READY_EVENTS = 16_384
"""Events that are kept ready. Our choice: more than a turn takes; what follows waits in its log."""
PAGE_BYTES = 1 << 20
"""Bytes of a page of this node's own log."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
"""The pause before a reading begins again; it doubles. Our choice: a publisher that was restarted is back soon."""
POLL_S = 0.05
"""How often this node's own log is looked at if nothing wakes the reader: events may be released after their append."""

_logger = logging.getLogger("meshbus.node")

Subscribe = Callable[[str, int | None, int], Subscription]
"""Returns a subscription to a channel, of a publisher or of a replicated channel, from a sequence on."""


class InputReader:
    """Reads one input log of one daemon."""

    def __init__(
        self, position: InputPosition, logs: Logs | None, subscribe: Subscribe, wake: Callable[[], None]
    ) -> None:
        """Begin to read: with `logs` a log of this node, otherwise another's; `wake` is called when something is new."""
        self.position = position
        self.problem: str | None = None
        """Why nothing comes, while that is so."""
        self._next = position.next_seq
        """The sequence that is read next."""
        self._ready: deque[tuple[int, list[bytes]]] = deque()
        self._count = 0
        self._subscribe = subscribe
        self._wake = wake
        self._room = asyncio.Event()
        self._tasks = TaskOwner("an input of a daemon", _logger)
        self._tasks.start(self._read_other() if logs is None else self._read_own(logs))

    async def close(self) -> None:
        """Stop reading."""
        await self._tasks.close()

    def ready(self) -> list[tuple[int, list[bytes]]]:
        """Return what can be processed: runs of payloads, each with the sequence of its first."""
        return list(self._ready)

    def taken(self, next_seq: int) -> None:
        """Remove what was processed: everything before a sequence."""
        while self._ready and self._ready[0][0] < next_seq:
            first, payloads = self._ready.popleft()
            done = min(next_seq - first, len(payloads))
            self._count -= done
            if done < len(payloads):
                self._ready.appendleft((first + done, payloads[done:]))
        if self._count < READY_EVENTS:
            self._room.set()

    def _add(self, first: int, payloads: list[bytes]) -> None:
        if not payloads:
            return
        # A reading that began again may bring the last events twice; the daemon ignores those that it has processed.
        self._ready.append((first, payloads))
        self._count += len(payloads)
        self._next = first + len(payloads)
        self.problem = None
        self._wake()

    async def _full(self) -> None:
        """Wait while enough is ready."""
        while self._count >= READY_EVENTS:
            self._room.clear()
            await self._room.wait()

    # ── this node's own log ─────────────────────────────────────────────────────────────────

    async def _read_own(self, logs: Logs) -> None:
        grown = asyncio.Event()
        loop = asyncio.get_running_loop()
        channel = self.position.channel
        log = None
        pause_s = FIRST_PAUSE_S
        unlisten: Callable[[], None] = lambda: None  # noqa: E731

        def wake() -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(grown.set)

        try:
            while True:
                await self._full()
                grown.clear()
                try:
                    if log is None:
                        log = await asyncio.to_thread(logs.of_published, channel, create=False)
                        unlisten = unlisten if log is None else log.file.listen(wake)
                    page = await asyncio.to_thread(logs.page, channel, self._next, PAGE_BYTES)
                except LogError as error:
                    self._fail(str(error))
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LAST_PAUSE_S)
                    continue
                pause_s = FIRST_PAUSE_S
                if page is None or not len(page):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S):
                            await grown.wait()
                    continue
                raw, edges = page.data.tobytes(), page.offsets.tolist()
                self._add(page.first_seq, [raw[a:b] for a, b in pairwise(edges)])
        finally:
            unlisten()

    # ── the log of another node ─────────────────────────────────────────────────────────────

    async def _read_other(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            before = self._next
            try:
                await self._follow()
                problem = "the subscription was closed"
            except LogError as error:
                problem = str(error)
                if error.fault is LogFault.RANGE_GONE and error.first_available is not None:
                    self._next = error.first_available
                    continue
            except (MeshError, TimeoutError) as error:
                problem = str(error)
            self._fail(problem)
            pause_s = FIRST_PAUSE_S if self._next > before else min(2 * pause_s, LAST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _follow(self) -> None:
        publisher = self.position.publisher or None
        async with self._subscribe(str(self.position.channel), publisher, self._next) as subscription:
            self.problem = None
            self._wake()
            while (batch := await subscription.next_batch()) is not None:
                if batch.pub_seq is not None:
                    self._add(batch.pub_seq, batch.payloads())
                await self._full()

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self._wake()


def events_of(origin: int, runs: list[tuple[int, list[bytes]]]) -> list[DaemonEvent]:
    """Return runs of payloads as the events of a log."""
    return [DaemonEvent(origin, first + place, payload) for first, run in runs for place, payload in enumerate(run)]
