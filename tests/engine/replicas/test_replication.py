"""0x0E00 between engines: causes of rejection and their codes, and a set that replicates as 0.23 nodes do."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.replicas import inbox, replication
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.records import Acknowledged, Acks, RoleChanged, Write
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.redex import (
    NackCode,
    RedexMessage,
    Role,
    SyncHeartbeat,
    SyncNack,
    SyncRequest,
    channel_id,
    decode_redex,
    encode_redex,
)
from tests.engine.fleet import meet, pair
from tests.engine.replicas.memorydisk import MemoryDisk
from tests.engine.replicas.trio import ID as TRIO_ID
from tests.engine.replicas.trio import Trio
from tests.seeds import for_each_seed

ID = channel_id("alarms")


class Asker:
    """A node that sends 0x0E00 messages to another and keeps what comes back."""

    def __init__(self, net: FakeNet, node: FakeNode, to: FakeNode) -> None:
        self._net, self._node, self._to = net, node, to
        self.answers: list[object] = []
        node.engine.reception.handlers[Subprotocol.REDEX] = lambda _peer, event, _now, _out: self.answers.append(
            decode_redex(event)
        )

    def send(self, *messages: bytes) -> list[object]:
        self.answers.clear()
        with self._node.turn() as (engine, _, out):
            engine.peers.require(self._to.node_id).send_messages(Subprotocol.REDEX, messages, out)
        self._net.run(for_s=0.2)
        return self.answers


def request(channel: bytes = ID, number: int = 5) -> bytes:
    return encode_redex(SyncRequest(channel_id=channel, since_seq=3, chunk_max=0, request_id=number))


EVENTS = tuple(bytes([number]) * 10 for number in range(10))


def opened(
    net: FakeNet, asker: FakeNode, server: FakeNode, *, budget: float = 0.5, tail: int = 10, first: int = 0
) -> None:
    """Let the server replicate the channel with the asker, and lead it, because it hears no other."""
    disk = MemoryDisk()
    disk.content.first = first
    disk.content.events = [(0, payload) for payload in EVENTS[first:tail]]
    settings = ReplicaSettings(nodes=(asker.node_id, server.node_id), heartbeat_s=0.1, budget_fraction=budget)
    with server.turn() as (engine, now, out):
        engine.replication.open(ID, settings, disk.content.recovered(), disk, now, out)
    net.run(for_s=1)
    assert server.engine.replication[ID].role == Role.LEADER


def unknown(_net: FakeNet, _asker: FakeNode, _server: FakeNode) -> None:
    pass


def closed(net: FakeNet, asker: FakeNode, server: FakeNode) -> None:
    opened(net, asker, server)
    server.engine.replication.close(ID)


def with_others(_net: FakeNet, _asker: FakeNode, server: FakeNode) -> None:
    server.engine.replication.admit(ID, [99])


def with_epochs(_net: FakeNet, asker: FakeNode, server: FakeNode) -> None:
    server.engine.replication.admit(ID, [asker.node_id])


def following(net: FakeNet, asker: FakeNode, server: FakeNode) -> None:
    opened(net, asker, server)
    beat = SyncHeartbeat(channel_id=ID, tail_seq=99, role=Role.LEADER, wall_clock_ms=0)
    with asker.turn() as (engine, _, out):
        engine.peers.require(server.node_id).send_message(Subprotocol.REDEX, encode_redex(beat), out)
    net.run(for_s=0.05)
    assert server.engine.replication[ID].role == Role.REPLICA


def without_a_disk(net: FakeNet, asker: FakeNode, server: FakeNode) -> None:
    opened(net, asker, server)
    with server.turn() as (engine, now, out):
        engine.replication.disk_failed(ID, "full", now, out)


def without_the_events(net: FakeNet, asker: FakeNode, server: FakeNode) -> None:
    opened(net, asker, server, first=10)


def over_budget(net: FakeNet, asker: FakeNode, server: FakeNode) -> None:
    opened(net, asker, server, budget=1e-9)
    with asker.turn() as (engine, _, out):
        engine.peers.require(server.node_id).send_message(Subprotocol.REDEX, request(), out)  # empties the bucket
    net.run(for_s=0.05)


CAUSES = [
    (unknown, NackCode.CHANNEL_CLOSED),
    (closed, NackCode.CHANNEL_CLOSED),
    (with_others, NackCode.NOT_LEADER),
    (with_epochs, NackCode.NOT_LEADER),
    (following, NackCode.NOT_LEADER),
    (without_a_disk, NackCode.NOT_LEADER),
    (without_the_events, NackCode.BAD_RANGE),
    (over_budget, NackCode.BACKPRESSURE),
]


@pytest.mark.parametrize(("cause", "code"), CAUSES, ids=[cause.__name__ for cause, _ in CAUSES])
def test_every_rejection_is_a_nack_with_its_code(
    cause: Callable[[FakeNet, FakeNode, FakeNode], None], code: NackCode
) -> None:
    net, asking, server = pair()
    cause(net, asking, server)
    asker = Asker(net, asking, server)
    (answer,) = [one for one in asker.send(request()) if isinstance(one, SyncNack)]
    assert (answer.channel_id, answer.since_seq, answer.code, answer.request_id) == (ID, 3, code, 5)
    assert answer.leader_first_retained_seq == (10 if code == NackCode.BAD_RANGE else 0)


def test_what_a_full_queue_does_not_take_is_backpressure(monkeypatch: pytest.MonkeyPatch) -> None:
    net, asking, server = pair()
    with_epochs(net, asking, server)
    monkeypatch.setattr(inbox, "MAX_QUESTIONS", 2)
    answers = Asker(net, asking, server).send(*(request(number=number) for number in range(4)))
    codes = {answer.request_id: answer.code for answer in answers if isinstance(answer, SyncNack)}
    assert codes == dict.fromkeys(range(2), NackCode.NOT_LEADER) | dict.fromkeys(range(2, 4), NackCode.BACKPRESSURE)


@pytest.mark.parametrize("allowed", [False, True])
def test_the_documented_short_request_needs_the_setting(allowed: bool) -> None:
    net, asking, server = pair(right={"short_sync": allowed})
    answers = Asker(net, asking, server).send(request()[:47])
    assert [answer.code for answer in answers if isinstance(answer, SyncNack)] == [NackCode.CHANNEL_CLOSED] * allowed
    assert server.engine.counters.get(*Reason.REPLICATION_MALFORMED.counter) == (not allowed)


def test_reserved_codes_heartbeats_and_garbage_are_counted_and_not_answered() -> None:
    net, stranger, server = pair()
    asker = Asker(net, stranger, server)
    server.engine.replication.admit(ID, [stranger.node_id])
    beat = encode_redex(SyncHeartbeat(channel_id=ID, tail_seq=1, role=Role.LEADER, wall_clock_ms=2))
    assert asker.send(*(bytes([0x00, 0x0E, code]) for code in range(0x24, 0x30)), b"\x00\x0e", beat) == []
    counters = server.engine.counters
    assert counters.get(*Reason.REPLICATION_RESERVED.counter) == 12
    assert counters.get(*Reason.REPLICATION_MALFORMED.counter) == 1
    assert counters.get(*Reason.REPLICA_UNEXPECTED.counter) == 1


class PlainSet:
    """Nodes that replicate a channel without epochs."""

    def __init__(self, count: int, seed: int = 3) -> None:
        self.net = FakeNet(seed)
        self.nodes = [self.net.create(f"n{number}") for number in range(count)]
        self.disks = {node.node_id: MemoryDisk() for node in self.nodes}
        self._seen = dict.fromkeys(self.disks, 0)
        self.notices: list[object] = []
        meet(*self.nodes)
        members = tuple(node.node_id for node in self.nodes)
        self._settings = ReplicaSettings(nodes=members, heartbeat_s=0.1)
        for node in self.nodes:
            self.reopen(node)

    def reopen(self, node: FakeNode) -> None:
        """Take part, with what is on disk."""
        disk = self.disks[node.node_id]
        with node.turn() as (engine, now, out):
            engine.replication.open(ID, self._settings, disk.content.recovered(), disk, now, out)

    def run(self, for_s: float) -> None:
        until = self.net.clock.now + for_s
        while self.net.clock.now < until:
            for node in self.nodes:
                work = node.happened(ReplicaWork)
                new, self._seen[node.node_id] = work[self._seen[node.node_id] :], len(work)
                for one in new:
                    self._carry_out(node, one)
            self.net.run(for_s=0.01)

    def _carry_out(self, node: FakeNode, work: ReplicaWork) -> None:
        writes: tuple[Write, ...] = work.writes  # type: ignore[assignment]
        self.notices += work.notices
        for write in writes:
            self.disks[node.node_id].write(write)
        if writes:
            with node.turn() as (engine, now, out):
                engine.replication.durable(ID, writes[-1].number, now, out)

    def leader(self) -> FakeNode:
        (leader,) = [node for node in self.nodes if node.engine.replication[ID].role == Role.LEADER]
        return leader


def test_a_set_without_epochs_elects_and_copies_a_backlog_above_one_packet() -> None:
    found = PlainSet(3)
    found.run(2)
    leader = found.leader()
    events = [bytes([number]) * 500 for number in range(100)]
    with leader.turn() as (engine, now, out):
        engine.replication.append(ID, 1, events, Acks.LOCAL, now, out)
    found.run(3)
    assert Acknowledged(1, 0, 100, Acks.LOCAL, confirmed=True) in found.notices
    for disk in found.disks.values():
        assert [payload for _, payload in disk.content.events] == events
    with leader.turn() as (engine, now, out):
        engine.replication.disk_failed(ID, "full", now, out)
    found.run(1)
    assert found.leader() is not leader
    leader.engine.replication.close(ID)
    with leader.turn() as (engine, now, out):
        engine.replication.durable(ID, 9, now, out)
        engine.replication.disk_failed(ID, "full", now, out)
    assert any(isinstance(notice, RoleChanged) for notice in found.notices)


REQUEST, RESPONSE, HEARTBEAT, NACK = 0x20, 0x21, 0x22, 0x23


@for_each_seed(range(3))
def test_no_election_message_is_ever_sent(seed: int) -> None:
    """Over whole runs, with leaders that come and go: what is sent are the four messages that redex.md §3 knows."""
    sent: list[bytes] = []

    def encode(message: RedexMessage) -> bytes:
        sent.append(encode_redex(message))
        return sent[-1]

    with mock.patch.object(replication, "encode_redex", encode):
        found = PlainSet(3, seed)
        for token in range(4):
            found.run(1.5)
            leader = found.leader()
            with leader.turn() as (engine, now, out):
                engine.replication.append(ID, token, EVENTS, Acks.LOCAL, now, out)
            found.run(1)
            with leader.turn() as (engine, now, out):
                engine.replication.disk_failed(ID, "full", now, out)
            found.run(1)
            leader.engine.replication.close(ID)
            found.reopen(leader)
    roles = [notice.role for notice in found.notices if isinstance(notice, RoleChanged)]
    assert roles.count(Role.CANDIDATE) >= roles.count(Role.LEADER) >= 4
    assert {message[:2] for message in sent} == {b"\x00\x0e"}
    assert {message[2] for message in sent} <= {REQUEST, RESPONSE, HEARTBEAT, NACK}
    assert {message[2] for message in sent} >= {REQUEST, RESPONSE, HEARTBEAT}


def test_a_set_with_epochs_sends_nothing_on_0x0e00() -> None:
    with mock.patch.object(replication, "encode_redex", side_effect=AssertionError("nothing is sent there")):
        trio = Trio()
        for node in trio.nodes:
            node.engine.replication.admit(TRIO_ID, [one.node_id for one in trio.nodes])
        trio.open()
        first = trio.leader()
        assert first is not None
        with first.turn() as (engine, now, out):
            engine.replicas.disk_failed(TRIO_ID, "full", now, out)
        trio.until(lambda: trio.leader() not in {None, first})
