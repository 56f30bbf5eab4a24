"""Server-sent events to one browser: one message after the other, and an end for one that does not read."""

import asyncio
import logging
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

from meshbus.web import feed as feed_module
from meshbus.web.connection import ABORT
from meshbus.web.eventstream import EventStream
from meshbus.web.feed import Feed, Watch
from tests.patience import PATIENCE_S
from tests.web.test_feed import Node


class Browser:
    """The server's side of one request."""

    def __init__(self, reads: int) -> None:
        """Take so many messages of the server, and no more."""
        self.got: list[MutableMapping[str, Any]] = []
        self.full = asyncio.Event()
        self.aborted = False
        self._reads = reads
        self._gone = asyncio.Event()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.got.append(message)
        if len(self.got) >= self._reads:
            self.full.set()
            await asyncio.Event().wait()

    async def receive(self) -> MutableMapping[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._gone.set()

    def abort(self) -> None:
        self.aborted = True
        self.leave()


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watch]:
    monkeypatch.setattr(feed_module, "PAUSE_S", 0.001)
    feed = Feed(Node().look, logging.getLogger("meshbus.web"))
    made = feed.watch()
    assert made is not None
    yield made
    await feed.close()


async def run(stream: EventStream, browser: Browser) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await stream({"type": "http", ABORT: browser.abort}, browser.receive, browser.send)


async def test_messages_are_lines_of_data_until_the_browser_leaves(watch: Watch) -> None:
    browser = Browser(reads=5)
    stream = EventStream(watch, {"x-test": "1"})
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run(stream, browser))
        await browser.full.wait()
        browser.leave()
        await running
    start, retry, *events = browser.got
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    assert headers[b"x-test"] == b"1"
    assert b"content-length" not in headers
    assert retry["body"].startswith(b"retry: ")
    assert all(event["body"].startswith(b"data: {") and event["body"].endswith(b"}\n\n") for event in events)
    assert not browser.aborted
    with pytest.raises(StopAsyncIteration):  # the place is free for another browser
        await anext(watch)


async def test_a_browser_that_does_not_read_is_disconnected(watch: Watch) -> None:
    browser = Browser(reads=4)
    await run(EventStream(watch, {}, slow_s=0.02), browser)
    assert browser.aborted


async def test_a_browser_that_never_reads_is_disconnected(watch: Watch) -> None:
    browser = Browser(reads=1)
    await run(EventStream(watch, {}, slow_s=0.02), browser)
    assert browser.aborted
