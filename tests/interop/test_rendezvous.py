"""Reflex and rendezvous with real nodes in each role: who is asked, who introduces, who is introduced, who relays."""

import asyncio

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat
from meshbus.engine.session.peer import Peer
from meshbus.node.node import Node
from meshbus.wire.constants import PUNCH_BYTES, Subprotocol
from meshbus.wire.messages.address import parse_address
from meshbus.wire.messages.reflex import ReflexResponse, encode_reflex
from tests.interop.lab import Lab, eventually, eventually_there
from tests.interop.meeting import (
    admit,
    count,
    it_falls_back,
    it_is_told_its_address,
    it_punches,
    our_hub,
    we_are_told_our_address,
    we_fall_back,
    we_punch,
)
from tests.interop.tap import Tap


async def test_a_real_node_tells_us_where_we_are_seen(lab: Lab) -> None:
    await we_are_told_our_address(lab)


async def test_a_real_node_is_told_where_it_is_seen(lab: Lab) -> None:
    await it_is_told_its_address(lab)


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


@pytest.mark.parametrize("ours", [False, True], ids=["real coordinator", "our coordinator"])
async def test_we_punch_through_to_a_real_node(lab: Lab, ours: bool) -> None:
    await we_punch(lab, ours=ours)


@pytest.mark.parametrize("ours", [False, True], ids=["real coordinator", "our coordinator"])
async def test_a_real_node_punches_through_to_us(lab: Lab, ours: bool) -> None:
    await it_punches(lab, ours=ours)


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
    await we_fall_back(lab)


async def test_we_are_the_relay_of_a_real_node_where_no_punch_can_work(lab: Lab) -> None:
    await it_falls_back(lab)


def see_at(node: Node, places: dict[int, str]) -> None:
    """Make a node report other addresses to some peers than those it sees."""

    def answer(peer: Peer, message: memoryview, _now: float, out: Output) -> None:
        if message:
            return  # an answer: the peer was asked for a proof of its session
        told = ReflexResponse(parse_address(places[peer.node_id]))
        peer.send_message(Subprotocol.REFLEX, encode_reflex(told), out)

    node.live.engine.reception.handlers[Subprotocol.REFLEX] = answer
    node.live.engine.traversal.nat._sweep_at = None
