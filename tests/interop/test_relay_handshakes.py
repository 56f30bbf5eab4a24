"""Routed handshakes with real nodes in every role: who begins, who relays, who answers.

A real node begins one with `connect_direct`, which goes through its coordinator when the other node says that its NAT is
symmetric, and straight to the address that the other node tells otherwise: here the relay's.
"""

import asyncio

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.node.driving.driver import Driver
from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from tests.interop.lab import Lab, eventually, eventually_there
from tests.interop.tap import HANDSHAKE, Tap

THEIR_TIMES = {"heartbeat_interval_ms": 100, "session_timeout_ms": 1000}
OUR_TIMES = {"heartbeat_s": 0.1, "session_timeout_s": 1.0}


def handshakes(tap: Tap, *, outgoing: bool) -> list[tuple[int, int]]:
    """Return ttl and hops of the routed handshake packets that passed."""
    return [
        (seen.ttl, seen.hop_count)
        for seen in tap.seen
        if seen.routed and seen.flags & HANDSHAKE and seen.outgoing is outgoing
    ]


async def symmetric(lab: Lab) -> Node:
    """Return a node that announces a NAT through which no direct session is possible."""
    node = await lab.node(**OUR_TIMES)
    node.live.engine.announcer.set_nat(NatStatus(Nat.SYMMETRIC), Driver.now(), Output())
    return node


async def begin_from(real: RealPeer, node: Node, lab: Lab) -> Tap:
    """Make a real node that is not started connect to one of ours, by way of a tap, and start."""
    tap = lab.tap(node, real.address, real.node_id)
    node.accept(real.node_id)
    await asyncio.to_thread(real.connect, tap.node_address, node.noise_public_key, node.node_id)
    await asyncio.to_thread(real.start)
    return tap


async def test_we_begin_through_a_real_relay_and_one_of_us_answers(lab: Lab) -> None:
    relay = lab.peer(**THEIR_TIMES)
    left, right = [await lab.node(**OUR_TIMES) for _ in range(2)]
    taps = [await lab.join(node, relay, start=node is right) for node in (left, right)]
    await eventually(lambda: right.node_id in {route.node_id for route in left.mesh.routes}, "a route")
    await left.connect(public_key=right.public_key)
    assert handshakes(taps[0], outgoing=True) == handshakes(taps[1], outgoing=True) == [(16, 0)]
    assert handshakes(taps[0], outgoing=False) == handshakes(taps[1], outgoing=False) == [(15, 1)]


@pytest.mark.parametrize("profile", [True, False])
async def test_we_begin_through_one_of_us_and_a_real_node_answers(lab: Lab, profile: bool) -> None:
    """A meshbus relay that agreed gets the handshake inside a session, and sends it on as its own."""
    far = lab.peer(**THEIR_TIMES)
    near, relay = await lab.node(profile=profile, **OUR_TIMES), await lab.node(**OUR_TIMES)
    tap = await lab.join(relay, far)
    await near.connect(relay.address, public_key=relay.public_key)
    if profile:
        await eventually(lambda: near.peers[0].profile, "the profile")
    await eventually(lambda: far.node_id in {route.node_id for route in near.mesh.routes}, "a route")
    await near.connect(node_id=far.node_id, public_key=far.public_key)
    assert handshakes(tap, outgoing=True) == [(15, 1)]
    assert handshakes(tap, outgoing=False) == [(16, 0)]
    near.send(far.node_id, b"over the relay")
    assert [event.raw for event in await asyncio.to_thread(far.collect, 1)] == ["over the relay"]


async def test_a_real_node_begins_through_one_of_us_and_one_of_us_answers(lab: Lab) -> None:
    real = lab.peer(**THEIR_TIMES)
    relay, far = await lab.node(**OUR_TIMES), await symmetric(lab)
    tap = await begin_from(real, relay, lab)
    await far.connect(relay.address, public_key=relay.public_key)
    await eventually_there(
        real.find_nodes, {"require_tags": ["nat:symmetric"]}, gives=lambda found: found == [far.node_id]
    )
    key = far.noise_public_key.hex()
    await asyncio.to_thread(real.call, "connect_direct", far.node_id, key, relay.node_id)
    await eventually(lambda: real.node_id in {peer.node_id for peer in far.peers}, "the session")
    assert (16, 0) in handshakes(tap, outgoing=False)
    assert (15, 1) in handshakes(tap, outgoing=True)
    # Our node can send by the way it was asked; the binding cannot answer by it.
    far.send(real.node_id, b"back to you")
    assert [event.raw for event in await asyncio.to_thread(real.collect, 1)] == ["back to you"]


async def test_a_real_node_begins_through_a_real_relay_and_one_of_us_answers(lab: Lab) -> None:
    real, relay = lab.peer(**THEIR_TIMES), lab.peer(**THEIR_TIMES)
    far = await symmetric(lab)
    accepting = relay.begin("accept", real.node_id)
    await asyncio.to_thread(real.connect, relay.address, relay.public_key, relay.node_id)
    await asyncio.wrap_future(accepting)
    tap = await lab.join(far, relay, start=False)
    await asyncio.to_thread(real.start)
    await asyncio.to_thread(relay.start)  # last, so that it has whom to tell what our node announced
    await eventually_there(
        real.find_nodes, {"require_tags": ["nat:symmetric"]}, gives=lambda found: found == [far.node_id]
    )
    await asyncio.to_thread(real.call, "connect_direct", far.node_id, far.noise_public_key.hex(), relay.node_id)
    await eventually(lambda: real.node_id in {peer.node_id for peer in far.peers}, "the session")
    assert handshakes(tap, outgoing=False) == [(15, 1)]
    far.send(real.node_id, b"back to you")
    assert [event.raw for event in await asyncio.to_thread(real.collect, 1)] == ["back to you"]


async def test_two_real_nodes_meet_through_one_of_us(lab: Lab) -> None:
    near, far = lab.peer(**THEIR_TIMES), lab.peer(**THEIR_TIMES)
    relay = await lab.node(**OUR_TIMES)
    begun = await begin_from(near, relay, lab)
    far.call("set_reflex_override", begun.node_address)  # where the first one finds the relay
    tap = await begin_from(far, relay, lab)
    far.announce_capabilities({"tags": ["far"]})
    await eventually_there(near.find_nodes, {"require_tags": ["far"]}, gives=lambda found: found == [far.node_id])
    before = await asyncio.to_thread(near.peer_count)
    await asyncio.to_thread(near.call, "connect_direct", far.node_id, far.public_key.hex(), relay.node_id)
    assert await asyncio.to_thread(near.peer_count) == before + 1
    assert handshakes(tap, outgoing=True) == [(15, 1)]
    assert handshakes(tap, outgoing=False) == [(16, 0)]
