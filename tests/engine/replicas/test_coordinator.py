from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from meshbus.engine.replicas import coordinator
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.coordinator import ReplicationCoordinator
from meshbus.engine.replicas.records import Acknowledged, Acks, Gap, Out, Refusal, Refused, RoleChanged, Unresolved
from meshbus.engine.replicas.roles import Signal, TagEffect, Verdict
from meshbus.wire.messages.redex import (
    MAX_REPLICATED,
    NackCode,
    RedexMessage,
    Role,
    SyncHeartbeat,
    SyncNack,
    SyncRequest,
    SyncResponse,
    decode_redex,
    encode_redex,
)
from tests.engine.replicas.memorydisk import MemoryDisk
from tests.vectors import load

ID = bytes(32)
Kind = TypeVar("Kind")


class Node:
    """A coordinator whose disk and peers are played by the test; a heartbeat takes half a second."""

    def __init__(self, own: int = 1, nodes: tuple[int, ...] = (1, 2, 3), **changes: float) -> None:
        self.disk, self.now, self.out = MemoryDisk(), 0.0, Out()
        settings = ReplicaSettings(nodes=nodes, **changes)  # type: ignore[arg-type]
        self.core = ReplicationCoordinator(
            ID,
            own,
            self.disk.content.recovered(),
            self.disk,
            settings,
            entropy=random.Random(own).randbytes,
            wall_ms=lambda now: 1_700_000_000_000 + round(now * 1000),
        )
        self.do(self.core.open(0.0))

    def do(self, out: Out, *, sync: bool = True) -> Out:
        self.out = out
        for write in out.writes:
            self.disk.write(write)
        if out.writes and sync:
            self.out.notices += self.core.durable(out.writes[-1].number).notices
        return out

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.5
            self.do(self.core.tick(self.now))

    def receive(self, sender: int, message: RedexMessage) -> None:
        self.do(self.core.receive(sender, message, self.now))

    def hear(self, sender: int, tail: int, role: Role = Role.LEADER) -> None:
        self.receive(sender, SyncHeartbeat(channel_id=ID, tail_seq=tail, role=role, wall_clock_ms=0))

    def sent(self, kind: type[Kind]) -> list[Kind]:
        return [send.message for send in self.out.sends if isinstance(send.message, kind)]

    def signals(self) -> list[Signal]:
        return [notice.signal for notice in self.out.notices if isinstance(notice, RoleChanged)]

    def lead(self, *payloads: bytes) -> None:
        self.tick(3)
        assert self.core.role == Role.LEADER
        if payloads:
            self.do(self.core.append(0, payloads))

    def ask(self) -> SyncRequest:
        """Hear of a leader with more, and return the request that follows."""
        self.hear(2, 100)
        self.tick()
        return self.sent(SyncRequest)[0]


def request(since: int = 0) -> SyncRequest:
    return SyncRequest(channel_id=ID, since_seq=since, chunk_max=262_144, request_id=5)


def answer_to(asked: SyncRequest, first: int, count: int, *, retained: int = 0) -> SyncResponse:
    events = tuple((seq, b"event %d" % seq) for seq in range(first, first + count))
    return SyncResponse(
        channel_id=ID,
        first_seq=first,
        leader_first_retained_seq=retained,
        request_id=asked.request_id,
        events=events,
    )


def nack_to(asked: SyncRequest, code: NackCode, first: int = 0) -> SyncNack:
    return SyncNack(
        channel_id=ID,
        since_seq=asked.since_seq,
        code=code,
        leader_first_retained_seq=first,
        request_id=asked.request_id,
    )


# ── roles and heartbeats ────────────────────────────────────────────────────────────────────


def test_replication_starts_by_itself() -> None:
    node = Node()
    assert node.out.notices == [RoleChanged(Role.REPLICA, Signal.CAPABILITY_SELECTED, TagEffect.ANNOUNCE, 0)]
    node.tick(3)
    assert node.signals() == [Signal.MISSED_HEARTBEATS, Signal.ELECTION_WON]


