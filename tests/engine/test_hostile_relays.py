"""Relays and neighbors that lie: their cost is bounded, and every lie is counted with a reason.

The gateway's side of it, forged subnets and publishers, is in test_gateway_packets.
"""

from __future__ import annotations

import random

import pytest

from meshbus.engine.routes import forward, pingwaves, routing
from meshbus.engine.settings import LivenessConfig
from meshbus.testing.fakenet import FakeNet, FakeNode, Passage
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Header, pack_header
from meshbus.wire.messages.relay import RelayedHandshake, encode_relay
from meshbus.wire.pingwave import Pingwave, pack_pingwave
from meshbus.wire.route import RouteHeader, pack_route, unpack_route

FAR = 0xFA2
LIVENESS = LivenessConfig(heartbeat_s=1.0, session_timeout_s=3.0)


def meet(count: int, seed: int = 1) -> tuple[FakeNet, list[FakeNode]]:
    """Return nodes that all have sessions with each other."""
    net = FakeNet(seed)
    nodes = [net.create(f"n{number}", liveness=LIVENESS) for number in range(count)]
    for number, one in enumerate(nodes):
        for other in nodes[number + 1 :]:
            one.connect(other)
    net.run(for_s=2.5)
    return net, nodes


def dropped(node: FakeNode) -> dict[str, int]:
    """Return the counters of drops that concern routes."""
    drops = node.engine.counters.snapshot().get("drop", {})
    return {why: count for why, count in drops.items() if why.startswith(("transit_", "pingwave_", "relay_"))}


def wave(origin: int, seq: int, hops: int = 1, ttl: int = 3) -> bytes:
    return pack_pingwave(Pingwave(node_id=origin, seq=seq, hop_count=hops, ttl=ttl, timestamp_us=1))


def routed(dest: int = FAR, **fields: int) -> bytes:
    return pack_route(RouteHeader(src_id=77, dest_id=dest, **fields)) + pack_header(Header(stream_id=1))


def test_spoofed_sources_get_nothing() -> None:
    net, (victim, _other) = meet(2)
    before = len(victim.engine.mesh.table)
    net.inject("nobody", victim.name, routed())
    net.inject("nobody", victim.name, wave(FAR, 1))
    net.inject("n1", victim.name, wave(FAR, 1, hops=0))  # the neighbor's address, but not its own pingwave
    net.inject("n1", victim.name, wave(victim.node_id, 1))
    net.run(for_s=0.1)
    assert dropped(victim) == {
        "pingwave_forged": 1,
        "pingwave_own": 1,
        "pingwave_stranger": 1,
        "transit_stranger": 1,
    }
    assert len(victim.engine.mesh.table) == before


def test_packets_in_a_circle_end_with_their_ttl() -> None:
    net, nodes = meet(4)
    one, two, three, sender = nodes
    for node, hop in ((one, two), (two, three), (three, one)):
        node.engine.mesh.table.install(FAR, hop.name, net.clock.now)
    seen: list[Passage] = []
    net.taps.append(lambda passage: seen.append(passage) if passage.datagram[:2] == b"RT" else None)
    net.inject(sender.name, one.name, routed(ttl=8))
    net.run(for_s=0.5)
    assert [unpack_route(passage.datagram).ttl for passage in seen] == list(range(8, -1, -1))
    assert sum(dropped(node).get("transit_ttl_expired", 0) for node in nodes) == 1


def test_two_routes_that_point_at_each_other_end_at_once() -> None:
    net, (one, two, sender) = meet(3)
    one.engine.mesh.table.install(FAR, two.name, net.clock.now)
    two.engine.mesh.table.install(FAR, one.name, net.clock.now)
    net.inject(sender.name, one.name, routed(ttl=255))
    net.run(for_s=0.5)
    assert dropped(two)["transit_returning"] == 1


@pytest.mark.parametrize("hops", [16, 17, 255])
def test_inflated_hop_counts_teach_nothing(hops: int) -> None:
    net, (victim, liar) = meet(2)
    net.inject(liar.name, victim.name, wave(FAR, 1, hops=hops))
    net.run(for_s=0.1)
    assert dropped(victim) == {"pingwave_hops": 1}
    assert FAR not in victim.engine.mesh.table


