"""A signed policy reaches every node with its issuer, over hops, losses and partitions; nothing else is taken."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from meshbus.engine.base.notices import PolicyArrived
from meshbus.engine.directory import fleetpolicy as subject
from meshbus.engine.directory.fleetpolicy import FleetPolicy
from meshbus.names.identity import Identity
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.fleetpolicy import (
    CHUNK_BYTES,
    MAX_POLICY,
    Chunk,
    Fetch,
    FleetPolicyMessage,
    Have,
    PolicyStatement,
    encode_fleet_policy,
)
from tests.engine.fleet import meet
from tests.seeds import for_each_seed

ISSUER, STRANGER = Identity.from_seed(bytes(range(32))), Identity.from_seed(bytes(32))
CARRIES: dict[str, Any] = {
    "carries": frozenset({Subprotocol.POLICY}),
    "policy_issuers": (ISSUER.entity_id,),
}
SMALL, LARGE = b"# one line\n", b"".join(b"# line %06d\n" % number for number in range(MAX_POLICY // 14))


def service(node: FakeNode) -> FleetPolicy:
    found = node.engine.fleet_policy
    assert found is not None
    return found


def hold(node: FakeNode, version: int, policy: bytes = SMALL, issuer: Identity = ISSUER) -> PolicyStatement:
    statement = PolicyStatement.sign(issuer, version, policy)
    with node.turn() as (_engine, now, out):
        service(node).hold(statement, policy, now, out)
    return statement


def arrivals(node: FakeNode) -> list[PolicyArrived]:
    return node.happened(PolicyArrived)


def obey(*nodes: FakeNode) -> None:
    """Let nodes hold what arrives, as a node that stores and applies it does."""
    for node in nodes:
        for arrived in arrivals(node):
            if service(node)._arrived == arrived.statement:
                with node.turn() as (_engine, now, out):
                    service(node).hold(arrived.statement, arrived.policy, now, out)


def spread(net: FakeNet, *nodes: FakeNode, version: int, timeout_s: float = 300.0) -> float:
    """Run until all nodes have a version; return how long that took."""
    began = net.clock.now

    def done() -> bool:
        obey(*nodes)
        return all(service(node).version == version for node in nodes)

    net.run_until(done, timeout_s=timeout_s)
    return net.clock.now - began


def say(sender: FakeNode, receiver: FakeNode, *messages: FleetPolicyMessage | bytes) -> None:
    for message in messages:
        raw = message if isinstance(message, bytes) else encode_fleet_policy(message)
        with sender.turn() as (engine, now, out):
            peer = engine.peers.require(receiver.node_id)
            engine.streams.send_reliable(peer, Subprotocol.POLICY, raw, now, out)
    sender.net.run(for_s=1)


def pair(**settings: Any) -> tuple[FakeNet, FakeNode, FakeNode]:
    net = FakeNet(3)
    one, other = net.create("one", **{**CARRIES, **settings}), net.create("other", **CARRIES)
    meet(one, other)
    return net, one, other


@pytest.mark.parametrize(
    "policy", [SMALL, LARGE[: CHUNK_BYTES * subject.BURST_CHUNKS], LARGE], ids=["small", "burst", "large"]
)
def test_a_policy_reaches_a_neighbor_whole(policy: bytes) -> None:
    net, one, other = pair()
    statement = hold(one, 3, policy)
    net.run_until(lambda: bool(arrivals(other)))
    assert arrivals(other) == [PolicyArrived(one.node_id, statement, policy)]
    net.run(for_s=200)
    assert len(arrivals(other)) == 1


def test_a_line_of_nodes_passes_it_on_and_a_later_session_gets_it_too() -> None:
    net = FakeNet(4)
    nodes = [net.create(f"node {number}", **CARRIES) for number in range(5)]
    for one, other in pairwise(nodes):
        meet(one, other)
    hold(nodes[0], 1, LARGE)
    spread(net, *nodes[1:], version=1)
    late = net.create("late", **CARRIES)
    meet(late, nodes[4])
    spread(net, late, version=1)


def test_a_node_without_issuers_ignores_it_and_sees_no_byte() -> None:
    net = FakeNet(5)
    one, plain = net.create("one", **CARRIES), net.create("plain")
    meet(one, plain)
    hold(one, 1)
    net.run(for_s=100)
    assert plain.engine.fleet_policy is None
    peer = one.engine.peers.require(plain.node_id)
    assert not peer.uses(Subprotocol.POLICY)
    assert arrivals(plain) == []


@for_each_seed(range(3))
def test_loss_and_a_partition_only_delay_it(seed: int) -> None:
    net = FakeNet(seed, path=FakePath(loss=0.3, latency_s=0.02, jitter_s=0.02))
    nodes = [net.create(f"node {number}", **CARRIES) for number in range(4)]
    for one, other in pairwise(nodes):
        one.connect(other)
        net.run_until(lambda one=one, other=other: one.speaks_profile_with(other), timeout_s=600)  # type: ignore[misc]
    hold(nodes[0], 1, LARGE[:40_000])
    spread(net, *nodes[1:], version=1, timeout_s=600)
    net.partition(["node 0", "node 1"], ["node 2", "node 3"])
    hold(nodes[0], 2)
    spread(net, nodes[1], version=2, timeout_s=600)
    net.run(for_s=120)  # so long that the two sides have failed for each other
    assert service(nodes[2]).version == 1
    net.heal()
    spread(net, *nodes[1:], version=2, timeout_s=1200)


def test_it_reaches_a_fleet_within_seconds_and_those_that_were_cut_off_when_they_are_back() -> None:
    net, chance = FakeNet(1, path=FakePath(latency_s=0.02, jitter_s=0.01, loss=0.01)), Random(1)
    nodes = [net.create(f"node {number}", **CARRIES) for number in range(30)]
    pairs = [(node, nodes[chance.randrange(place)]) for place, node in enumerate(nodes) if place for _ in range(2)]
    for one, other in pairs:
        if not one.has_session_with(other):
            one.connect(other)
            net.run_until(lambda one=one, other=other: one.has_session_with(other))  # type: ignore[misc]
    net.run_until(lambda: all(one.speaks_profile_with(other) for one, other in pairs))
    away = chance.sample(nodes[1:], 2)
    here = [node for node in nodes[1:] if node not in away]
    net.partition([node.name for node in nodes if node not in away], [node.name for node in away])
    hold(nodes[0], 1, LARGE[:20_000])
    assert spread(net, *here, version=1) < 10
    net.heal()
    assert spread(net, *away, version=1) < 2 * subject.REPEAT_S


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        (PolicyStatement.sign(STRANGER, 9, SMALL), Reason.POLICY_ISSUER),
        (PolicyStatement(9, 11, bytes(32), ISSUER.entity_id, bytes(64)), Reason.POLICY_SIGNATURE),
        (PolicyStatement(9, MAX_POLICY + 1, bytes(32), ISSUER.entity_id, bytes(64)), Reason.POLICY_TOO_LARGE),
        (PolicyStatement.sign(ISSUER, 4, SMALL), Reason.POLICY_OLD),
        (PolicyStatement.sign(ISSUER, 5, b"# another\n"), Reason.POLICY_CONFLICT),
    ],
)
def test_offers_that_are_not_taken(offered: PolicyStatement, reason: Reason) -> None:
    _net, one, mallory = pair()
    hold(one, 5)
    say(mallory, one, Have(offered))
    assert one.engine.counters.snapshot()[reason.what][reason.why] == 1
    assert service(one).version == 5
    assert service(one)._fetching is None


def test_an_older_node_learns_of_the_newer_policy() -> None:
    net, one, other = pair()
    hold(one, 5)
    net.run_until(lambda: bool(arrivals(other)))
    assert arrivals(other)[0].statement.version == 5


def test_malformed_and_unexpected_messages_are_counted() -> None:
    _net, one, mallory = pair()
    hold(one, 5)
    say(mallory, one, b"\x09", Fetch(4, 0), Fetch(5, 11), Chunk(5, 0, b"x"))
    drops = one.engine.counters.snapshot()["drop"]
    assert drops["policy_malformed"] == 1
    assert drops["policy_unexpected"] == 3


def genuine_offer(version: int, policy: bytes) -> tuple[PolicyStatement, bytes]:
    return PolicyStatement.sign(ISSUER, version, policy), policy


def test_wrong_bytes_are_refused_and_another_neighbor_is_asked() -> None:
    net = FakeNet(6)
    victim, honest, mallory = (net.create(name, **CARRIES) for name in ("victim", "honest", "mallory"))
    meet(victim, mallory)
    statement, policy = genuine_offer(2, SMALL)
    say(mallory, victim, Have(statement))
    assert service(victim)._fetching is not None
    say(mallory, victim, Chunk(2, 0, b"x" * len(policy)))
    assert victim.engine.counters.snapshot()["drop"]["policy_content"] == 1
    assert arrivals(victim) == []
    # It is not asked again for a while, whatever it offers.
    say(mallory, victim, Have(statement))
    assert service(victim)._fetching is None
    meet(victim, honest)
    hold(honest, 2, policy)
    net.run_until(lambda: bool(arrivals(victim)))
    assert arrivals(victim)[0].node_id == honest.node_id


def test_a_neighbor_that_does_not_answer_is_left_out() -> None:
    net = FakeNet(7)
    victim, honest, mallory = (net.create(name, **CARRIES) for name in ("victim", "honest", "mallory"))
    meet(victim, honest, mallory)
    statement, policy = genuine_offer(2, SMALL)
    say(mallory, victim, Have(statement))
    hold(honest, 2, policy)
    net.run(for_s=subject.STALL_S + 1)
    assert victim.engine.counters.snapshot()["drop"]["policy_stalled"] == 1
    net.run_until(lambda: bool(arrivals(victim)))


def test_a_neighbor_that_leaves_is_replaced_and_a_newer_policy_wins() -> None:
    net = FakeNet(8)
    victim, honest, mallory = (net.create(name, **CARRIES) for name in ("victim", "honest", "mallory"))
    meet(victim, honest, mallory)
    say(mallory, victim, Have(genuine_offer(2, SMALL)[0]))
    say(honest, victim, Have(genuine_offer(2, SMALL)[0]))
    assert service(victim)._fetching is not None
    fetching = service(victim)._fetching
    assert fetching is not None
    leaving = mallory if fetching.node_id == mallory.node_id else honest
    with victim.turn() as (engine, now, out):
        engine.disconnect(leaving.node_id, now, out)
    fetching = service(victim)._fetching
    assert fetching is not None
    assert fetching.node_id != leaving.node_id
    rest = honest if leaving is mallory else mallory
    hold(rest, 3, LARGE)
    net.run_until(lambda: bool(arrivals(victim)))
    assert arrivals(victim)[0].statement.version == 3


def test_what_the_node_could_not_store_is_fetched_again() -> None:
    net, one, other = pair()
    hold(one, 2)
    net.run_until(lambda: bool(arrivals(other)))
    assert service(other).version == 2
    service(other).forget_arrived()
    net.run(for_s=subject.REPEAT_S + 5)
    assert len(arrivals(other)) == 2


def test_chunks_that_do_not_continue_are_dropped_and_memory_is_bounded() -> None:
    _net, one, mallory = pair()
    statement, policy = genuine_offer(2, LARGE[:5000])
    say(mallory, one, Have(statement))
    say(mallory, one, Chunk(2, 1024, policy[1024:2048]), Chunk(2, 0, policy[:1024]), Chunk(3, 1024, b"x"))
    fetching = service(one)._fetching
    assert fetching is not None
    assert bytes(fetching.data) == policy[:1024]
    for _ in range(8):
        say(mallory, one, Chunk(2, len(fetching.data), b"x" * 1000))
    assert len(fetching.data) <= statement.size


def test_checks_of_signatures_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    genuine = PolicyStatement.verify

    def counted(self: PolicyStatement) -> bool:
        nonlocal checks
        checks += 1
        return genuine(self)

    monkeypatch.setattr(PolicyStatement, "verify", counted)
    net, one, mallory = pair()
    for version in range(3000):
        with mallory.turn() as (engine, _now, out):
            forged = PolicyStatement(version + 1, 11, bytes(32), ISSUER.entity_id, bytes(64))
            peer = engine.peers.require(one.node_id)
            peer.send_message(Subprotocol.POLICY, encode_fleet_policy(Have(forged)), out)
        net.run(for_s=0.0001)
    assert 0 < checks < 2700
    assert one.engine.counters.snapshot()["drop"]["peer_share"] > 0


def test_serving_a_neighbor_that_asks_all_the_time_takes_its_share_of_time_only() -> None:
    net, one, mallory = pair()
    hold(one, 1, LARGE)
    net.run(for_s=5)
    served = 0
    with one.turn() as (engine, now, out):
        peer = engine.peers.require(mallory.node_id)
        for _ in range(1000):
            before = one.engine.counters.snapshot()["drop"].get("peer_share", 0)
            service(one)._on_fetch(peer, 1, 0, now, out)
            served += one.engine.counters.snapshot()["drop"].get("peer_share", 0) == before
    # Two seconds of a tenth of a core at once, for what goes beyond an ordinary packet.
    assert 100 < served < 700


def test_a_full_stream_is_not_an_error() -> None:
    net, one, other = pair()
    hold(one, 1, LARGE)
    net.partition(["one"], ["other"])
    for _ in range(300):
        with one.turn() as (engine, now, out):
            service(one)._on_fetch(engine.peers.require(other.node_id), 1, 0, now, out)
    assert one.engine.counters.snapshot()["drop"]["policy_unsent"] > 0
