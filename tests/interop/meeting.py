"""How real nodes and ours meet: who is asked for an address, who introduces, who is introduced.

On loopback there is no NAT, so `pretend` says what kind of NAT a meshbus node is to announce; a real node is open where an
address was given to it, and unknown otherwise. What is tried then is what the wire's table says for the two.
"""

import asyncio

from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.node.driving.driver import Driver
from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from meshbus.wire.messages.address import parse_address
from tests.interop.lab import Lab, eventually, eventually_there, take


def pretend(node: Node, kind: Nat, *, seen: bool = True) -> None:
    """Make a node believe, and announce, that it is behind a NAT of some kind, and seen where it is bound."""
    status, out = NatStatus(kind, parse_address(node.address) if seen else None), Output()
    node.live.engine.traversal.nat.status = status
    node.live.engine.traversal.nat._sweep_at = None
    node.live.engine.announcer.set_nat(status, Driver.now(), out)
    node.live.driver.apply(out)


def count(node: Node, what: str, why: str) -> int:
    """Return one counter of a node."""
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
    """Let a real node publish to ours."""
    async with node.subscribe("lab/theirs", publisher=peer.node_id) as subscription:
        await asyncio.to_thread(peer.publish, "lab/theirs", b"hello")
        assert await take(subscription, 1) == [b"hello"]


async def it_is_told_its_address(lab: Lab) -> None:
    """Let a real node ask ours where it is seen."""
    peer, node = lab.peer(), await lab.node()
    await admit(node, peer)
    peer.start()
    assert await asyncio.to_thread(peer.call, "probe_reflex", node.node_id) == peer.address


async def we_are_told_our_address(lab: Lab) -> None:
    """Ask a real node where ours is seen."""
    peer, node = lab.peer(), await lab.node()
    await admit(node, peer)
    peer.start()
    await eventually(lambda: len(node.peers) == 1, "its session")
    out = Output()
    node.live.engine.traversal.reflex.ask(node.live.engine.peers.require(peer.node_id), Driver.now(), out)
    node.live.driver.apply(out)
    nat = node.live.engine.traversal.nat
    await eventually(lambda: nat.seen_by(peer.node_id) is not None, "an answer")
    assert str(nat.seen_by(peer.node_id)) == node.address


async def we_punch(lab: Lab, *, ours: bool) -> None:
    """Punch from our node to a real one, with a coordinator of ours or a real one."""
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


async def it_punches(lab: Lab, *, ours: bool) -> None:
    """Let a real node punch to ours, with a coordinator of ours or a real one."""
    here, there = lab.peer(permissive_channels=True), await lab.node()
    hub = await our_hub(lab, here, there) if ours else await real_hub(lab, here, there)
    here.start()
    pretend(there, Nat.CONE)
    await eventually_there(here.call, "peer_nat_type", there.node_id, gives=lambda kind: kind == "cone", seconds=15)
    await asyncio.to_thread(here.call, "connect_direct", there.node_id, there.noise_public_key.hex(), hub.node_id)
    stats = await asyncio.to_thread(here.call, "traversal_stats")
    wanted = {"punches_attempted": 1, "punches_succeeded": 1, "relay_fallbacks": 0}
    assert {name: stats[name] for name in wanted} == wanted
    assert count(there, "punch", "heard") == 1
    await eventually(lambda: any(p.node_id == here.node_id and not p.relayed for p in there.peers), "its session")
    await assert_it_publishes_to_us(there, here)


async def we_fall_back(lab: Lab) -> None:
    """Reach a real node where no punch can work: a real coordinator is our relay."""
    there, here = lab.peer(), await lab.node()
    hub = await real_hub(lab, there, here)
    await announced(here, there)
    pretend(here, Nat.SYMMETRIC)
    reached = await here.connect_direct(there.node_id, public_key=there.public_key, coordinator=hub.node_id)
    assert reached.relayed
    assert here.counters["traversal"] == {"relay_fallback": 1}
    here.send(there.node_id, b"by way of another")
    assert [event.raw for event in await asyncio.to_thread(there.collect, 1)] == ["by way of another"]


async def it_falls_back(lab: Lab) -> None:
    """Let a real node reach ours where no punch can work: our coordinator is its relay."""
    here, there = lab.peer(), await lab.node()
    hub = await our_hub(lab, here, there)
    here.start()
    pretend(there, Nat.SYMMETRIC, seen=False)
    await eventually_there(
        here.call, "peer_nat_type", there.node_id, gives=lambda kind: kind == "symmetric", seconds=15
    )
    await asyncio.to_thread(here.call, "connect_direct", there.node_id, there.noise_public_key.hex(), hub.node_id)
    assert (await asyncio.to_thread(here.call, "traversal_stats"))["relay_fallbacks"] == 1
    # It cannot prove the session, so ours waits a moment before it believes it.
    await eventually(lambda: [p.relayed for p in there.peers if p.node_id == here.node_id] == [True], "the session")
    there.send(here.node_id, b"by way of another")
    assert [event.raw for event in await asyncio.to_thread(here.collect, 1)] == ["by way of another"]
