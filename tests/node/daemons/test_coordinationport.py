"""Chains, groups and partitions between engines: live, under loss, over partitions, and against strangers."""

from __future__ import annotations

from functools import partial

from meshbus.compute.causal import EntityLog
from meshbus.compute.coordination import IDS
from meshbus.compute.groups import GroupKind, GroupSpec
from meshbus.compute.partition import PartitionChanged, Phase
from meshbus.compute.reconciling import Diverged
from meshbus.compute.registry import Factory
from meshbus.engine.base.notices import Negotiated
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import SubnetPolicy, SubnetRule
from meshbus.policy.capability import CapabilitySet
from meshbus.testing.fakenet import FakeNet, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import encode_causal
from meshbus.wire.messages.continuity import Judged, Verdict
from tests.compute.counter import OneEach
from tests.compute.keepers import fork
from tests.engine.fleet import Wiretap, meet
from tests.node.daemons.coordinated import CARRIES, ORIGIN, Fellow
from tests.seeds import for_each_seed


def pair(net: FakeNet, **settings: object) -> tuple[Fellow, Fellow]:
    left, right = Fellow(net, "left", **settings), Fellow(net, "right", **settings)
    meet(left.node, right.node)
    left.hold(right)
    right.hold(left)
    net.run(for_s=1)
    return left, right


def test_events_reach_the_other_node_and_proofs_verify_there() -> None:
    net = FakeNet(seed=1, path=FakePath(loss=0.1, duplication=0.1, jitter_s=0.005))
    left, right = pair(net)
    left.write(*(b"%d" % number for number in range(200)))
    net.run_until(lambda: right.payloads == left.payloads)
    left.do(lambda: left.coordination.keeper.prove(ORIGIN))
    net.run(for_s=3)
    assert left.coordination.keeper.take_verdicts() == [(right.id, Judged(ORIGIN, 1, 200, Verdict.HOLDS))]


@for_each_seed(range(4))
def test_two_partitions_that_wrote_the_same_chain_are_settled_when_they_heal(seed: int) -> None:
    # Which side's messages come first depends on the seed and on who is behind the slower path.
    net = FakeNet(seed=seed, path=FakePath(loss=0.05, jitter_s=0.01))
    left, right = pair(net)
    slow = FakePath(latency_s=0.08, loss=0.05, jitter_s=0.01)
    net.set_path("left", "right", slow, both=False) if seed % 2 else net.set_path("right", "left", slow, both=False)
    left.write(b"shared")
    net.run(for_s=2)
    net.partition(["left"], ["right"])
    net.run(for_s=40)
    left.write(b"left 1", b"left 2")
    right.write(b"right 1", b"right 2", b"right 3")
    net.run(for_s=2)
    net.heal()
    if not left.node.has_session_with(right.node):
        meet(left.node, right.node)
    net.run(for_s=40)
    for side in (left, right):
        assert side.payloads == [b"shared", b"right 1", b"right 2", b"right 3"]
        (report,) = side.reported(Diverged)
        assert isinstance(report, Diverged)
        assert [event.payload for event in report.lost.events] == [b"left 1", b"left 2"]
        assert not side.chain.rivals
    assert set(left.chain.branches) == set(right.chain.branches)
    assert left.chain.log.head_hash == right.chain.log.head_hash


def test_a_standby_group_goes_on_over_a_partition_and_ends_with_one_history() -> None:
    net = FakeNet(seed=3)
    left, right = Fellow(net, "left"), Fellow(net, "right")
    meet(left.node, right.node)
    spec = GroupSpec(seed=bytes(range(32)), kind=GroupKind.STANDBY, size=2, nodes=(left.id, right.id))
    for side in (left, right):
        side.do(partial(side.coordination.join, spec, Factory(create=OneEach), net.clock.now))
    group = [side.coordination.group(spec.group_id) for side in (left, right)]
    net.run(for_s=8)
    assert [one.host(0) is not None for one in group] == [True, False]
    net.partition(["left"], ["right"])
    net.run(for_s=50)
    assert [one.host(0) is not None for one in group] == [True, True]
    net.heal()
    if not left.node.has_session_with(right.node):
        meet(left.node, right.node)
    net.run(for_s=20)
    assert sum(one.host(0) is not None for one in group) == 1


