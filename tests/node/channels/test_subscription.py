"""Subscriptions: bounded queues, and each policy for a full one."""

import asyncio
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from meshbus.engine.base.batch import EventBatch
from meshbus.errors import ChannelError, ChannelFault, SlowConsumer
from meshbus.node.channels.subscription import Subscription, SubscriptionRefusal, WhenFull
from meshbus.wire.messages.reliable import FIRST_SEQUENCE
from tests.engine.base.test_batch import batch_of


class Desk:
    """A subscription with everything it calls."""

    def __init__(self, when_full: WhenFull = WhenFull.BLOCK, **bounds: Any) -> None:
        self.calls: list[Any] = []
        self.notices: list[SlowConsumer] = []
        self.subscription = Subscription(
            "sensors/lidar",
            start=self._note("start"),
            stop=self._note("stop"),
            hold=lambda _, batch: self.calls.append(None if batch is None else (batch.publisher, batch.stream_id)),
            notice=self.notices.append,
            when_full=when_full,
            **bounds,
        )

    def _note(self, what: str) -> Any:
        async def call(_: Subscription) -> None:
            self.calls.append(what)

        return call


def events(*payloads: bytes) -> EventBatch:
    return batch_of([list(payloads)])


async def test_the_life_of_a_subscription() -> None:
    desk = Desk()
    async with desk.subscription as subscription:
        subscription.feed(events(b"a", b"b"))
        subscription.feed(events(b"c"))
        got = []
        async for event in subscription:
            got.append(event.payload)
            if len(got) == 3:
                break
    assert got == [b"a", b"b", b"c"]
    await desk.subscription.close()
    assert desk.calls == ["start", "stop"]
    desk.subscription.feed(events(b"late"))
    assert await desk.subscription.next_batch() is None


async def test_waiting_reader_is_woken_by_events_and_by_the_end() -> None:
    desk = Desk()
    reader = asyncio.ensure_future(desk.subscription.next_batch())
    await asyncio.sleep(0)
    desk.subscription.feed(events(b"a"))
    batch = await reader
    assert batch is not None
    assert batch.payloads() == [b"a"]
    reader = asyncio.ensure_future(desk.subscription.next_batch())
    await asyncio.sleep(0)
    await desk.subscription.close()
    assert await reader is None


async def test_block_holds_the_credit_until_there_is_room() -> None:
    desk = Desk(WhenFull.BLOCK, max_events=2)
    desk.subscription.feed(events(b"1", b"2"))
    desk.subscription.feed(events(b"3"))  # was on the way already: kept
    held = events(b"3")
    assert desk.calls == [(held.publisher, held.stream_id)]
    assert len(desk.notices) == 1
    await desk.subscription.next_batch()
    assert desk.calls[1:] == [None]
    assert desk.subscription.stats.dropped == 0
    assert desk.subscription.stats.pending == 1


async def test_a_blocking_inbox_is_bounded_against_senders_that_ignore_credit() -> None:
    desk = Desk(WhenFull.BLOCK, max_events=2, max_overrun_bytes=3)
    desk.subscription.feed(events(b"1", b"2"))
    for payload in (b"34", b"5", b"6", b"7"):
        desk.subscription.feed(events(payload))
    stats = desk.subscription.stats
    assert (stats.pending, stats.dropped) == (4, 2)
    for _ in range(3):
        await desk.subscription.next_batch()
    desk.subscription.feed(events(b"8"))
    assert desk.subscription.stats.pending == 1


async def test_drop_oldest_keeps_the_newest() -> None:
    desk = Desk(WhenFull.DROP_OLDEST, max_events=3)
    for fed in (events(b"1", b"2"), events(b"3"), events(b"4", b"5")):
        desk.subscription.feed(fed)
    stats = desk.subscription.stats
    assert (stats.received, stats.dropped, stats.pending) == (5, 2, 3)
    desk.subscription.feed(events(*(bytes([n]) for n in range(9))))
    batch = await desk.subscription.next_batch()
    assert batch is not None
    assert batch.payloads() == [bytes([6]), bytes([7]), bytes([8])]
    assert len(desk.notices) == 1  # one episode, one notice


async def test_drop_newest_keeps_the_oldest() -> None:
    desk = Desk(WhenFull.DROP_NEWEST, max_bytes=4)
    desk.subscription.feed(events(b"abc"))
    desk.subscription.feed(events(b"de"))
    batch = await desk.subscription.next_batch()
    assert batch is not None
    assert batch.payloads() == [b"abc"]
    assert desk.subscription.stats.dropped == 1
    desk.subscription.feed(events(b"de"))
    assert desk.subscription.stats.pending_bytes == 2


