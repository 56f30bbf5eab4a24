"""Everything that nodes with daemons say to each other: who is heard, what is refused, and partitions."""

from __future__ import annotations

import pytest

from meshbus.compute import coordination as module
from meshbus.compute.coordination import COMPARE_S, IDS, Coordination
from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.groups import GroupKind, GroupSpec
from meshbus.compute.partition import PartitionChanged, Phase
from meshbus.compute.registry import Factory
from meshbus.engine.base.counters import Counters
from meshbus.errors import DaemonError
from meshbus.names.subnet import SubnetId
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.groups import GroupState, SlotFlags, SlotState, encode_group
from meshbus.wire.messages.migration import SnapshotReady, TakeSnapshot, encode_migration
from tests.compute.coordinated import SEED, Coordinated
from tests.compute.counter import Counter, OneEach


def test_every_message_of_a_peer_that_has_not_agreed_is_dropped() -> None:
    counters = Counters()
    one = Coordination(1, counters, round)
    for subprotocol_id in IDS:
        assert one.handle(subprotocol_id, b"", 2, 0.0) == []
    assert counters.get("drop", "chain_unexpected") == len(IDS)
    one.peer_up(2, None, 0.0)
    for subprotocol_id in IDS:
        assert one.handle(subprotocol_id, b"", 2, 0.0) == []
    assert counters.get("drop", "chain_malformed") == len(IDS)
    assert one.peer_down(9, 0.0) == []


def test_groups_of_others_and_strangers_in_groups_are_refused() -> None:
    net = Coordinated(1, 2)
    spec = net.join()
    net.connect(1, 2)
    one = net.nodes[1]
    one.peer_up(9, None, 0.0)
    state = GroupState(group=spec.group_id, slots=(SlotState(0, SlotFlags.RUNS, 99),))
    assert one.handle(Subprotocol.GROUPS, encode_group(state), 9, 0.0) == []
    assert net.counters[1].get("refuse", "chain_sender") == 1
    unknown = GroupState(group=spec.group_id ^ 1, slots=())
    assert one.handle(Subprotocol.GROUPS, encode_group(unknown), 2, 0.0) == []
    assert net.counters[1].get("drop", "chain_unknown") == 1
    net.run(6)
    assert net.running(spec) == {0: [1]}


def part(origin: int, index: int = 0, total: int = 1, chunk: bytes = b"x") -> bytes:
    message = SnapshotReady(origin=origin, seq_through=5, chunk_index=index, total_chunks=total, chunk=chunk)
    return encode_migration(message)


def test_a_state_is_taken_only_from_the_node_that_runs_the_daemon() -> None:
    net = Coordinated(1, 2, 3)
    spec = net.join(size=3, create=OneEach)
    net.connect(1, 2, 3)
    net.run(6)
    origin = spec.identity(0).origin_hash
    one = net.nodes[2]
    one.peer_up(9, None, 0.0)
    before = net.counters[2].get("refuse", "chain_sender")
    for sender in (3, 9):
        one.handle(Subprotocol.SNAPSHOT, part(origin), sender, net.now)
    assert net.counters[2].get("refuse", "chain_sender") == before + 2
    one.handle(Subprotocol.SNAPSHOT, part(12345), 1, net.now)
    one.handle(Subprotocol.SNAPSHOT, encode_migration(TakeSnapshot(origin=origin, target_node=1)), 1, net.now)
    assert net.counters[2].get("drop", "chain_unknown") == 2
    one.handle(Subprotocol.SNAPSHOT, part(origin), 1, net.now)
    assert net.counters[2].get("drop", "chain_malformed") == 1
    net.nodes[1].handle(Subprotocol.SNAPSHOT, part(origin), 2, net.now)
    assert net.counters[1].get("refuse", "chain_sender") == 1


def test_a_state_that_is_too_large_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COPY_BYTES", 7000)
    net = Coordinated(1, 2)
    spec = net.join()
    net.connect(1, 2)
    net.run(6)
    origin = spec.identity(0).origin_hash
    net.nodes[2].handle(Subprotocol.SNAPSHOT, part(origin, total=9, chunk=bytes(7000)), 1, net.now)
    assert len(net.nodes[2]._copies) == 0
    assert net.counters[2].get("drop", "migration_part") == 1


def test_groups_are_limited_and_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", 2)
    one = Coordination(1, Counters(), round)
    specs = [
        GroupSpec(seed=bytes((number, *SEED[1:])), kind=GroupKind.REPLICA, size=1, nodes=(1,)) for number in range(3)
    ]
    factory = Factory(create=Counter)
    for spec in specs[:2]:
        one.join(spec, factory, 0.0)
    for spec in (specs[1], specs[2]):
        with pytest.raises(DaemonError, match="the most that it may"):
            one.join(spec, factory, 0.0)
    with pytest.raises(DaemonError, match="does not take part"):
        one.group(specs[2].group_id)


def test_a_lost_subnet_is_reported_with_what_was_written_before() -> None:
    net = Coordinated(1, 2, 3, 4)
    for node in (3, 4):
        net.subnets[node] = SubnetId.parse("3.7")
    net.connect(1, 2, 3, 4)
    net.run(2)
    net.cut(3, 4)
    net.run(5)
    for node in (1, 2):
        phases = [report.phase for report in net.seen(node, PartitionChanged) if isinstance(report, PartitionChanged)]
        assert phases == [Phase.SUSPECTED, Phase.CONFIRMED]
        assert net.nodes[node].detector.partitions[0].lost == {3, 4}
    net.connect(1, 2, 3, 4)
    net.run(1)
    for node in (1, 2):
        last = net.seen(node, PartitionChanged)[-1]
        assert isinstance(last, PartitionChanged)
        assert last.phase == Phase.HEALED


def test_it_has_a_timer_only_if_there_is_something_to_do() -> None:
    one = Coordination(1, Counters(), round)
    assert one.next_timer() is None
    one.peer_up(2, None, 5.0)
    assert one.next_timer() == 5.0
    one.tick(5.0)
    assert one.next_timer() == 5.0 + COMPARE_S
    one.peer_down(2, 6.0)
    one.tick(5.0 + COMPARE_S)
    assert one.next_timer() is None


def test_a_message_that_was_dropped_is_made_up_for() -> None:
    net = Coordinated(1, 2)
    spec = net.join(create=OneEach)
    net.connect(1, 2)
    net.run(6)
    event = DaemonEvent(5, 1, b"x")
    assert net.nodes[1].send(spec.group_id, event), "these messages get lost"
    origin = spec.identity(0).origin_hash
    net.run(COMPARE_S)
    chains = [net.nodes[node].keeper.chain(origin) for node in (1, 2)]
    assert [chain.log.head.link.sequence for chain in chains if chain is not None] == [1, 1]