def test_a_pingwave_is_passed_on_once_however_often_it_is_played() -> None:
    net, (victim, liar, bystander) = meet(3)
    seen: list[Passage] = []
    net.taps.append(seen.append)
    before = victim.engine.counters.get("ignore", "pingwave_copy")
    for _ in range(50):
        net.inject(liar.name, victim.name, wave(FAR, 9))
    net.run(for_s=0.1)
    assert victim.engine.counters.get("ignore", "pingwave_copy") - before >= 49
    origin = FAR.to_bytes(8, "little")
    assert sum(p.datagram.startswith(origin) and p.source == victim.name for p in seen) == 1
    # Old ones, when newer ones are there, are refused, and not passed on at all.
    old = dropped(victim).get("pingwave_old", 0)
    net.inject(liar.name, victim.name, wave(FAR, 3))
    net.run(for_s=0.1)
    assert dropped(victim)["pingwave_old"] == old + 1
    assert len(bystander.engine.mesh.graph) == 3


def test_a_flood_of_invented_origins_fills_no_table_and_silences_no_node() -> None:
    net, (victim, liar, honest) = meet(3)
    chance = random.Random(2)
    begun = net.clock.now
    for _ in range(20):
        for _ in range(600):
            net.inject(liar.name, victim.name, wave(chance.randrange(1, 2**64), 1))
        net.run(for_s=0.05)
    passed_s = net.clock.now - begun
    newcomers = pingwaves.NEWCOMER_BURST + pingwaves.NEWCOMER_RATE * passed_s
    looked_at = pingwaves.BURST + pingwaves.RATE * passed_s
    drops = dropped(victim)
    assert len(victim.engine.mesh.table) <= newcomers + 3 < routing.MAX_ROUTES
    assert len(victim.engine.mesh.graph) <= newcomers + 3
    assert drops["pingwave_rate"] >= 20 * 600 - looked_at - 10
    assert drops["pingwave_newcomers"] > 0
    net.inject(honest.name, victim.name, wave(FAR, 1))
    net.run(for_s=0.1)
    assert victim.engine.mesh.table.lookup(FAR, net.clock.now) == honest.name
    # And it is over when they are not heard of again.
    net.run(for_s=3 * LIVENESS.session_timeout_s + 2)
    assert len(victim.engine.mesh.table) <= 3
    assert len(victim.engine.mesh.pingwaves._seen) < 100


def test_a_flood_of_invented_streams_is_forwarded_in_bounded_memory() -> None:
    net, (relay, sender, receiver) = meet(3)
    packets = [
        pack_route(RouteHeader(src_id=77, dest_id=receiver.node_id)) + pack_header(Header(stream_id=n))
        for n in range(2 * forward.MAX_DECISIONS)
    ]
    for first in range(0, len(packets), 512):
        for packet in packets[first : first + 512]:
            net.inject(sender.name, relay.name, packet)
        net.run(for_s=0.002)
    assert relay.engine.counters.get("transit", "forwarded") == len(packets)
    assert len(relay.engine.mesh.forwarder._decisions) <= forward.MAX_DECISIONS


def test_a_peer_cannot_begin_a_handshake_in_anothers_name_through_a_relay() -> None:
    net, (relay, liar, target, victim) = meet(4)
    net.run_until(lambda: liar.speaks_profile_with(relay))
    forged = RelayedHandshake(target.node_id, victim.node_id, bytes(56))
    with liar.turn() as (engine, _now, out):
        peer = engine.peers.require(relay.node_id)
        peer.send_message(Subprotocol.HANDSHAKE_RELAY, encode_relay(forged), out)
    net.run(for_s=0.1)
    assert dropped(relay)["relay_source"] == 1


def test_a_dishonest_shortcut_lasts_no_longer_than_it_is_kept_up() -> None:
    """A false distance cannot be detected, but the honest route returns when the liar is silent."""
    net, (victim, liar, honest) = meet(3)
    net.inject(honest.name, victim.name, wave(FAR, 100, hops=3))
    net.inject(liar.name, victim.name, wave(FAR, 101, hops=1))
    net.run(for_s=0.1)
    assert victim.engine.mesh.table.lookup(FAR, net.clock.now) == liar.name
    for number in range(6):
        net.run(for_s=1)
        net.inject(honest.name, victim.name, wave(FAR, 102 + number, hops=3))
    net.run(for_s=0.1)
    assert victim.engine.mesh.table.lookup(FAR, net.clock.now) == honest.name
