"""Silence, seen from both sides: heartbeats stop, the peer fails, comes back, or is removed.

Whoever is silent is cut off by the tap, or frozen: a real node stops with its process, and of ours nothing is heard
while the tap lets nothing out, which is the same to the other side. Timeouts are short here. A real node fails a peer
after three of its own and ours after one, so ours is three times as long; both remove it after thirty. On a machine so
busy that this alone takes a node down, what is waited for still comes.
"""

import asyncio
from typing import Any

import pytest

from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone, PeerRecovered
from meshbus.engine.session.peer import Health
from meshbus.node.node import Node
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.testing.realpeer import RealPeer
from tests.interop.lab import Lab, eventually, eventually_there, notice, take

TIMEOUT_S = 0.2
THEIR_TIMES = {"heartbeat_interval_ms": 50, "session_timeout_ms": int(TIMEOUT_S * 1000)}
OUR_TIMES = {"heartbeat_s": 0.05, "session_timeout_s": 3 * TIMEOUT_S, "tags": ["ours"]}
EVICTED_S = 30 * TIMEOUT_S
FOUND = {"require_tags": ["ours"]}


async def talking(lab: Lab, **changed: float) -> tuple[RealPeer, Node]:
    """Return two connected nodes."""
    peer, node = lab.peer(permissive_channels=True, **THEIR_TIMES), await lab.node(**{**OUR_TIMES, **changed})
    peer.announce_capabilities({"tags": ["theirs"]})
    await lab.join(node, peer)
    await eventually(lambda: finds(node) == [peer.node_id], "its announcement")
    await eventually_there(peer.find_nodes, FOUND, gives=lambda found: found == [node.node_id])
    return peer, node


def finds(node: Node) -> list[int]:
    return node.find_nodes(CapabilityFilter(require_tags=("theirs",)))


def has_subscriber(report: dict[str, Any]) -> bool:
    return bool(report["attempted"] == 1)


def has_none(report: dict[str, Any]) -> bool:
    return bool(report["attempted"] == 0)


async def test_heartbeats_go_both_ways_and_ours_are_followed_by_pingwaves(lab: Lab) -> None:
    _, node = await talking(lab)
    [tap] = lab.taps
    beats = [sum(seen.flags == 0x20 and seen.outgoing is outgoing for seen in tap.seen) for outgoing in (True, False)]
    await asyncio.sleep(0.5)
    assert [known.health for known in node.peers] == [Health.ALIVE]
    for outgoing, before in zip((True, False), beats, strict=True):
        sizes = [seen.size for seen in tap.seen if seen.flags == 0x20 and seen.outgoing is outgoing]
        assert len(sizes) >= before + 5
        assert set(sizes) == {84}
    waves = [datagram for outgoing, datagram in tap.others if outgoing]
    assert {len(wave) for wave in waves} == {72}
    assert {int.from_bytes(wave[:8], "little") for wave in waves} == {node.node_id}


async def test_a_frozen_real_node_fails_loses_its_subscriptions_and_recovers(lab: Lab) -> None:
    peer, node = await talking(lab)
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "alive/ours")
    async with node.subscribe("alive/theirs") as subscription:
        peer.pause()
        assert await notice(node, PeerFailed) == PeerFailed(peer.node_id, DownReason.SILENT)
        assert [known.health for known in node.peers] == [Health.FAILED]
        assert node.roster.members("alive/ours") == []
        assert (await node.publisher("alive/ours").publish("nobody")).is_empty
        assert finds(node) == []
        peer.resume()
        assert await notice(node, PeerRecovered) == PeerRecovered(peer.node_id)
        # We ask again for what we had from it; what it had from us it has to ask for itself.
        await eventually_there(lambda: peer.publish("alive/theirs", b"back"), gives=has_subscriber)
        assert await take(subscription, 1) == [b"back"]
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "alive/ours")
    assert (await node.publisher("alive/ours").publish("again")).delivered == 1
    assert "again" in {event.raw for event in await asyncio.to_thread(peer.collect, 1)}


