"""A group on several nodes: takeovers lose and repeat nothing, partitions are settled, and the loser starts from the winner."""

from __future__ import annotations

import pytest

from meshbus.compute import member
from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.groups import GroupKind
from meshbus.compute.member import SlotChanged
from meshbus.compute.reconciling import Diverged
from meshbus.errors import DaemonError
from meshbus.wire.messages.groups import GroupInput, GroupRefused, RefusalCode
from tests.compute.coordinated import Coordinated
from tests.compute.counter import Bulky, Counter, OneEach, run_alone
from tests.seeds import for_each_seed


def outputs(net: Coordinated, origin: int) -> list[bytes]:
    """Return what the log has of a chain, which must have no holes."""
    found = sorted(sequence for one, sequence in net.log if one == origin)
    assert found == list(range(1, len(found) + 1))
    return [net.log[origin, sequence] for sequence in found]


@for_each_seed(range(20))
def test_a_daemon_goes_on_where_its_node_died_and_repeats_nothing(seed: int) -> None:
    net = Coordinated(1, 2, 3, seed=seed)
    spec = net.join(size=3)
    net.connect(1, 2, 3)
    net.run(6)
    (first,) = net.running(spec)[0]
    sender = next(node for node in net.nodes if node != first)
    sent = net.rng.randrange(1, 30)
    for number in range(1, sent + 1):
        net.send(sender, spec, number)
        if net.rng.random() < 0.4:
            net.run(0.5)
        # Outputs that were emitted, and not published when the node dies, are published by the next one.
        net.publishes = number < sent - 2
    net.deliver()
    net.crash(first)
    net.publishes = True
    net.run(8)
    (second,) = net.running(spec)[0]
    assert second != first
    for number in range(sent + 1, sent + 5):
        net.send(sender, spec, number)
        net.deliver()
    _, alone = run_alone([b"%d of %d" % (number, sender) for number in range(1, sent + 5)])
    assert outputs(net, spec.identity(0).origin_hash) == alone
    assert all(len(payloads) == 1 for payloads in net.published.values())
    assert not net.seen(second, Diverged)


@for_each_seed(range(20))
def test_two_partitions_that_both_went_on_are_settled_and_the_loser_takes_the_winners_state(seed: int) -> None:
    net = Coordinated(1, 2, seed=seed)
    spec = net.join(create=OneEach)
    net.connect(1, 2)
    net.run(6)
    net.send(1, spec, 1)
    net.run(3)
    net.cut(1)
    net.run(6)
    assert net.running(spec) == {0: [1, 2]}
    for number in range(2, 4):
        net.send(1, spec, number)
    for number in range(1, 5):
        net.send(2, spec, number)
    net.connect(1, 2)
    net.run(9)
    # Node 2 wrote more.
    assert net.running(spec) == {0: [2]}
    chains = [net.nodes[node].keeper.chain(spec.identity(0).origin_hash) for node in (1, 2)]
    assert chains[0] is not None
    assert chains[1] is not None
    assert chains[0].log.events == chains[1].log.events
    lost = {branch for chain in chains if chain is not None for branch in chain.branches}
    assert [len(net.seen(node, Diverged)) for node in (1, 2)] == [1, 1]
    assert len(lost) == 1
    stopped = [change for change in net.seen(1, SlotChanged) if isinstance(change, SlotChanged) and not change.runs]
    assert [change.why for change in stopped] == ["the history of another node won"]
    # And when the winner dies, the loser goes on from the winner's state.
    winner = net.member(2, spec).host(0)
    assert winner is not None
    net.crash(2)
    net.run(8)
    host = net.member(1, spec).host(0)
    assert host is not None
    assert host.head == winner.head
    assert isinstance(host.daemon, OneEach)
    assert isinstance(winner.daemon, OneEach)
    assert host.daemon.count == winner.daemon.count


def test_replicas_share_the_events_and_a_lost_one_is_created_again() -> None:
    net = Coordinated(1, 2, 3)
    spec = net.join(GroupKind.REPLICA, create=OneEach)
    net.connect(1, 2, 3)
    net.run(6)
    assert net.running(spec) == {0: [1], 1: [2]}
    for number in range(1, 11):
        net.send(3, spec, number)
    net.run(3)
    origins = [spec.identity(slot).origin_hash for slot in (0, 1)]
    assert [len(outputs(net, origin)) for origin in origins] == [5, 5]
    net.crash(2)
    net.run(8)
    assert net.running(spec) == {0: [1], 1: [3]}
    host = net.member(3, spec).host(1)
    assert host is not None
    assert host.head.sequence == 5
    net.send(1, spec, 1, key=b"key")
    net.deliver()
    assert sum(len(outputs(net, origin)) for origin in origins) == 11


