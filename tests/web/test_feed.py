"""The feed: one look for all who watch, only the newest document, and no work without watchers."""

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest

from meshbus.web import feed as module
from meshbus.web.document import Document
from meshbus.web.feed import MAX_WATCHERS, Feed, pause_after
from tests.patience import PATIENCE_S
from tests.web.test_rates import document, flow

LOGGER = logging.getLogger("meshbus.web")


class Node:
    """Counts how often somebody looks; each look sees one event more and a second later."""

    def __init__(self) -> None:
        self.looks = 0

    async def look(self) -> Document:
        self.looks += 1
        return document(float(self.looks), sent=flow(self.looks))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    return Node()


@pytest.fixture
async def feed(node: Node) -> AsyncIterator[Feed]:
    made = Feed(node.look, LOGGER)
    yield made
    await made.close()


async def next_of(watch: module.Watch) -> Document:
    async with asyncio.timeout(PATIENCE_S):
        return msgspec.json.decode(await anext(watch), type=Document)


async def test_documents_come_one_after_the_other_with_rates(feed: Feed) -> None:
    watch = feed.watch()
    assert watch is not None
    first, second = await next_of(watch), await next_of(watch)
    assert first.sent.events_per_s is None
    assert second.uptime_s > first.uptime_s
    assert second.sent.events_per_s == 1.0
    await watch.aclose()


async def test_a_slow_watcher_gets_the_newest_and_nothing_is_kept_for_it(feed: Feed, node: Node) -> None:
    quick, slow = feed.watch(), feed.watch()
    assert quick is not None
    assert slow is not None
    seen = [(await next_of(quick)).uptime_s for _ in range(10)]
    assert (await next_of(slow)).uptime_s >= seen[-1]
    for watch in (quick, slow):
        await watch.aclose()


async def test_nobody_watching_means_no_work_and_no_old_document(feed: Feed, node: Node) -> None:
    watch = feed.watch()
    assert watch is not None
    await next_of(watch)
    await watch.aclose()
    await watch.aclose()
    looks = node.looks
    await asyncio.sleep(0.05)
    assert node.looks <= looks + 1  # one may have been under way
    again = feed.watch()
    assert again is not None
    first = await next_of(again)
    assert first.uptime_s > looks
    assert first.sent.events_per_s is None
    await again.aclose()


async def test_watchers_are_bounded_and_a_place_is_free_again(feed: Feed) -> None:
    watches = [feed.watch() for _ in range(MAX_WATCHERS)]
    assert None not in watches
    assert feed.watch() is None
    assert watches[0] is not None
    await watches[0].aclose()
    last = feed.watch()
    assert last is not None
    assert (await next_of(last)).at_ms == 0


async def test_closing_ends_the_iterations(feed: Feed) -> None:
    watch = feed.watch()
    assert watch is not None
    await next_of(watch)

    async def rest() -> int:
        return len([one async for one in watch])

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rest())
        await asyncio.sleep(0)
        await feed.close()
    assert waiting.done()
    late = feed.watch()
    assert late is not None
    assert [one async for one in late] == []


async def test_a_look_that_fails_lets_the_watchers_go_and_begins_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async def look() -> Document:
        if not node.looks:
            node.looks += 1
            raise AssertionError("planted")
        return await node.look()

    feed = Feed(look, LOGGER)
    watch = feed.watch()
    assert watch is not None
    async with asyncio.timeout(PATIENCE_S):
        assert [one async for one in watch] == []
    assert "the feed of the live page failed unexpectedly" in caplog.text
    await watch.aclose()
    again = feed.watch()
    assert again is not None
    assert (await next_of(again)).sent.events == 2
    await feed.close()


def test_a_large_mesh_is_looked_at_less_often() -> None:
    assert [pause_after(took_s) for took_s in (0.001, 0.1, 60.0)] == [1.0, 2.0, 10.0]
