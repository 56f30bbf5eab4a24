"""Byte credit: 64 KiB a stream, given back by the receiver. Who does not read makes the sender wait, and loses nothing.

An event of 1000 bytes costs 1088: its frame, header and tag included. So 60 of them fit a window.
"""

import asyncio

import pytest

from meshbus.engine.channels.publish import OnFailure, PublishReport
from meshbus.errors import PartialDelivery
from tests.interop.lab import Lab, eventually, eventually_there, take

FIT = 60
SIZE = 1000


def events(count: int, start: int = 0) -> list[bytes]:
    return [str(number).encode().ljust(SIZE, b".") for number in range(start, start + count)]


async def test_a_frozen_subscriber_uses_up_our_credit_and_gives_it_back(lab: Lab) -> None:
    peer, node = await lab.pair()
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "credit/ours")
    sent = events(FIT + 2)
    publisher = node.publisher("credit/ours", wait_s=0)
    peer.pause()
    for event in sent[:FIT]:
        assert (await publisher.publish(event)).delivered == 1
    with pytest.raises(PartialDelivery, match="credit") as full:
        await publisher.publish(sent[FIT])
    assert isinstance(full.value.report, PublishReport)
    [error] = full.value.report.errors
    assert (error.node_id, error.code) == (peer.node_id, "backpressure")
    collected = await node.publisher("credit/ours", wait_s=0, on_failure=OnFailure.COLLECT).publish(sent[FIT])
    assert (collected.attempted, collected.delivered, len(collected.errors)) == (1, 0, 1)
    assert node.counters["fail"] == {"backpressure": 2}
    waiting = asyncio.ensure_future(node.publisher("credit/ours").publish_batch(sent[FIT:]))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    peer.resume()
    assert (await waiting).delivered == 1
    arrived = await asyncio.to_thread(peer.collect, len(sent))
    assert [event.raw.encode() for event in arrived] == sent


async def test_a_publish_that_waits_too_long_for_a_frozen_subscriber_is_an_error(lab: Lab) -> None:
    peer, node = await lab.pair()
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "credit/ours")
    peer.pause()
    clock = asyncio.get_running_loop()
    began = clock.time()
    with pytest.raises(PartialDelivery, match="credit"):
        await node.publisher("credit/ours", wait_s=0.3).publish_batch(events(2 * FIT))
    assert clock.time() - began >= 0.3
    peer.resume()
    first_part = await asyncio.to_thread(peer.collect, 2 * FIT, 0.5)  # what had credit was already on its way
    assert [event.raw.encode() for event in first_part] == events(2 * FIT)[: len(first_part)]
    assert 0 < len(first_part) < 2 * FIT
    assert (await node.publisher("credit/ours").publish("goes on")).delivered == 1
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == ["goes on"]


async def test_other_channels_continue_while_one_has_no_credit(lab: Lab) -> None:
    """Credit belongs to a stream, and each channel is one."""
    peer, node = await lab.pair()
    for channel in ("credit/full", "credit/other"):
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, channel)
    peer.pause()
    waiting = asyncio.ensure_future(node.publisher("credit/full").publish_batch(events(2 * FIT)))
    await asyncio.sleep(0.05)
    assert (await node.publisher("credit/other", wait_s=0).publish("through")).delivered == 1
    assert not waiting.done()
    peer.resume()
    await waiting
    assert "through" in {event.raw for event in await asyncio.to_thread(peer.collect, 2 * FIT + 1)}


async def test_our_slow_subscription_stalls_the_real_publisher_and_loses_nothing(lab: Lab) -> None:
    peer, node = await lab.pair({"permissive_channels": True})
    async with node.subscribe("credit/theirs", when_full="block", max_events=8) as subscription:

        def publish_until_full() -> int:
            for number, event in enumerate(events(10 * FIT)):
                report = peer.publish("credit/theirs", event, on_failure="collect")
                if report["errors"]:
                    assert report["attempted"] == 1
                    assert "backpressure" in report["errors"][0]["message"].lower()
                    return number
            raise AssertionError("nothing stopped the publisher")

        passed = await asyncio.to_thread(publish_until_full)
        assert FIT <= passed < 2 * FIT
        await eventually(lambda: subscription.stats.pending == passed, "what was on the way")
        again = await asyncio.to_thread(peer.publish, "credit/theirs", events(1)[0], on_failure="collect")
        assert again["delivered"] == 0  # nothing is granted while nobody reads
        arrived = await take(subscription, passed)
        assert arrived == events(passed)
        await eventually_there(
            lambda: peer.publish("credit/theirs", b"goes on", on_failure="collect"),
            gives=lambda report: report["delivered"] == 1,
        )
        publishing = asyncio.wrap_future(peer.begin("publish_all", "credit/theirs", events(3 * FIT)))
        assert await take(subscription, 1 + 3 * FIT) == [b"goes on", *events(3 * FIT)]
        assert await publishing == 3 * FIT
        assert subscription.stats.dropped == 0
    assert node.counters["slow_consumer"]["subscription"] >= 1


async def test_a_stream_of_its_own_gets_its_credit_from_us(lab: Lab) -> None:
    """With a small window every packet needs a grant; they are counted by its own figures."""
    peer, node = await lab.pair()
    async with node.inbox() as inbox:
        await asyncio.to_thread(peer.open_stream, node.node_id, 9, window_bytes=2 * (SIZE + 88))
        await asyncio.to_thread(peer.send_all, node.node_id, 9, events(300))
        assert await take(inbox, 300) == events(300)
    stats = await asyncio.to_thread(peer.stream_stats, node.node_id, 9)
    assert stats is not None
    assert stats["tx_window"] == 2 * (SIZE + 88)
    await eventually_there(
        lambda: peer.stream_stats(node.node_id, 9),
        gives=lambda stats: stats["tx_credit_remaining"] == stats["tx_window"],
    )


async def test_unread_events_are_granted_nevertheless(lab: Lab) -> None:
    """Otherwise a subscription without a reader would stall its publisher for good."""
    peer, node = await lab.pair({"permissive_channels": True})
    await node.subscribe_channel(peer.node_id, "credit/unread")
    assert await asyncio.to_thread(peer.publish_all, "credit/unread", events(3 * FIT)) == 3 * FIT
    await eventually(lambda: node.counters.get("drop", {}).get("nobody_listens") == 3 * FIT, "all of them, unread")
