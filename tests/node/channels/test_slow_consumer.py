"""Each policy for a slow consumer, live, for two seconds; for a minute in tests/soak."""

from __future__ import annotations

import asyncio

import pytest

from meshbus import Backpressure, Node, PartialDelivery, WhenFull
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.channels.subscription import Subscription
from tests.node.channels.slow import assert_memory_stays_bounded
from tests.node.test_node import PSK, until
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("policy", list(WhenFull))
async def test_memory_stays_bounded_when_a_subscriber_stops_reading(policy: WhenFull) -> None:
    await assert_memory_stays_bounded(policy, seconds=2.0)


@pytest.mark.parametrize("reliable", [False, True])
async def test_two_blocking_subscriptions_on_a_channel_stay_bounded_when_only_one_is_read(reliable: bool) -> None:
    window, limit = 64 << 10, 100_000
    async with (
        Node.open(psk=PSK, ephemeral=True, window_bytes=window) as publisher,
        Node.open(psk=PSK, ephemeral=True, window_bytes=window) as subscriber,
    ):
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        async with (
            subscriber.subscribe("sensors/lidar", max_bytes=1000) as read,  # full with every batch
            subscriber.subscribe("sensors/lidar", max_bytes=limit) as unread,
        ):
            reading = asyncio.ensure_future(_drain(read))
            source = publisher.publisher("sensors/lidar", reliable=reliable, wait_s=0.5)
            with pytest.raises(PartialDelivery):  # nobody takes more: the publisher has to wait
                await _publish(source, batches=200)
            assert unread.stats.pending_bytes <= limit + 2 * window
            await _drain(unread, until_empty=True)
            reading.cancel()
            report = await source.publish(b"goes on")
            assert report.delivered == 1


async def _publish(source: ChannelPublisher, batches: int) -> None:
    for _ in range(batches):
        await source.publish_batch([bytes(1000)] * 32)


async def _drain(subscription: Subscription, *, until_empty: bool = False) -> None:
    while not until_empty or subscription.stats.pending:
        await subscription.next_batch()


async def _send(sender: Node, receiver: int, sent: list[bytes], most: int) -> None:
    while len(sent) < most:
        event = b"%08d" % len(sent)
        sender.send(receiver, event)
        sent.append(event)
        if len(sent) % 100 == 0:
            await asyncio.sleep(0)


async def test_a_blocking_inbox_holds_the_sender_back_and_loses_nothing() -> None:
    async with Node.open(psk=PSK, ephemeral=True) as sender, Node.open(psk=PSK, ephemeral=True) as receiver:
        await receiver.connect(sender.address, public_key=sender.public_key)
        await until(lambda: sender.peers)  # from its first packet on
        sent: list[bytes] = []
        async with receiver.inbox(when_full="block", max_events=50) as inbox:
            with pytest.raises(Backpressure):
                await _send(sender, receiver.node_id, sent, most=20_000)
            for _ in range(20):
                await asyncio.sleep(0.01)
            # One window of 64 KiB is on the way at most: about 680 of these packets.
            assert inbox.stats.pending < 50 + 2 * 700
            got: list[bytes] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(got) < len(sent):
                    batch = await inbox.next_batch()
                    assert batch is not None
                    got += batch.payloads()
            assert got == sent
            assert inbox.stats.dropped == 0
        assert "grant_excess" not in sender.counters.get("drop", {})
