"""Every reason an Ack can carry, provoked at a real node and by one at ours; policy §4.4 has the order of the tests.

`unauthorized` comes up in test_channels.py too, with everything that leads to it.
"""

import asyncio

import pytest

from meshbus.errors import ChannelError, ChannelFault, PeerError, Timeout
from meshbus.testing.realpeer import RealPeerError
from tests.interop.lab import Lab, channel, registry

FAILURES = 16
"""Refusals that a peer gets with their own reason before it is throttled."""
CHANNELS = 1024


async def test_it_refuses_unknown_channels_and_what_we_may_not_have(lab: Lab) -> None:
    peer, node = await lab.pair({"channels": [{"name": "theirs/token", "require_token": True}]})
    with pytest.raises(ChannelError, match="unknown_channel") as unknown:
        await node.subscribe_channel(peer.node_id, "theirs/nothing")
    assert (unknown.value.fault, unknown.value.channel) == (ChannelFault.REJECTED, "theirs/nothing")
    with pytest.raises(ChannelError, match="unauthorized"):
        async with node.subscribe("theirs/token"):
            pass
    await node.unsubscribe_channel(peer.node_id, "theirs/nothing")  # always granted


async def test_we_refuse_unknown_channels_and_what_it_may_not_have(lab: Lab) -> None:
    peer, node = await lab.pair()
    node.set_channel_configs(registry(channel("ours/token", require_token=True)))
    with pytest.raises(RealPeerError, match="unknown channel") as unknown:
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/nothing")
    assert unknown.value.kind == "ChannelError"
    with pytest.raises(RealPeerError, match="unauthorized") as denied:
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/token")
    assert denied.value.kind == "ChannelAuthError"
    await asyncio.to_thread(peer.unsubscribe_channel, node.node_id, "ours/nothing")
    assert node.counters["refuse"] == {"unknown_channel": 1, "unpinned": 1}


async def test_its_seventeenth_refusal_is_for_asking_too_often(lab: Lab) -> None:
    peer, node = await lab.pair({"channels": [{"name": "theirs/open"}]})
    for _ in range(FAILURES):
        with pytest.raises(ChannelError, match="unknown_channel"):
            await node.subscribe_channel(peer.node_id, "theirs/nothing")
    for name in ("theirs/nothing", "theirs/open"):
        with pytest.raises(ChannelError, match="rate_limited"):
            await node.subscribe_channel(peer.node_id, name)


async def test_our_seventeenth_refusal_is_for_asking_too_often(lab: Lab) -> None:
    """The throttle ends after 30 s, which the tests of the engine show on a clock of their own."""
    peer, node = await lab.pair()
    node.set_channel_configs(registry(channel("ours/open")))
    for _ in range(FAILURES):
        with pytest.raises(RealPeerError, match="unknown channel"):
            await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/nothing")
    for name in ("ours/nothing", "ours/open"):
        with pytest.raises(RealPeerError, match="rate limited"):
            await asyncio.to_thread(peer.subscribe_channel, node.node_id, name)
    assert node.counters["refuse"] == {"unknown_channel": FAILURES, "throttled": 2}


async def test_a_success_forgives_the_refusals_before_it_on_both_sides(lab: Lab) -> None:
    peer, node = await lab.pair({"channels": [{"name": "theirs/open"}]})
    node.set_channel_configs(registry(channel("ours/open")))
    for _ in range(2):
        for _ in range(FAILURES - 1):
            with pytest.raises(ChannelError, match="unknown_channel"):
                await node.subscribe_channel(peer.node_id, "theirs/nothing")
            with pytest.raises(RealPeerError, match="unknown channel"):
                await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/nothing")
        await node.subscribe_channel(peer.node_id, "theirs/open")
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/open")


async def test_it_grants_1024_channels_and_no_more(lab: Lab) -> None:
    peer, node = await lab.pair({"permissive_channels": True})
    for first in range(0, CHANNELS, 64):  # a request is sent once, and all at once would not fit its socket
        await asyncio.gather(*(node.subscribe_channel(peer.node_id, f"theirs/{n}") for n in range(first, first + 64)))
    with pytest.raises(ChannelError, match="too_many_channels"):
        await node.subscribe_channel(peer.node_id, "theirs/one-more")
    await node.subscribe_channel(peer.node_id, "theirs/0")  # one that it has already
    await node.unsubscribe_channel(peer.node_id, "theirs/0")
    await node.subscribe_channel(peer.node_id, "theirs/one-more")


async def test_we_grant_1024_channels_and_no_more(lab: Lab) -> None:
    peer, node = await lab.pair()

    def subscribe_all() -> None:
        for number in range(CHANNELS):
            peer.subscribe_channel(node.node_id, f"ours/{number}")

    await asyncio.to_thread(subscribe_all)
    assert len(node.roster.channels_of(peer.node_id)) == CHANNELS
    with pytest.raises(RealPeerError, match="too many channels"):
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/one-more")
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/0")
    await asyncio.to_thread(peer.unsubscribe_channel, node.node_id, "ours/0")
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/one-more")
    assert node.counters["refuse"] == {"too_many_channels": 1}


async def test_without_an_answer_our_subscribe_ends_in_time(lab: Lab) -> None:
    peer, node = await lab.pair({"permissive_channels": True}, {"membership_ack_timeout_s": 0.3})
    [tap] = lab.taps
    tap.cut()
    with pytest.raises(Timeout):
        await node.subscribe_channel(peer.node_id, "theirs/any")
    assert node.counters["timeout"] == {"membership_ack": 1}
    tap.mend()
    await node.subscribe_channel(peer.node_id, "theirs/any")


async def test_a_node_that_was_never_met_cannot_be_asked(lab: Lab) -> None:
    node = await lab.node()
    with pytest.raises(PeerError, match="connect to it first"):
        await node.subscribe_channel(12345, "theirs/any")