def test_heartbeats_carry_what_is_on_disk() -> None:
    node = Node()
    node.lead()
    node.do(node.core.append(1, [b"a", b"b"]), sync=False)
    node.tick()
    assert [(beat.tail_seq, beat.role) for beat in node.sent(SyncHeartbeat)] == [(0, Role.LEADER)] * 2
    node.do(node.core.durable(1))
    node.tick()
    assert [beat.tail_seq for beat in node.sent(SyncHeartbeat)] == [2, 2]
    assert node.sent(SyncHeartbeat)[0].wall_clock_ms == 1_700_000_002_500


def test_a_silent_leader_is_replaced_and_one_that_beats_is_not() -> None:
    node = Node()
    for _ in range(9):
        node.hear(2, 0)
        node.tick()
        assert node.core.role == Role.REPLICA
    node.tick(2)
    assert node.signals() == [Signal.MISSED_HEARTBEATS, Signal.ELECTION_WON]


def test_a_nearer_member_with_a_lower_id_is_elected_instead() -> None:
    node = Node(own=3)
    node.core.measured(1, 0)
    node.hear(1, 0, Role.REPLICA)
    node.tick(2)
    node.hear(1, 0, Role.REPLICA)
    node.tick()
    assert node.signals() == [Signal.MISSED_HEARTBEATS, Signal.ELECTION_LOST]


@pytest.mark.parametrize("case", load("subprotocols")["dual_leader"]["cases"])
def test_of_two_leaders_one_concedes(case: dict[str, int]) -> None:
    node = Node(own=case["own_id"], nodes=(case["own_id"], case["peer_id"]))
    node.lead(*[b""] * case["own_tail"])
    node.hear(case["peer_id"], case["peer_tail"])
    assert (node.core.role == Role.LEADER) == case["keeps"]
    if not case["keeps"]:
        assert node.signals() == [Signal.PEER_LEADER_OBSERVED]
        assert node.core.belief.leader == case["peer_id"]


def test_illegal_changes_of_the_role_are_refused() -> None:
    node = Node()
    assert node.core.change_role(Role.LEADER, Signal.ELECTION_WON, Out()) == Verdict.INVALID_PAIR
    assert node.core.change_role(Role.IDLE, Signal.ELECTION_WON, Out()) == Verdict.SIGNAL_MISMATCH
    assert node.core.role == Role.REPLICA


@pytest.mark.parametrize("role", [Role.REPLICA, Role.LEADER])
def test_a_failed_disk_withdraws(role: Role) -> None:
    node = Node()
    if role == Role.LEADER:
        node.lead()
        node.do(node.core.append(7, [b"a"]), sync=False)
    node.do(node.core.disk_failed())
    assert (node.core.role, node.core.next_timer()) == (Role.IDLE, None)
    unresolved = [notice for notice in node.out.notices if isinstance(notice, Unresolved)]
    assert len(unresolved) == (role == Role.LEADER)
    node.tick()
    assert node.out.sends == []


def test_closing_withdraws() -> None:
    node = Node()
    assert node.core.next_timer() == 0.5
    node.do(node.core.close())
    assert node.out.notices == [RoleChanged(Role.IDLE, Signal.CHANNEL_CLOSE, TagEffect.WITHDRAW, 0)]


# ── the leader's side ───────────────────────────────────────────────────────────────────────


def test_an_idle_node_answers_as_the_reference_does() -> None:
    observed = load("subprotocols")["redex"]["observed"]["idle_node"]
    node = Node()
    asked = decode_redex(bytes.fromhex(observed["sent"]))
    assert isinstance(asked, SyncRequest)
    node.receive(2, asked)
    assert [encode_redex(nack).hex() for nack in node.sent(SyncNack)] == [observed["reply"]]


def test_a_leader_answers_as_the_reference_does() -> None:
    observed = load("subprotocols")["redex"]["observed"]["leader"]
    node = Node()
    node.lead(*[payload.encode() for payload in observed["log"]])
    captured = {row["step"]: row["hex"] for row in observed["captured"]}
    for step, raw in observed["requests"].items():
        asked = decode_redex(bytes.fromhex(raw))
        assert isinstance(asked, SyncRequest)
        node.receive(2, asked)
        assert encode_redex(node.sent(SyncResponse)[0]).hex() == captured[step]


