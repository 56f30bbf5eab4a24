"""Reflex and rendezvous with real nodes in each role: who is asked, who introduces, who is introduced, who relays.

On loopback there is no NAT, so the tests say what kind of NAT a meshbus node is to announce; a real node is open where an
address was given to it, and unknown otherwise. What is tried then is what the wire's table says for the two.
"""

import asyncio

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.engine.session.peer import Peer
from meshbus.node.driving.driver import Driver
from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from meshbus.wire.constants import PUNCH_BYTES, Subprotocol
from meshbus.wire.messages.address import parse_address
from meshbus.wire.messages.reflex import ReflexResponse, encode_reflex
from tests.interop.lab import Lab, eventually, eventually_there, take
from tests.interop.tap import Tap


def pretend(node: Node, kind: Nat, *, seen: bool = True) -> None:
    """Make a node believe, and announce, that it is behind a NAT of some kind, and seen where it is bound."""
    status, out = NatStatus(kind, parse_address(node.address) if seen else None), Output()
    node.live.engine.traversal.nat.status = status
    node.live.engine.traversal.nat._sweep_at = None
    node.live.engine.announcer.set_nat(status, Driver.now(), out)
    node.live.driver.apply(out)


def count(node: Node, what: str, why: str) -> int:
    return node.counters.get(what, {}).get(why, 0)


async def admit(node: Node, peer: RealPeer) -> None:
    """Start a direct session from a real node to ours."""
    node.accept(peer.node_id)
    await asyncio.to_thread(peer.connect, node.address, node.noise_public_key, node.node_id)


async def accept(peer: RealPeer, node: Node) -> None:
    """Start a direct session from ours to a real node that has not been started."""
    accepting = asyncio.wrap_future(peer.begin("accept", node.node_id))
    await node.connect(peer.address, node_id=peer.node_id, public_key=peer.public_key, routed=False)
    await accepting


async def test_a_real_node_tells_and_is_told_where_it_is_seen(lab: Lab) -> None:
    peer, node = lab.peer(), await lab.node()
    await admit(node, peer)
    peer.start()
    assert await asyncio.to_thread(peer.call, "probe_reflex", node.node_id) == peer.address
    out = Output()
    node.live.engine.traversal.reflex.ask(node.live.engine.peers.require(peer.node_id), Driver.now(), out)
    node.live.driver.apply(out)
    nat = node.live.engine.traversal.nat
    await eventually(lambda: nat.seen_by(peer.node_id) is not None, "an answer")
    assert str(nat.seen_by(peer.node_id)) == node.address


async def test_two_real_nodes_let_us_classify_ourselves_and_we_let_them(lab: Lab) -> None:
    peers, node, other = [lab.peer(), lab.peer()], await lab.node(), await lab.node()
    for peer in peers:
        await admit(node, peer)
        await admit(other, peer)
        peer.start()
    await eventually(lambda: node.mesh.nat.nat is Nat.OPEN, "a sweep")
    assert str(node.mesh.nat.reflex) == node.address
    await asyncio.to_thread(peers[0].call, "reclassify_nat")
    assert await asyncio.to_thread(peers[0].call, "nat_type") == "open"
    assert await asyncio.to_thread(peers[0].call, "reflex_addr") == peers[0].address
    await eventually_there(peers[0].call, "peer_nat_type", node.node_id, gives=lambda kind: kind == "open", seconds=15)


async def real_hub(lab: Lab, *members: Node | RealPeer) -> RealPeer:
    """Make a real node that all know, and that knows all."""
    hub = lab.peer()
    for member in members:
        if isinstance(member, Node):
            await accept(hub, member)
        else:
            accepting = asyncio.wrap_future(hub.begin("accept", member.node_id))
            await asyncio.to_thread(member.connect, hub.address, hub.public_key, hub.node_id)
            await accepting
    hub.start()
    return hub


async def our_hub(lab: Lab, *members: Node | RealPeer) -> Node:
    """Make a meshbus node that all know, and that knows all."""
    hub = await lab.node()
    for member in members:
        if isinstance(member, Node):
            await member.connect(hub.address, public_key=hub.public_key)
        else:
            await admit(hub, member)
    return hub


async def open_peer(lab: Lab) -> RealPeer:
    """Make a real node that announces itself as open, and where it is."""
    peer = lab.peer(permissive_channels=True)
    await asyncio.to_thread(peer.call, "set_reflex_override", peer.address)
    return peer


async def announced(node: Node, peer: RealPeer) -> None:
    """Make a real node announce itself until ours has heard it."""
    peer.start()
    await asyncio.to_thread(peer.announce_capabilities, {"tags": ["there"]})
    table = node.live.engine.traversal.addresses
    await eventually(lambda: table.get(peer.node_id, Driver.now()) is not None, "its announcement")


async def assert_it_publishes_to_us(node: Node, peer: RealPeer) -> None:
    async with node.subscribe("lab/theirs", publisher=peer.node_id) as subscription:
        await asyncio.to_thread(peer.publish, "lab/theirs", b"hello")
        assert await take(subscription, 1) == [b"hello"]


