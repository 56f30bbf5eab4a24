"""Routing service: sessions and events across relays, detours, and routes that end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from meshbus.engine.base.notices import PeerFailed, SessionUp
from meshbus.engine.settings import LivenessConfig
from meshbus.errors import PeerError, PeerFault
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath, Outcome, Passage
from meshbus.wire.constants import Subprotocol
from meshbus.wire.datagram import DatagramKind
from meshbus.wire.route import unpack_route
from tests.engine.fleet import numbered, subscribed

BEAT_S, TIMEOUT_S = 1.0, 3.0


def chain(
    count: int, *, seed: int = 0, path: FakePath | None = None, **settings: Any
) -> tuple[FakeNet, list[FakeNode]]:
    """Make nodes of which each has a session with the next one; those further apart cannot reach each other."""
    net = FakeNet(seed, path=path)
    settings.setdefault("liveness", LivenessConfig(heartbeat_s=BEAT_S, session_timeout_s=TIMEOUT_S))
    nodes = [net.create(f"n{number}", **settings) for number in range(count)]
    for number, one in enumerate(nodes):
        for other in nodes[number + 2 :]:
            cut(net, one, other)
    for one, other in pairwise(nodes):
        one.connect(other)
    net.run(for_s=2 * BEAT_S)
    return net, nodes


def cut(net: FakeNet, one: FakeNode, other: FakeNode) -> None:
    net.set_path(one.name, other.name, FakePath(loss=1.0))


def meet_far(one: FakeNode, other: FakeNode) -> None:
    """Start a session between two nodes by node id alone."""
    with one.turn() as (engine, now, out):
        engine.connect(other.node_id, None, other.engine.public_key, now, out)
    one.net.run_until(lambda: one.has_session_with(other))
    one.net.run(for_s=0.2)


def counter(node: FakeNode, what: str, why: str) -> int:
    return node.engine.counters.get(what, why)


@pytest.mark.parametrize("hops", [2, 3, 4])
def test_events_cross_relays_in_both_directions(hops: int) -> None:
    net, nodes = chain(hops + 1)
    first, last = nodes[0], nodes[-1]
    meet_far(first, last)
    for publisher, subscriber in ((first, last), (last, first)):
        subscribed(subscriber, publisher)
        events = numbered(500, 100)
        publisher.publish("sensors/lidar", events, reliable=True)
        net.run(for_s=1)
        assert subscriber.payloads() == events
    assert first.speaks_profile_with(last)
    assert all(counter(relay, "transit", "forwarded") > 20 for relay in nodes[1:-1])


def test_a_lossy_chain_still_delivers_everything() -> None:
    net, nodes = chain(4, seed=3)
    net.path = FakePath(loss=0.1, duplication=0.05, jitter_s=0.005)
    meet_far(nodes[0], nodes[-1])
    net.run_until(lambda: nodes[0].speaks_profile_with(nodes[-1]))
    subscribed(nodes[-1], nodes[0])
    events = numbered(300, 200)
    nodes[0].publish("sensors/lidar", events, reliable=True)
    net.run(for_s=20)
    assert nodes[-1].payloads() == events


def test_relayed_packets_count_their_hops_and_keep_their_content() -> None:
    net, (near, relay, far) = chain(3)
    meet_far(near, far)
    subscribed(far, near)
    seen: list[Passage] = []
    net.taps.append(seen.append)
    near.publish("sensors/lidar", [b"event"])
    net.run(for_s=0.1)
    out, on = (
        [p.datagram for p in seen if p.kind is DatagramKind.ROUTED and (p.source, p.dest) == way]
        for way in ((near.name, relay.name), (relay.name, far.name))
    )
    assert [(unpack_route(d).ttl, unpack_route(d).hop_count) for d in out[:1] + on[:1]] == [(8, 0), (7, 1)]
    # The inner hop count is the only byte behind the routing header that a relay may write: we set a limit.
    inner_out, inner_on = out[0][18:], on[0][18:]
    assert inner_on == inner_out[:6] + bytes([inner_out[6] + 1]) + inner_out[7:]
    assert far.payloads() == [b"event"]


def test_a_handshake_through_a_meshbus_relay_stays_inside_sessions() -> None:
    net, (near, relay, far) = chain(3)
    net.run_until(lambda: near.speaks_profile_with(relay) and relay.speaks_profile_with(far))
    seen: list[Passage] = []
    net.taps.append(seen.append)
    meet_far(near, far)
    assert counter(relay, "relay", "inside") == 2
    assert not [p for p in seen if p.kind is DatagramKind.ROUTED and p.datagram[18 + 3] & 0x10]
    assert Subprotocol.HANDSHAKE_RELAY in near.engine.peers.require(relay.node_id).negotiated


def test_a_handshake_through_a_plain_relay_is_routed() -> None:
    _net, (near, relay, far) = chain(3, profile=False)
    meet_far(near, far)
    assert counter(relay, "relay", "inside") == counter(relay, "relay", "routed") == 0
    assert counter(relay, "transit", "forwarded") >= 2


def test_a_node_out_of_reach_is_named_as_such() -> None:
    _net, nodes = chain(6, announces=False)  # announcements travel further than pingwaves, and teach routes too
    meet_far(nodes[0], nodes[4])
    with nodes[0].turn() as (engine, now, out), pytest.raises(PeerError, match="no route: it is down") as caught:
        engine.connect(nodes[5].node_id, None, nodes[5].engine.public_key, now, out)
    assert caught.value.fault is PeerFault.UNREACHABLE


def test_a_wider_radius_reaches_further() -> None:
    _net, nodes = chain(11, liveness=LivenessConfig(heartbeat_s=BEAT_S, session_timeout_s=TIMEOUT_S, radius=16))
    meet_far(nodes[0], nodes[10])
    subscribed(nodes[10], nodes[0])
    nodes[0].publish("sensors/lidar", [b"far"])
    nodes[0].net.run(for_s=0.5)
    assert nodes[10].payloads() == [b"far"]


def triangle() -> tuple[FakeNet, FakeNode, FakeNode, FakeNode]:
    """Make three nodes that all have sessions with each other."""
    net = FakeNet(5)
    liveness = LivenessConfig(heartbeat_s=BEAT_S, session_timeout_s=TIMEOUT_S)
    left, middle, right = (net.create(name, liveness=liveness) for name in ("left", "middle", "right"))
    for one, other in ((left, middle), (middle, right), (left, right)):
        one.connect(other)
    net.run(for_s=2 * BEAT_S)
    return net, left, middle, right


def test_a_session_whose_way_breaks_takes_a_detour_and_comes_back() -> None:
    net, left, _middle, right = triangle()
    subscribed(right, left)
    session = left.engine.peers.require(right.node_id).link.session_id
    cut(net, left, right)
    net.run(for_s=TIMEOUT_S + 2 * BEAT_S)
    link = left.engine.peers.require(right.node_id).link
    assert (link.address, link.home, link.session_id) == ("middle", "right", session)
    left.publish("sensors/lidar", [b"by the detour"], reliable=True)
    net.run(for_s=1)
    assert right.payloads() == [b"by the detour"]
    assert not left.happened(PeerFailed), "a detour in time spares the peer"
    net.set_path("left", "right", FakePath())
    net.run(for_s=2 * BEAT_S)
    assert (link.address, link.route, link.session_id) == ("right", b"", session)
    left.publish("sensors/lidar", [b"straight"], reliable=True)
    net.run(for_s=1)
    assert right.payloads()[-1] == b"straight"
    assert len(left.happened(SessionUp)) == 2


def test_a_link_that_breaks_behind_the_neighbor_is_gone_around() -> None:
    """The 0.23 table would keep the dark way for as long as anything is heard from there."""
    net = FakeNet(6)
    liveness = LivenessConfig(heartbeat_s=BEAT_S, session_timeout_s=TIMEOUT_S)
    a, b, c, e, d = (net.create(name, liveness=liveness) for name in "abced")
    linked = [(a, b), (b, d), (a, c), (c, e), (e, d)]
    for one, other in linked:
        one.connect(other)
    for one in (a, b, c, e, d):
        for other in (a, b, c, e, d):
            if one is not other and (one, other) not in linked and (other, one) not in linked:
                cut(net, one, other)
    net.run(for_s=2 * BEAT_S)
    meet_far(a, d)
    assert a.engine.peers.require(d.node_id).link.address == "b"
    subscribed(d, a)
    cut(net, b, d)
    net.run(for_s=TIMEOUT_S + 3 * BEAT_S)
    assert a.engine.peers.require(d.node_id).link.address == "c"
    a.publish("sensors/lidar", [b"around"], reliable=True)
    net.run(for_s=1)
    assert d.payloads() == [b"around"]


def test_a_dead_relay_is_routed_around_and_its_routes_are_forgotten_in_time() -> None:
    net, nodes = chain(3)
    near, relay, far = nodes
    meet_far(near, far)
    net.remove(relay.name)
    net.run(for_s=3 * TIMEOUT_S + 2 * BEAT_S)
    assert near.happened(PeerFailed)[0].node_id == relay.node_id
    with near.turn() as (engine, now, out), pytest.raises(PeerError):
        engine.connect(far.node_id, None, far.engine.public_key, now, out)
    net.run(for_s=40 * TIMEOUT_S)
    assert len(near.engine.mesh.table) == 0
    assert len(near.engine.mesh.graph) == 0


def test_only_peers_may_use_a_node_as_forwarder() -> None:
    for open_relay in (False, True):
        net, (_near, relay, far) = chain(3, open_relay=open_relay)
        stranger = net.create("stranger")
        with stranger.turn() as (engine, now, out):
            engine.connect(far.node_id, relay.name, far.engine.public_key, now, out)
        cut(net, stranger, far)
        net.run(for_s=1)
        assert counter(relay, "drop", "transit_stranger") == (0 if open_relay else 1)
        assert not stranger.has_session_with(far), "the answer finds no way to a node that sends no pingwaves"


def test_packets_that_come_back_are_dropped() -> None:
    net, (near, relay, far) = chain(3)
    meet_far(near, far)
    link = near.engine.peers.require(far.node_id).link
    packet = bytes(link.route) + bytes(100)
    net.inject(relay.name, near.name, packet)
    net.run(for_s=0.1)
    assert counter(near, "drop", "transit_own") == 1
    # A packet for a node that is reached through its sender would go in a circle.
    circle = packet[:6] + bytes(4) + packet[10:]
    net.inject(far.name, relay.name, circle)
    net.run(for_s=0.1)
    assert counter(relay, "drop", "transit_returning") == 1
    assert [p for p in net.passages if p.outcome is Outcome.LOST] == []


def test_a_node_without_a_way_is_counted_by_the_relay() -> None:
    net, (near, relay, _far) = chain(3)
    packet = b"RT\x08\x00\x00\x00" + (7).to_bytes(4, "little") + (123).to_bytes(8, "little") + bytes(68)
    for count in (1, 5):
        net.inject(near.name, relay.name, packet)
        for _ in range(count - 1):
            net.inject(near.name, relay.name, packet)
        net.run(for_s=0.1)
    assert counter(relay, "drop", "transit_no_route") == 6


def test_announcements_are_not_sent_back_the_way_their_origin_is() -> None:
    net, nodes = chain(4)
    net.run(for_s=2)
    assert nodes[0].engine.mesh.next_hop(nodes[3].node_id, net.clock.now) == nodes[1].node_id
    assert nodes[3].node_id in nodes[0].engine.directory._index


def test_a_handshake_under_way_follows_the_route() -> None:
    net, left, middle, right = triangle()
    net.run(for_s=1)
    with right.turn() as (engine, now, out):
        engine.disconnect(left.node_id, now, out)
    with left.turn() as (engine, now, out):
        engine.disconnect(right.node_id, now, out)
        cut(net, left, right)
        engine.mesh.table.install(right.node_id, "nowhere", now)
        engine.connect(right.node_id, None, right.engine.public_key, now, out)
        engine.mesh.table.install(right.node_id, middle.name, now)
    begun = net.clock.now
    net.run_until(lambda: left.has_session_with(right))
    assert net.clock.now - begun < 0.5, "without waiting for the first try to time out"
