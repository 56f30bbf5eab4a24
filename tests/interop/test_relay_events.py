"""Events across relays: a real node between two of ours, and one of ours in front of a real node."""

import asyncio

from meshbus.engine.base.packets import Output
from meshbus.engine.session.negotiate import Profile
from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from meshbus.wire.constants import MAX_EVENT, Subprotocol
from tests.interop.lab import Lab, eventually, take
from tests.interop.tap import Tap

THEIR_TIMES = {"heartbeat_interval_ms": 100, "session_timeout_ms": 1000}
OUR_TIMES = {"heartbeat_s": 0.1, "session_timeout_s": 1.0}
ROUTE_BYTES = 18


async def around(lab: Lab, count: int = 2) -> tuple[RealPeer, list[Node], list[Tap]]:
    """Return a running real node, and nodes of ours that know only it."""
    relay = lab.peer(permissive_channels=True, **THEIR_TIMES)
    nodes = [await lab.node(**OUR_TIMES) for _ in range(count)]
    taps = [await lab.join(node, relay, start=node is nodes[-1]) for node in nodes]
    return relay, nodes, taps


async def behind(lab: Lab) -> tuple[Node, Node, RealPeer, Tap]:
    """Return a node without the profile, a relay of ours, and a real node that only the relay knows, with their wire."""
    far = lab.peer(permissive_channels=True, **THEIR_TIMES)
    near, relay = await lab.node(profile=False, **OUR_TIMES), await lab.node(**OUR_TIMES)
    tap = await lab.join(relay, far)
    await near.connect(relay.address, public_key=relay.public_key)
    return near, relay, far, tap


async def find(node: Node, node_id: int) -> None:
    """Wait until a node is heard of."""
    await eventually(lambda: node_id in {route.node_id for route in node.mesh.routes}, "a route")


async def agreed(left: Node, right: Node) -> None:
    """Wait until two nodes of ours speak the profile with each other, end to end."""
    await eventually(
        lambda: all(
            peer.profile
            for node, other in ((left, right), (right, left))
            for peer in node.peers
            if peer.node_id == other.node_id
        ),
        "the profile, end to end",
    )


async def test_events_go_both_ways_through_a_real_relay(lab: Lab) -> None:
    relay, (left, right), taps = await around(lab)
    await find(left, right.node_id)
    await left.connect(public_key=right.public_key)
    await agreed(left, right)
    for publisher, subscriber in ((left, right), (right, left)):
        events = [f"{number} {'x' * 300}".encode() for number in range(500)]
        async with subscriber.subscribe("sensors/lidar", publisher=publisher.node_id) as subscription:
            await publisher.publisher("sensors/lidar", reliable=True).publish_batch(events)
            assert await take(subscription, len(events)) == events
    assert {peer.node_id for peer in left.peers} == {relay.node_id, right.node_id}
    # The real relay passed on everything as it came, one hop further.
    sent = {datagram[ROUTE_BYTES:]: datagram[2:4] for outgoing, datagram in taps[0].routed if outgoing}
    came = {datagram[ROUTE_BYTES:]: datagram[2:4] for outgoing, datagram in taps[1].routed if not outgoing}
    assert len(came) > 20
    assert set(came) <= set(sent)
    assert {(sent[inner], came[inner]) for inner in came} <= {(b"\x10\x00", b"\x0f\x01"), (b"\x08\x00", b"\x07\x01")}


async def test_full_packets_fit_through_a_real_relay(lab: Lab) -> None:
    _, (left, right), _ = await around(lab)
    await find(left, right.node_id)
    await left.connect(public_key=right.public_key)
    await agreed(left, right)
    events = [bytes([number]) * (MAX_EVENT - ROUTE_BYTES) for number in range(20)]
    async with right.subscribe("bulk", publisher=left.node_id) as subscription:
        await left.publisher("bulk", reliable=True).publish_batch(events)
        assert await take(subscription, len(events)) == events


async def test_events_through_our_relay_reach_a_real_node(lab: Lab) -> None:
    """The binding cannot send through a relay; it can receive."""
    near, relay, far, tap = await behind(lab)
    await find(near, far.node_id)
    await near.connect(node_id=far.node_id, public_key=far.public_key)
    events = [f"event {number}" for number in range(300)]
    near.send(far.node_id, *(event.encode() for event in events))
    received = await asyncio.to_thread(far.collect, len(events))
    assert [event.raw for event in received] == events
    routed = [seen for seen in tap.seen if seen.routed and seen.outgoing and seen.dest_id == far.node_id]
    assert {(seen.ttl, seen.hop_count) for seen in routed} == {(15, 1), (7, 1)}
    assert relay.counters["transit"]["forwarded"] >= len(routed)


async def test_unknown_subprotocols_pass_our_relay_byte_for_byte(lab: Lab) -> None:
    far = lab.peer(permissive_channels=True, **THEIR_TIMES)
    near, relay = await lab.node(profile=False, **OUR_TIMES), await lab.node(**OUR_TIMES)
    out = await lab.join(relay, far)
    before = lab.tap(near, relay.address)
    await near.connect(before.peer_address, public_key=relay.public_key)
    await find(near, far.node_id)
    await near.connect(node_id=far.node_id, public_key=far.public_key, profile=Profile.PLAIN)
    engine, driver = near.live.engine, near.live.driver
    out_of_engine = Output()
    for subprotocol_id in (0x1234, 0x2468, 0xF000):
        peer = engine.peers.require(far.node_id)
        peer.send_message(subprotocol_id, f"id {subprotocol_id}".encode(), out_of_engine)
    driver.apply(out_of_engine)
    received = await asyncio.to_thread(far.collect, 3)
    assert sorted(event.raw for event in received) == ["id 4660", "id 61440", "id 9320"]

    def bodies(tap: Tap) -> list[bytes]:
        routed = [datagram for outgoing, datagram in tap.routed if outgoing]
        return [datagram[ROUTE_BYTES:] for datagram in routed if datagram[ROUTE_BYTES + 8 :][:2] != b"\0\0"]

    assert set(bodies(out)) == set(bodies(before))
    assert {int.from_bytes(body[8:10], "little") for body in bodies(out)} >= {0x1234, 0x2468, 0xF000}


async def test_no_part_of_the_profile_is_meant_for_a_real_relay(lab: Lab) -> None:
    _, (left, right), taps = await around(lab)
    await find(left, right.node_id)
    await left.connect(public_key=right.public_key)
    await agreed(left, right)
    inside = {seen.subprotocol_id for tap in taps for seen in tap.seen if seen.outgoing and seen.routed}
    assert Subprotocol.NEGOTIATION in inside
