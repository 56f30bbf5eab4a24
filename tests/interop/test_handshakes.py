"""All ways to a session with a real node: who begins, and whether the messages carry a routing header."""

import asyncio
import os
from typing import Any

import msgspec
import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.errors import HandshakeError, HandshakeFault, Timeout
from meshbus.node.driving.driver import Driver
from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.capability import encode_announcement
from tests.interop.lab import Lab, eventually, eventually_there, take
from tests.interop.tap import HANDSHAKE, Tap

FOUND = {"require_tags": ["subprotocol:0x0a00"]}


def handshakes(tap: Tap) -> list[tuple[bool, bool, int]]:
    """Return direction, form and size of the handshake messages."""
    return [(seen.outgoing, seen.routed, seen.size) for seen in tap.seen if seen.flags == HANDSHAKE]


async def assert_events_flow(node: Node, peer: RealPeer) -> None:
    """Send events both ways; needs a session by which the peer can address the node."""
    assert await asyncio.to_thread(peer.peer_count) >= 1
    async with node.subscribe("lab/theirs", publisher=peer.node_id) as subscription:
        await asyncio.to_thread(peer.publish, "lab/theirs", b"from there")
        assert await take(subscription, 1) == [b"from there"]
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "lab/ours")
    assert (await node.publisher("lab/ours").publish(b"from here")).delivered == 1
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == ["from here"]


@pytest.mark.parametrize("where", ["127.0.0.1:0", "[::1]:0"])
async def test_we_begin_a_direct_handshake_with_a_node_that_accepts(lab: Lab, where: str) -> None:
    peer, node = lab.peer(permissive_channels=True, bind=where), await lab.node(bind=where)
    tap = await lab.join(node, peer)
    assert handshakes(tap) == [(True, False, 116), (False, False, 116)]
    assert [known.node_id for known in node.peers] == [peer.node_id]
    await assert_events_flow(node, peer)


async def test_we_begin_a_routed_handshake_with_a_node_that_runs(lab: Lab) -> None:
    """Its own calls that look a peer up by address do not know us then, so we show what it can do: publish to us."""
    peer, node = lab.peer(permissive_channels=True), await lab.node()
    peer.start()
    tap = await lab.join_running(node, peer)
    assert handshakes(tap) == [(True, True, 142), (False, True, 134)]
    assert peer.peer_count() == 1
    async with node.subscribe("lab/theirs") as subscription:
        await asyncio.to_thread(peer.publish, "lab/theirs", b"hello")
        assert await take(subscription, 1) == [b"hello"]


@pytest.mark.parametrize("running", [False, True])
async def test_it_begins_a_direct_handshake_with_our_running_node(lab: Lab, running: bool) -> None:
    peer, node = lab.peer(permissive_channels=True), await lab.node()
    tap = lab.tap(node, peer.address)
    node.accept(peer.node_id)
    if running:
        peer.start()
    await asyncio.to_thread(peer.connect, tap.node_address, node.noise_public_key, node.node_id)
    if not running:
        peer.start()
    assert handshakes(tap) == [(False, False, 116), (True, False, 116)]
    await assert_events_flow(node, peer)


async def test_it_begins_a_routed_handshake_straight_to_our_address(lab: Lab) -> None:
    """The binding does so in `connect_direct`, towards a node whose announcement, heard from a third one, has an address.

    Our announcements have none yet, so the test announces it in our name.
    """
    peer, middle, node = lab.peer(permissive_channels=True), lab.peer(), await lab.node()
    await join_both(lab, peer, middle, node)
    tap = lab.tap(node, peer.address)
    announcement = node.live.engine.announcer.current
    assert announcement is not None
    with_address = msgspec.structs.replace(
        announcement,
        version=announcement.version + 1_000_000,
        tags=(*announcement.tags, "has-address"),
        reflex_addr=tap.node_address,
    ).sign(node.identity)
    out = Output()
    to_middle = node.live.engine.peers.require(middle.node_id)
    to_middle.send_message(Subprotocol.CAPABILITY, encode_announcement(with_address), out)
    node.live.driver.apply(out)
    await eventually_there(
        peer.find_nodes, {"require_tags": ["has-address"]}, gives=lambda found: found == [node.node_id]
    )
    await asyncio.to_thread(connect_direct, peer, node, middle)
    assert handshakes(tap) == [(False, True, 142), (True, True, 134)]
    assert peer.call("traversal_stats")["relay_fallbacks"] == 0
    await assert_events_flow(node, peer)