async def test_our_silence_fails_us_there_and_a_heartbeat_recovers_us(lab: Lab) -> None:
    """We hear it all the time, and the wire has no message for what it has dropped: subscriptions and announcement are
    gone there until we renew them.
    """
    peer, node = await talking(lab)
    [tap] = lab.taps
    await node.subscribe_channel(peer.node_id, "alive/theirs")
    tap.outgoing = False
    await eventually_there(lambda: peer.publish("alive/theirs", b"nobody"), gives=has_none)
    await eventually_there(peer.find_nodes, FOUND, gives=lambda found: found == [])
    assert peer.peer_count() == 1  # failed, not gone
    tap.mend()
    await node.subscribe_channel(peer.node_id, "alive/theirs")
    await eventually_there(lambda: peer.publish("alive/theirs", b"back"), gives=has_subscriber)
    node.announce(CapabilitySet({"ours"}))
    await eventually_there(peer.find_nodes, FOUND, gives=lambda found: found == [node.node_id])
    assert [known.health for known in node.peers] == [Health.ALIVE]


async def test_after_a_cut_both_ways_everything_of_ours_comes_back_by_itself(lab: Lab) -> None:
    peer, node = await talking(lab)
    [tap] = lab.taps
    async with node.subscribe("alive/theirs") as subscription:
        tap.cut()
        await notice(node, PeerFailed)
        await eventually_there(lambda: peer.publish("alive/theirs", b"nobody"), gives=has_none)
        await eventually_there(peer.find_nodes, FOUND, gives=lambda found: found == [])
        tap.mend()
        await notice(node, PeerRecovered)
        await eventually_there(lambda: peer.publish("alive/theirs", b"back"), gives=has_subscriber)
        assert (await take(subscription, 1))[0] == b"back"
        await eventually_there(peer.find_nodes, FOUND, gives=lambda found: found == [node.node_id])


async def test_events_do_not_count_as_heartbeats_but_a_failed_session_still_carries_them(lab: Lab) -> None:
    peer, node = await talking(lab)
    [tap] = lab.taps
    await asyncio.to_thread(peer.open_stream, node.node_id, 5)
    async with node.inbox() as inbox:
        tap.heartbeats = False
        failed = asyncio.ensure_future(notice(node, PeerFailed))
        while not failed.done():
            await asyncio.to_thread(peer.send, node.node_id, 5, [b"still here"])
        assert (await failed).node_id == peer.node_id
        received = inbox.stats.received
        assert received > 0
        await asyncio.to_thread(peer.send, node.node_id, 5, [b"and still"])
        await eventually(lambda: inbox.stats.received > received, "an event of a failed peer")
        await eventually_there(peer.find_nodes, FOUND, gives=lambda found: found == [])  # it judges us the same way


@pytest.mark.slow
async def test_a_peer_that_stays_silent_is_removed_on_both_sides_and_may_join_anew(lab: Lab) -> None:
    peer, node = await talking(lab, session_timeout_s=TIMEOUT_S)
    [tap] = lab.taps
    async with node.subscribe("alive/theirs") as subscription:
        tap.cut()
        began = asyncio.get_running_loop().time()
        gone = await notice(node, PeerGone, seconds=EVICTED_S + 10)
        assert gone == PeerGone(peer.node_id, DownReason.EVICTED)
        assert asyncio.get_running_loop().time() - began >= EVICTED_S - TIMEOUT_S
        assert node.peers == []
        await eventually_there(peer.peer_count, gives=lambda count: count == 0)
        tap.mend()
        await asyncio.to_thread(peer.publish, "alive/theirs", b"nobody")
        await node.connect(tap.peer_address, node_id=peer.node_id, public_key=peer.public_key)
        await eventually_there(lambda: peer.publish("alive/theirs", b"anew"), gives=has_subscriber)
        assert (await take(subscription, 1))[0] == b"anew"
        assert peer.peer_count() == len(node.peers) == 1
