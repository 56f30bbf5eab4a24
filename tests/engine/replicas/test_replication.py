"""0x0E00 between engines: causes of rejection and their codes, and a set that replicates as 0.23 nodes do."""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.replicas import inbox
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.records import Acknowledged, Acks, RoleChanged, Write
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.redex import (
    NackCode,
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


def nack(code: NackCode, channel: bytes = ID, number: int = 5) -> SyncNack:
    return SyncNack(channel_id=channel, since_seq=3, code=code, request_id=number)


def same(answer: object, expected: SyncNack) -> bool:
    assert isinstance(answer, SyncNack)
    assert answer.detail, "a rejection says why"
    fields = ("channel_id", "since_seq", "code", "request_id")
    return all(getattr(answer, field) == getattr(expected, field) for field in fields)


def test_every_rejection_is_a_nack_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    net, stranger, server = pair()
    asker = Asker(net, stranger, server)
    replication = server.engine.replication

    (answer,) = asker.send(request())
    assert same(answer, nack(NackCode.CHANNEL_CLOSED))

    replication.admit(ID, [99])
    (answer,) = asker.send(request())
    assert same(answer, nack(NackCode.NOT_LEADER))

    # With epochs, nobody leads in this protocol.
    replication.admit(ID, [stranger.node_id])
    (answer,) = asker.send(request())
    assert same(answer, nack(NackCode.NOT_LEADER))

    monkeypatch.setattr(inbox, "MAX_QUESTIONS", 2)
    answers = asker.send(*(request(number=number) for number in range(4)))
    codes = sorted(answer.code for answer in answers if isinstance(answer, SyncNack))
    assert codes == [NackCode.NOT_LEADER] * 2 + [NackCode.BACKPRESSURE] * 2

    replication.close(ID)
    (answer,) = asker.send(request())
    assert same(answer, nack(NackCode.CHANNEL_CLOSED))


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

    def __init__(self, count: int) -> None:
        self.net = FakeNet(3)
        self.nodes = [self.net.create(f"n{number}") for number in range(count)]
        self.disks = {node.node_id: MemoryDisk() for node in self.nodes}
        self._seen = dict.fromkeys(self.disks, 0)
        self.notices: list[object] = []
        meet(*self.nodes)
        members = tuple(node.node_id for node in self.nodes)
        for node in self.nodes:
            with node.turn() as (engine, now, out):
                settings = ReplicaSettings(nodes=members, heartbeat_s=0.1)
                engine.replication.open(ID, settings, Recovered(), self.disks[node.node_id], now, out)

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