@pytest.mark.parametrize("ours", [False, True], ids=["real coordinator", "our coordinator"])
async def test_we_punch_through_to_a_real_node(lab: Lab, ours: bool) -> None:
    there, here = await open_peer(lab), await lab.node()
    hub = await our_hub(lab, there, here) if ours else await real_hub(lab, there, here)
    await announced(here, there)
    pretend(here, Nat.SYMMETRIC)
    reached = await here.connect_direct(there.node_id, public_key=there.public_key, coordinator=hub.node_id)
    assert not reached.relayed
    assert here.counters["traversal"] == {"punch_attempted": 1, "punch_succeeded": 1}
    everything = {"acknowledged", "heard", "introduced"}
    await eventually(lambda: set(here.counters["punch"]) == everything, "the word of the other side")
    if isinstance(hub, Node):
        coordinator = hub
        await eventually(lambda: count(coordinator, "introduction", "acknowledged") == 2, "the word of both sides")
    await assert_it_publishes_to_us(here, there)


@pytest.mark.parametrize("ours", [False, True], ids=["real coordinator", "our coordinator"])
async def test_a_real_node_punches_through_to_us(lab: Lab, ours: bool) -> None:
    here, there = lab.peer(permissive_channels=True), await lab.node()
    hub = await our_hub(lab, here, there) if ours else await real_hub(lab, here, there)
    here.start()
    pretend(there, Nat.CONE)
    await eventually_there(here.call, "peer_nat_type", there.node_id, gives=lambda kind: kind == "cone", seconds=15)
    await asyncio.to_thread(here.call, "connect_direct", there.node_id, there.noise_public_key.hex(), hub.node_id)
    assert here.call("traversal_stats") == {"punches_attempted": 1, "punches_succeeded": 1, "relay_fallbacks": 0}
    assert count(there, "punch", "heard") == 1
    await eventually(lambda: any(p.node_id == here.node_id and not p.relayed for p in there.peers), "its session")
    await assert_it_publishes_to_us(there, here)


async def test_we_introduce_two_real_nodes_to_each_other(lab: Lab) -> None:
    """A tap between them is the NAT of both: what each sends there, the other sees from the tap's other side."""
    here, there = lab.peer(), lab.peer()
    hubs = [await our_hub(lab, here, there) for _ in range(2)]
    tap = Tap(here.address, there.address)
    lab.taps.append(tap)
    for hub in hubs:
        see_at(hub, {here.node_id: tap.node_address, there.node_id: tap.peer_address})
    for peer in (here, there):
        peer.start()
        await asyncio.to_thread(peer.call, "reclassify_nat")
        assert peer.call("nat_type") == "cone"
        await asyncio.to_thread(peer.announce_capabilities, {"tags": ["town"]})
    await eventually_there(here.call, "peer_nat_type", there.node_id, gives=lambda kind: kind == "cone", seconds=15)
    await asyncio.to_thread(here.call, "connect_direct", there.node_id, there.public_key.hex(), hubs[0].node_id)
    assert here.call("traversal_stats") == {"punches_attempted": 1, "punches_succeeded": 1, "relay_fallbacks": 0}
    await eventually(lambda: count(hubs[0], "introduction", "acknowledged") == 2, "the word of both sides")
    assert {outgoing for outgoing, datagram in tap.others if len(datagram) == PUNCH_BYTES} == {False, True}


async def test_a_real_coordinator_is_our_relay_where_no_punch_can_work(lab: Lab) -> None:
    there, here = lab.peer(), await lab.node()
    hub = await real_hub(lab, there, here)
    await announced(here, there)
    pretend(here, Nat.SYMMETRIC)
    reached = await here.connect_direct(there.node_id, public_key=there.public_key, coordinator=hub.node_id)
    assert reached.relayed
    assert here.counters["traversal"] == {"relay_fallback": 1}
    here.send(there.node_id, b"by way of another")
    assert [event.raw for event in await asyncio.to_thread(there.collect, 1)] == ["by way of another"]


async def test_we_are_the_relay_of_a_real_node_where_no_punch_can_work(lab: Lab) -> None:
    here, there = lab.peer(), await lab.node()
    hub = await our_hub(lab, here, there)
    here.start()
    pretend(there, Nat.SYMMETRIC, seen=False)
    await eventually_there(
        here.call, "peer_nat_type", there.node_id, gives=lambda kind: kind == "symmetric", seconds=15
    )
    await asyncio.to_thread(here.call, "connect_direct", there.node_id, there.noise_public_key.hex(), hub.node_id)
    assert here.call("traversal_stats")["relay_fallbacks"] == 1
    # It cannot prove the session, so ours waits a moment before it believes it.
    await eventually(lambda: [p.relayed for p in there.peers if p.node_id == here.node_id] == [True], "the session")
    there.send(here.node_id, b"by way of another")
    assert [event.raw for event in await asyncio.to_thread(here.collect, 1)] == ["by way of another"]


def see_at(node: Node, places: dict[int, str]) -> None:
    """Make a node report other addresses to some peers than those it sees."""

    def answer(peer: Peer, message: memoryview, _now: float, out: Output) -> None:
        if message:
            return  # an answer: the peer was asked for a proof of its session
        told = ReflexResponse(parse_address(places[peer.node_id]))
        peer.send_message(Subprotocol.REFLEX, encode_reflex(told), out)

    node.live.engine.reception.handlers[Subprotocol.REFLEX] = answer
    node.live.engine.traversal.nat._sweep_at = None