async def test_it_begins_a_routed_handshake_through_a_third_node(lab: Lab) -> None:
    """`connect_direct` goes through the third node when ours announces that nobody can reach it from outside.

    The session is complete, but a 0.23 node cannot send through a relay: our subscribe arrives there, its answer and
    its events never do. So all that can be shown is that it took us in, from what it reports itself.
    """
    peer, middle, node = lab.peer(permissive_channels=True), lab.peer(), await lab.node(membership_ack_timeout_s=0.5)
    tap = await join_both(lab, peer, middle, node)
    out = Output()
    node.live.engine.announcer.set_nat(NatStatus(Nat.SYMMETRIC), Driver.now(), out)
    node.live.driver.apply(out)
    await eventually_there(peer.call, "peer_nat_type", node.node_id, gives=lambda kind: kind == "symmetric")
    await asyncio.to_thread(connect_direct, peer, node, middle)
    assert handshakes(tap) == [(True, True, 142), (False, True, 134), (False, True, 142), (True, True, 134)]
    assert peer.call("traversal_stats")["relay_fallbacks"] == 1
    # It cannot prove the session, so ours waits a moment before it believes it.
    both = {peer.node_id, middle.node_id}
    await eventually(lambda: {known.node_id for known in node.peers} == both, "the session")
    with pytest.raises(Timeout):
        await node.subscribe_channel(peer.node_id, "lab/theirs")
    assert await asyncio.to_thread(peer.publish, "lab/theirs", b"lost") == {
        "attempted": 1,
        "delivered": 1,
        "errors": [],
    }


async def test_we_begin_a_routed_handshake_through_a_third_node(lab: Lab) -> None:
    """The other way round the same holds: the relayed real node takes our subscribe, and cannot answer."""
    peer, middle, node = lab.peer(permissive_channels=True), lab.peer(), await lab.node(membership_ack_timeout_s=0.5)
    tap = await join_both(lab, peer, middle, node)
    await node.connect(tap.peer_address, node_id=peer.node_id, public_key=peer.public_key)
    assert handshakes(tap)[2:] == [(True, True, 142), (False, True, 134)]
    assert peer.peer_count() == 2
    with pytest.raises(Timeout):
        await node.subscribe_channel(peer.node_id, "lab/theirs")
    assert (await asyncio.to_thread(peer.publish, "lab/theirs", b"lost"))["attempted"] == 1


async def test_a_wrong_mesh_key_or_node_key_ends_with_a_reason_and_no_session(lab: Lab) -> None:
    peer = lab.peer()
    peer.start()
    settings: dict[str, Any] = {"handshake_timeout_s": 0.2, "handshake_attempts": 2}
    stranger = Node.open(psk=os.urandom(32).hex(), ephemeral=True, **settings)
    async with stranger:
        with pytest.raises(HandshakeError, match="same mesh key") as failed:
            await stranger.connect(peer.address, node_id=peer.node_id, public_key=peer.public_key)
        assert failed.value.fault is HandshakeFault.TIMEOUT
        assert stranger.peers == []
    node = await lab.node(**settings)
    with pytest.raises(HandshakeError, match="public key"):
        await node.connect(peer.address, node_id=peer.node_id, public_key=os.urandom(32))
    assert peer.peer_count() == 0


async def join_both(lab: Lab, peer: RealPeer, middle: RealPeer, node: Node) -> Tap:
    """Connect two real nodes, and ours to the second of them, until the first has heard of us."""
    accepting = middle.begin("accept", peer.node_id)
    await asyncio.to_thread(peer.connect, middle.address, middle.public_key, middle.node_id)
    assert accepting.result(5) == peer.address
    peer.start()
    middle.start()
    tap = await lab.join_running(node, middle)
    await eventually_there(peer.find_nodes, FOUND, gives=lambda found: node.node_id in found)
    return tap


def connect_direct(peer: RealPeer, node: Node, middle: RealPeer) -> None:
    peer.call("connect_direct", node.node_id, node.noise_public_key.hex(), middle.node_id)
