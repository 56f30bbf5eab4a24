"""A node lists the channels that it publishes, receives and hears of, with their traffic."""

import asyncio

import pytest

from meshbus import Node
from meshbus.engine.base.tally import MAX_TALLIED, Tally
from meshbus.node.channels.channelinfo import ChannelInfo, channels_known
from meshbus.testing.rig import rig
from tests.patience import PATIENCE_S

PSK = "5a" * 32


def of(node: Node, channel: str) -> ChannelInfo | None:
    return next((info for info in node.channels() if info.channel == channel), None)


async def test_both_ends_count_the_events_of_a_channel() -> None:
    async with Node.open(psk=PSK, ephemeral=True) as hub, Node.open(psk=PSK, ephemeral=True) as leaf:
        publisher = hub.publisher("sensors/lidar")
        await leaf.connect(hub.address, public_key=hub.public_key)
        async with leaf.subscribe("sensors/lidar") as subscription, asyncio.timeout(PATIENCE_S):
            await publisher.publish(b"12345")
            await publisher.publish_batch([b"1", b"2"])
            events = aiter(subscription)
            for _ in range(3):
                await anext(events)
            while not (heard := of(leaf, "sensors/lidar")) or not heard.publishers:  # noqa: ASYNC110 - announced
                await asyncio.sleep(0.01)
            sent = of(hub, "sensors/lidar")
    assert sent == ChannelInfo(
        channel="sensors/lidar",
        published=True,
        subscribers=1,
        subscribed=False,
        publishers=(),
        published_events=3,
        published_bytes=7,
        received_events=0,
        received_bytes=0,
    )
    assert (heard.subscribed, heard.published, heard.publishers) == (True, False, (hub.node_id,))
    assert (heard.received_events, heard.received_bytes, heard.published_events) == (3, 7, 0)


async def test_a_subscription_to_a_prefix_is_no_channel_and_an_inbox_is_none() -> None:
    async with (
        Node.open(psk=PSK, ephemeral=True) as node,
        node.subscribe("sensors/"),
        node.subscribe("alarms"),
        node.inbox(),
    ):
        node.publisher("sensors/a")
        found = [(info.channel, info.subscribed) for info in node.channels()]
        assert found == [("alarms", True), ("sensors/a", True)]


@pytest.mark.parametrize("full", [False, True])
def test_what_is_not_counted_by_itself_is_unknown_and_not_zero(full: bool) -> None:
    received = Tally()
    for number in range(MAX_TALLIED + full):
        received.add(f"c/{number}", 1, 1)
    (info,) = (info for info in channels_known(rig(), 0.0, ["late"], received) if info.channel == "late")
    assert info.received_events == (None if full else 0)