def test_a_lost_subnet_is_a_partition_until_it_is_back() -> None:
    net = FakeNet(seed=4)
    places = {"1": SubnetId.parse("1"), "3.7": SubnetId.parse("3.7")}
    rules = tuple(SubnetRule(match_tags=(f"at:{name}",), target_subnet=subnet) for name, subnet in places.items())
    sides = [Fellow(net, name, announces=False, assignment=SubnetPolicy(rules=rules)) for name in "abcd"]
    for side, place in zip(sides, ("1", "1", "3.7", "3.7"), strict=True):
        with side.node.turn() as (engine, now, out):
            engine.announce(CapabilitySet((f"at:{place}",)), now, out)
    meet(*(side.node for side in sides))
    net.run(for_s=2)
    net.partition(["a", "b"], ["c", "d"])
    net.run(for_s=50)
    for side in sides[:2]:
        phases = [report.phase for report in side.reports if isinstance(report, PartitionChanged)]
        assert phases == [Phase.SUSPECTED, Phase.CONFIRMED]
        (partition,) = side.coordination.detector.partitions
        assert partition.lost == {other.id for other in sides[2:]}
        assert partition.subnet == places["3.7"]
    net.heal()
    for side in sides[:2]:
        meet(side.node, *(other.node for other in sides[2:]))
    net.run(for_s=5)
    for side in sides[:2]:
        assert side.coordination.detector.partitions[0].phase == Phase.HEALED


def test_a_node_without_daemons_never_sees_these_subprotocols() -> None:
    net = FakeNet(seed=5)
    fellow = Fellow(net, "fellow")
    plain = net.create("plain")
    tap = Wiretap(net)
    meet(fellow.node, plain)
    fellow.do(lambda: fellow.coordination.keeper.hold(EntityLog(ORIGIN), [plain.node_id]))
    fellow.write(b"a")
    net.run(for_s=2)
    assert not tap.ids(fellow.node, plain) & CARRIES
    (agreed, *_) = [one for one in plain.happened(Negotiated) if one.compatible]
    assert not agreed.compatible & CARRIES


def test_messages_of_a_peer_that_did_not_negotiate_are_dropped() -> None:
    net = FakeNet(seed=6)
    fellow = Fellow(net, "fellow")
    mallory = net.create("mallory")
    meet(fellow.node, mallory)
    fellow.hold()
    event = fork().emit(b"forged", 0)
    with mallory.turn() as (engine, _now, out):
        for id_ in IDS:
            engine.peers.require(fellow.id).send_message(id_, encode_causal([event]), out)
    net.run(for_s=1)
    assert fellow.counters.get("drop", "not_negotiated") == len(IDS)
    assert fellow.payloads == []


def test_a_peer_that_is_no_member_cannot_add_to_a_chain() -> None:
    net = FakeNet(seed=7)
    left, right = pair(net)
    mallory = Fellow(net, "mallory")
    meet(mallory.node, left.node)
    mallory.hold(left)
    mallory.write(b"forged")
    net.run(for_s=2)
    assert left.payloads == []
    assert left.counters.get("refuse", "chain_sender") > 0
    assert right.payloads == []


def test_what_cannot_be_sent_is_counted() -> None:
    net = FakeNet(seed=8)
    left, right = pair(net)
    with left.node.turn() as (engine, now, out):
        left.port.send(engine, [(99, Subprotocol.CAUSAL, b"x")], now, out)
    assert left.counters.get("drop", "coordination_unsent") == 1
    assert right.payloads == []