def test_events_that_are_not_on_disk_are_not_served() -> None:
    node = Node()
    node.lead(b"a")
    node.do(node.core.append(1, [b"b"]), sync=False)
    node.receive(2, request())
    assert node.sent(SyncResponse)[0].events == ((0, b"a"),)


def test_a_used_up_budget_is_backpressure() -> None:
    node = Node(budget_fraction=1e-6)
    node.lead(bytes(100))
    node.receive(2, request())
    assert len(node.sent(SyncResponse)) == 1
    node.receive(2, request())
    assert [nack.code for nack in node.sent(SyncNack)] == [NackCode.BACKPRESSURE]
    assert node.core.seat.counters.get("drop", "replica_over_budget") == 1


def test_appends_are_acknowledged_by_the_leaders_disk_and_refused_elsewhere() -> None:
    node = Node(max_waiting_events=2)
    node.do(node.core.append(1, [b"a"]))
    assert node.out.notices == [Refused(1, Refusal.NOT_LEADER)]
    node.lead()
    node.do(node.core.append(2, [b"a", b"b"]), sync=False)
    assert node.out.notices == []
    node.do(node.core.append(3, [b"c"]))
    assert node.out.notices == [Refused(3, Refusal.BACKPRESSURE)]
    node.do(node.core.durable(1))
    assert node.out.notices == [Acknowledged(2, 0, 2, Acks.LOCAL, True)]
    node.do(node.core.append(4, [bytes(MAX_REPLICATED + 1)]))
    assert node.out.notices == [Refused(4, Refusal.TOO_LARGE)]


# ── the replica's side ──────────────────────────────────────────────────────────────────────


def test_a_replica_asks_for_what_fits_one_packet_and_goes_on_at_once() -> None:
    node = Node()
    asked = node.ask()
    assert (asked.since_seq, asked.chunk_max) == (0, 8041)
    node.receive(2, answer_to(asked, 0, 40))
    assert node.disk.content.tail == 40
    assert [found.since_seq for found in node.sent(SyncRequest)] == [40]


def test_a_replica_that_has_everything_asks_for_nothing() -> None:
    node = Node()
    node.hear(2, 0)
    node.tick()
    assert node.sent(SyncRequest) == []


UNWANTED: list[tuple[str, Callable[[SyncRequest], tuple[int, RedexMessage]]]] = [
    ("another id", lambda _asked: (2, answer_to(request(), 0, 1))),
    ("another sender", lambda asked: (3, answer_to(asked, 0, 1))),
    ("not from the first on", lambda asked: (2, SyncResponse(
        channel_id=ID, first_seq=0, leader_first_retained_seq=0, request_id=asked.request_id, events=((1, b""),)))),
    ("a nack with another id", lambda _asked: (2, nack_to(request(), NackCode.CHANNEL_CLOSED))),
    ("a nack of another sender", lambda asked: (3, nack_to(asked, NackCode.CHANNEL_CLOSED))),
]  # fmt: skip


@pytest.mark.parametrize(("_what", "make"), UNWANTED, ids=[what for what, _ in UNWANTED])
def test_an_answer_that_was_not_asked_for_changes_nothing(
    _what: str, make: Callable[[SyncRequest], tuple[int, RedexMessage]]
) -> None:
    node = Node()
    node.receive(*make(node.ask()))
    assert (node.disk.content.tail, node.core.role) == (0, Role.REPLICA)
    assert node.core.seat.counters.get("drop", "replica_unexpected") == 1


def test_an_answer_counts_once_and_for_thirty_seconds() -> None:
    node = Node()
    asked = node.ask()
    node.receive(2, answer_to(asked, 0, 1))
    node.receive(2, answer_to(asked, 1, 1))
    assert node.disk.content.tail == 1
    late = node.ask()
    node.now += 30
    node.receive(2, answer_to(late, 1, 1))
    assert node.disk.content.tail == 1