async def test_fail_ends_with_the_reason() -> None:
    desk = Desk(WhenFull.FAIL, max_events=1)
    desk.subscription.feed(events(b"1"))
    desk.subscription.feed(events(b"2"))
    assert await desk.subscription.next_batch() is not None
    with pytest.raises(SlowConsumer, match="fell behind"):
        await desk.subscription.next_batch()


@pytest.mark.parametrize("policy", [WhenFull.DROP_OLDEST, WhenFull.DROP_NEWEST, WhenFull.FAIL])
async def test_memory_is_bounded_for_any_input(policy: WhenFull) -> None:
    desk = Desk(policy, max_events=50, max_bytes=1000)
    for size in (1, 30, 300, 3000, 7):
        for _ in range(50):
            desk.subscription.feed(events(*[bytes(size)] * 5))
            stats = desk.subscription.stats
            assert stats.pending <= 50
            assert stats.pending_bytes <= 1000 or (stats.pending, stats.pending_bytes) == (1, size)
            assert stats.received == stats.dropped + stats.pending or policy is WhenFull.FAIL


@pytest.mark.parametrize("policy", WhenFull)
async def test_an_empty_queue_takes_an_event_of_any_size(policy: WhenFull) -> None:
    desk = Desk(policy, max_events=50, max_bytes=1000)
    for _ in range(2):
        desk.subscription.feed(events(bytes(9000)))
        batch = await desk.subscription.next_batch()
        assert batch is not None
        assert batch.payloads() == [bytes(9000)]
    assert desk.subscription.stats.dropped == 0


async def test_an_error_is_raised_after_the_queued_events() -> None:
    desk = Desk()
    desk.subscription.feed(events(b"a"))
    desk.subscription.fail(ChannelError(ChannelFault.REJECTED, "sensors/lidar", "no more"))
    batch = await desk.subscription.next_batch()
    assert batch is not None
    assert batch.payloads() == [b"a"]
    with pytest.raises(ChannelError, match="no more"):
        await desk.subscription.next_batch()


async def test_events_that_expired_from_a_log_are_counted() -> None:
    desk = Desk()
    desk.subscription.miss(40)
    desk.subscription.miss(2)
    assert desk.subscription.stats.missed == 42


async def test_lost_packets_are_counted_where_they_can_be_lost() -> None:
    desk, reliable = Desk(), np.array([FIRST_SEQUENCE + 7], np.uint64)
    counted = []
    for fed in (
        replace(events(b"1"), packet_seqs=reliable),  # nothing is lost on such a stream, so nothing is measured
        events(b"2"),
        replace(events(b"3"), lost=4),
        replace(events(b"late"), lost=-1),
    ):
        counted.append(desk.subscription.stats.lost)
        desk.subscription.feed(fed)
    assert [*counted, desk.subscription.stats.lost] == [None, None, 0, 4, 3]


async def test_accepting_and_refusing_publishers_are_listed() -> None:
    subscription = Desk().subscription

    def told() -> tuple[list[int], list[SubscriptionRefusal]]:
        return list(subscription.publishers), list(subscription.refused)

    subscription.accept(1)
    subscription.refuse(2, "sensors/lidar", "unauthorized")
    assert told() == ([1], [SubscriptionRefusal(2, "sensors/lidar", "unauthorized")])
    subscription.refuse(1, "sensors/lidar", "timeout")
    subscription.accept(2)
    assert told() == ([2], [SubscriptionRefusal(1, "sensors/lidar", "timeout")])
    raw = SubscriptionRefusal(2, "sensors/lidar/raw", "unauthorized")
    subscription.refuse(raw.node_id, raw.channel, raw.reason)
    subscription.forget(1)
    assert told() == ([2], [raw]), "it sends the others under the prefix"
    subscription.allow(2, "sensors/lidar/raw")
    assert told() == ([2], [])
    subscription.forget(2)
    assert told() == ([], [])


async def test_a_publisher_that_has_another_id_is_listed_by_it() -> None:
    subscription = Desk().subscription
    subscription.accept(7)
    subscription.refuse(8, "a", "unauthorized")
    subscription.rename(7, 17)
    subscription.rename(8, 18)
    subscription.rename(9, 19)
    assert subscription.publishers == (17,)
    assert [(one.node_id, one.channel) for one in subscription.refused] == [(18, "a")]