def test_forks_begin_where_they_were_forked() -> None:
    net = Coordinated(1, 2)
    spec = net.join(GroupKind.FORK, create=OneEach)
    net.connect(1, 2)
    net.run(6)
    host = net.member(1, spec).host(0)
    record = spec.fork(0)
    assert host is not None
    assert record is not None
    assert host.head == record.genesis
    for number in range(1, 5):
        net.send(1, spec, number)
    net.run(3)
    chain = net.nodes[2].keeper.chain(record.forked_origin)
    assert chain is not None
    assert [event.link.sequence for event in chain.log.events] == [1, 2]
    assert chain.log.anchor.link == record.genesis


def test_a_large_state_is_copied_in_parts() -> None:
    net = Coordinated(1, 2)
    spec = net.join(create=Bulky)
    net.connect(1, 2)
    net.run(6)
    for number in range(1, 9):
        net.send(1, spec, number)
    net.run(4)
    net.crash(1)
    net.run(8)
    host = net.member(2, spec).host(0)
    assert host is not None
    assert isinstance(host.daemon, Counter)
    assert host.daemon.count == 8


def test_an_event_for_a_member_that_is_elsewhere_is_refused_by_name() -> None:
    net = Coordinated(1, 2)
    spec = net.join(GroupKind.REPLICA)
    net.connect(1, 2)
    with pytest.raises(DaemonError, match="no member of its group runs now"):
        net.send(1, spec, 1)
    net.run(6)
    message = GroupInput(group=spec.group_id, slot=1, origin=5, sequence=1, payload=b"x")
    net.post(1, net.member(1, spec).handle(message, 2))
    net.deliver()
    assert net.seen(2, GroupRefused) == [GroupRefused(group=spec.group_id, slot=1, code=RefusalCode.NOT_HERE, runner=2)]
    assert net.member(1, spec).handle(message, 1) == []
    assert len(net.member(1, spec).refused) == 1
    wrong = GroupInput(group=spec.group_id, slot=9, origin=5, sequence=1, payload=b"x")
    assert net.member(1, spec).handle(wrong, 2) == []
    assert net.counters[1].get("drop", "chain_unknown") == 1


def test_an_event_that_comes_twice_counts_once_and_a_contested_daemon_takes_none() -> None:
    net = Coordinated(1, 2)
    spec = net.join(create=OneEach)
    net.connect(1, 2)
    net.run(6)
    net.send(1, spec, 1)
    net.send(1, spec, 1)
    assert net.counters[1].get("drop", "chain_duplicate") == 1
    origin = spec.identity(0).origin_hash
    chain = net.nodes[1].keeper.chain(origin)
    assert chain is not None
    chain.rivals.add(2)
    net.send(1, spec, 2)
    assert [report.code for report in net.seen(1, GroupRefused) if isinstance(report, GroupRefused)] == [
        RefusalCode.PAUSED
    ]


class Failing(Counter):
    def process(self, _event: DaemonEvent) -> list[bytes]:
        raise ValueError("no")


class Stateless(Counter):
    def snapshot(self) -> bytes:
        raise ValueError("no")


def test_a_daemon_that_fails_is_stopped_and_the_sender_told() -> None:
    net = Coordinated(1, 2)
    spec = net.join(create=Failing)
    net.connect(1, 2)
    net.run(6)
    net.send(1, spec, 1)
    codes = [report.code for report in net.seen(1, GroupRefused) if isinstance(report, GroupRefused)]
    assert codes == [RefusalCode.FAILED]


def test_a_daemon_whose_state_cannot_be_read_is_stopped() -> None:
    net = Coordinated(1, 2)
    spec = net.join(create=Stateless)
    net.connect(1, 2)
    net.run(5)
    stopped = [report for report in net.seen(1, SlotChanged) if isinstance(report, SlotChanged) and not report.runs]
    assert "snapshot() failed" in stopped[0].why
    assert spec.kind == GroupKind.STANDBY


def test_events_are_refused_while_too_many_outputs_are_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "MAX_PENDING", 3)
    net = Coordinated(1, 2)
    spec = net.join(create=OneEach)
    net.connect(1, 2)
    net.run(6)
    (runner,) = net.running(spec)[0]
    sender = 3 - runner
    net.publishes = False
    for number in range(1, 8):
        net.send(sender, spec, number)
        net.deliver()
    refused = [one for one in net.seen(sender, GroupRefused) if isinstance(one, GroupRefused)]
    assert {one.code for one in refused} == {RefusalCode.PAUSED}
    assert len(refused) == 4