def test_a_leader_ignores_answers_to_earlier_requests() -> None:
    node = Node()
    asked = node.ask()
    node.tick(3)
    assert node.core.role == Role.LEADER
    node.receive(2, answer_to(asked, 0, 1))
    assert node.disk.content.tail == 0


def test_events_that_the_leader_no_longer_has_leave_a_gap() -> None:
    node = Node()
    node.receive(2, answer_to(node.ask(), 50, 2, retained=50))
    assert [notice for notice in node.out.notices if isinstance(notice, Gap)] == [Gap(0, 50)]
    assert (node.disk.content.first, node.disk.content.tail) == (50, 52)


def test_not_leader_makes_the_replica_look_for_another() -> None:
    node = Node()
    node.receive(2, nack_to(node.ask(), NackCode.NOT_LEADER))
    assert node.core.belief.leader is None
    node.hear(3, 100)
    node.tick()
    assert [send.to for send in node.out.sends if isinstance(send.message, SyncRequest)] == [3]


def test_a_bad_range_is_skipped() -> None:
    node = Node()
    node.receive(2, nack_to(node.ask(), NackCode.BAD_RANGE, first=80))
    assert node.out.notices == [Gap(0, 80)]
    node.tick()
    assert node.sent(SyncRequest)[0].since_seq == 80
    node.receive(2, nack_to(node.sent(SyncRequest)[0], NackCode.BAD_RANGE))
    assert node.out.notices == [Gap(80, 81)]


def times_of_requests(node: Node, reply: Callable[[SyncRequest], RedexMessage], seconds: int) -> list[float]:
    found = []
    for _ in range(2 * seconds):
        node.hear(2, 100)
        node.tick()
        for asked in node.sent(SyncRequest):
            found.append(node.now)
            node.receive(2, reply(asked))
    return found


def test_backpressure_is_retried_with_growing_delays() -> None:
    times = times_of_requests(Node(), lambda asked: nack_to(asked, NackCode.BACKPRESSURE), 130)
    assert times == [0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5, 121.5]


def test_empty_answers_of_a_leader_that_claims_more_are_retried_with_growing_delays() -> None:
    times = times_of_requests(Node(), lambda asked: answer_to(asked, 0, 0), 30)
    assert times == [0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0]


def test_a_closed_channel_ends_the_replica() -> None:
    node = Node()
    node.receive(2, nack_to(node.ask(), NackCode.CHANNEL_CLOSED))
    assert node.signals() == [Signal.CHANNEL_CLOSE]
    assert node.core.next_timer() is None


# ── together ────────────────────────────────────────────────────────────────────────────────


def test_three_nodes_agree_on_one_leader_and_a_long_log_is_copied() -> None:
    nodes = {own: Node(own) for own in (1, 2, 3)}
    sent: list[RedexMessage] = []

    def exchange(steps: int) -> None:
        for _ in range(steps):
            for node in nodes.values():
                node.tick()
                waiting = [(node.core.seat.own, send) for send in node.out.sends]
                while waiting:
                    source, send = waiting.pop(0)
                    assert not isinstance(send.message, bytes)
                    message = decode_redex(encode_redex(send.message))  # type: ignore[arg-type]
                    sent.append(message)  # type: ignore[arg-type]
                    target = nodes[send.to]
                    target.receive(source, message)  # type: ignore[arg-type]
                    waiting += [(send.to, more) for more in target.out.sends]

    exchange(6)
    (leader,) = [node for node in nodes.values() if node.core.role == Role.LEADER]
    leader.do(leader.core.append(1, [b"%500d" % number for number in range(400)]))
    exchange(4)
    logs = [node.disk.content.events for node in nodes.values()]
    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) == 400
    assert {type(message) for message in sent} <= {SyncHeartbeat, SyncRequest, SyncResponse, SyncNack}


def test_requests_that_wait_for_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_MAX_REQUESTS", 3)
    node = Node()
    node.core._forget_requests()
    for number in range(8):
        node.core._requests.put(number, (2, 0.0))
    assert len(node.core._requests) == 3
