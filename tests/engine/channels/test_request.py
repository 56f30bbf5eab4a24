"""Request and reply between two engines over a stream without loss."""

from __future__ import annotations

import random
from collections import deque

import pytest

from meshbus.engine.base.notices import (
    Control,
    DownReason,
    EndReason,
    PeerFailed,
    PeerGone,
    Replied,
    Requested,
    RequestEnded,
    RequestFailed,
    RequestFault,
)
from meshbus.engine.base.packets import Output
from meshbus.engine.channels import request as request_module
from meshbus.engine.channels.request import Requests
from meshbus.engine.services import SERVICES
from meshbus.engine.session.peer import Peer
from meshbus.errors import Backpressure, DeliveryError, LocalProtocolError, PeerError
from meshbus.names.channel import ChannelName
from meshbus.policy.reason import Reason
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.rig import replaced, rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.request import (
    MAX_REPLY_PAYLOAD,
    Cancel,
    Reply,
    ReplyStatus,
    Request,
    decode_request,
    encode_request,
)
from tests.engine.wires import FarEnd

PLAN, OTHER, SECRET, UNHEARD_OF, HASTY = map(ChannelName, ("planner/plan", "other", "secret", "unheard-of", "hasty"))
ALICE, BOB = 10, 20
LIMIT = 20_000
"""The largest request and reply of every channel here."""


class Side:
    """One node of two; what it sends waits in `wire` until it is carried over."""

    def __init__(self, node_id: int, *others: int) -> None:
        self.node_id = node_id
        self.wire: deque[tuple[int, bytes]] = deque()
        self.blocked = False
        by_hand = replaced(
            SERVICES, Subprotocol.REQUEST, lambda context: Requests(context, self.send, self.judge, lambda _: LIMIT)
        )
        engine = rig(node_id=node_id, seed=node_id, table=by_hand)
        self.peers, self.counters = engine.peers, engine.counters
        self.requests = engine.requests
        self.requester, self.responder = self.requests.requester, self.requests.responder
        self.out = Output()
        for other in others:
            peer = FarEnd(self.peers, other).peer
            peer.negotiated = NegotiatedSet(frozenset({Subprotocol.RELIABLE, Subprotocol.REQUEST}))

    def send(self, peer: Peer, subprotocol_id: int, message: bytes, _now: float, out: Output) -> None:
        assert subprotocol_id == Subprotocol.REQUEST
        assert out is self.out
        if self.blocked:
            raise Backpressure(0, len(message))
        self.wire.append((peer.node_id, message))

    @staticmethod
    def judge(_peer: Peer, channel: ChannelName, _now: float) -> AckReason:
        reasons = {
            SECRET: AckReason.UNAUTHORIZED,
            UNHEARD_OF: AckReason.UNKNOWN_CHANNEL,
            HASTY: AckReason.RATE_LIMITED,
        }
        return reasons.get(channel, AckReason.NONE)

    def peer(self, node_id: int) -> Peer:
        return self.peers.require(node_id)

    def ask(self, to: int, channel: str = PLAN, payload: bytes = b"?", now: float = 0.0, timeout_s: float = 2.0) -> int:
        return self.requester.ask(self.peer(to), ChannelName(channel), payload, now, self.out, timeout_s=timeout_s)

    def hear(self, sender: int, message: bytes, now: float = 0.0) -> list[Control]:
        self.requests.receive(self.peer(sender), message, now, self.out)
        return self.told()

    def told(self) -> list[Control]:
        """What happened since the last look."""
        told, self.out = self.out.control, Output()
        return told

    def tick(self, now: float) -> list[Control]:
        self.requests.tick(now, self.out)
        return self.told()


def carry(sender: Side, receiver: Side, now: float = 0.0) -> list[Control]:
    """Bring over all that was sent from one side to the other, and give what it told there."""
    told: list[Control] = []
    while sender.wire:
        to, message = sender.wire.popleft()
        assert to == receiver.node_id
        told += receiver.hear(sender.node_id, message, now)
    return told


def pair() -> tuple[Side, Side]:
    alice, bob = Side(ALICE, BOB), Side(BOB, ALICE)
    bob.responder.serve(PLAN)
    return alice, bob


# ── asking and answering ────────────────────────────────────────────────────────────────────


def test_a_request_is_answered() -> None:
    alice, bob = pair()
    request = alice.ask(BOB, payload=b"how?", now=1.0, timeout_s=2.0)
    assert carry(alice, bob, 1.1) == [Requested(ALICE, request, PLAN, b"how?", 1.1 + 2.0)]
    assert (len(alice.requester), len(bob.responder)) == (1, 1)
    assert bob.responder.reply(ALICE, request, b"so", 1.5, bob.out)
    assert carry(bob, alice, 1.6) == [Replied(request, BOB, b"so", last=True)]
    assert (len(alice.requester), len(bob.responder)) == (0, 0)
    assert alice.requests.next_timer() is None
    assert bob.requests.next_timer() is None


def test_a_long_reply_takes_several_messages() -> None:
    alice, bob = pair()
    request = alice.ask(BOB)
    carry(alice, bob)
    for number in range(5):
        assert bob.responder.reply(ALICE, request, bytes([number]), 0.1, bob.out, last=number == 4)
    assert not bob.responder.reply(ALICE, request, b"more", 0.1, bob.out)
    assert carry(bob, alice) == [Replied(request, BOB, bytes([n]), last=n == 4) for n in range(5)]
    assert bob.counters.get("drop", "answer_late") == 1


def test_a_failed_responder_reports_the_reason() -> None:
    alice, bob = pair()
    request = alice.ask(BOB)
    carry(alice, bob)
    assert bob.responder.fail(ALICE, request, "out of cheese " * 1000, 0.1, bob.out)
    [failed] = carry(bob, alice)
    assert isinstance(failed, RequestFailed)
    assert failed.fault is RequestFault.FAILED
    assert failed.problem == ("out of cheese " * 1000)[:MAX_REPLY_PAYLOAD]
    assert len(bob.responder) == 0


@pytest.mark.parametrize(
    ("channel", "fault", "reason"),
    [
        (OTHER, RequestFault.NO_RESPONDER, Reason.REFUSE_REQUEST_NO_RESPONDER),
        (UNHEARD_OF, RequestFault.UNKNOWN_CHANNEL, Reason.REFUSE_REQUEST_UNKNOWN_CHANNEL),
        (SECRET, RequestFault.DENIED, Reason.REFUSE_REQUEST_DENIED),
        (HASTY, RequestFault.BUSY, Reason.REFUSE_REQUEST_BUSY),
    ],
)
def test_a_refusal_is_immediate_and_named(channel: str, fault: RequestFault, reason: Reason) -> None:
    alice, bob = pair()
    bob.responder.serve(SECRET)
    request = alice.ask(BOB, channel)
    assert carry(alice, bob) == []
    assert carry(bob, alice) == [RequestFailed(request, BOB, ChannelName(channel), fault)]
    assert alice.counters.get("request", fault) == 1
    assert bob.counters.get(*reason.counter) == 1
    assert len(bob.responder) == 0


def test_policy_hides_responders_from_peers_without_permission() -> None:
    alice, bob = pair()
    alice.ask(BOB, SECRET)
    carry(alice, bob)
    [told] = carry(bob, alice)
    assert isinstance(told, RequestFailed)
    assert told.fault is RequestFault.DENIED, "though nobody answers on it"


def test_a_channel_that_is_no_longer_served_has_no_responder() -> None:
    alice, bob = pair()
    first = alice.ask(BOB)
    carry(alice, bob)
    assert bob.responder.channels == {PLAN}
    bob.responder.stop(PLAN)
    second = alice.ask(BOB)
    carry(alice, bob)
    assert bob.responder.reply(ALICE, first, b"still", 0.1, bob.out), "what was taken can be answered"
    assert carry(bob, alice) == [
        RequestFailed(second, BOB, PLAN, RequestFault.NO_RESPONDER),
        Replied(first, BOB, b"still", last=True),
    ]


# ── time ────────────────────────────────────────────────────────────────────────────────────


def test_a_timeout_fails_the_request_and_cancels_it_at_the_responder() -> None:
    alice, bob = pair()
    request = alice.ask(BOB, now=1.0, timeout_s=2.0)
    carry(alice, bob, 1.5)
    assert alice.requests.next_timer() == 3.0
    assert alice.tick(2.9) == []
    assert alice.tick(3.0) == [RequestFailed(request, BOB, PLAN, RequestFault.TIMEOUT)]
    assert carry(alice, bob, 3.1) == [RequestEnded(ALICE, request, EndReason.CANCELED)]
    assert not bob.responder.reply(ALICE, request, b"late", 3.2, bob.out)


def test_a_late_reply_is_dropped_and_counted() -> None:
    alice, bob = pair()
    request = alice.ask(BOB, timeout_s=1.0)
    carry(alice, bob)
    bob.responder.reply(ALICE, request, b"slow", 0.9, bob.out)
    alice.tick(1.0)
    assert carry(bob, alice, 1.1) == []
    assert alice.counters.get("drop", "reply_late") == 1


def test_the_responder_drops_a_request_at_its_deadline() -> None:
    alice, bob = pair()
    request = alice.ask(BOB, timeout_s=1.0)
    carry(alice, bob, 5.0)
    assert bob.requests.next_timer() == 6.0
    assert bob.tick(6.0) == [RequestEnded(ALICE, request, EndReason.EXPIRED)]
    assert bob.counters.get("request", "unanswered") == 1
    assert not bob.wire
    assert len(bob.responder) == 0
    carry(alice, bob, 6.1)


def test_a_request_without_time_left_is_refused() -> None:
    alice, bob = pair()
    message = encode_request(Request(req=5, deadline_ms=0, channel=PLAN))
    assert bob.hear(ALICE, message) == []
    assert decode_request(bob.wire.pop()[1]) == Reply(req=5, status=ReplyStatus.EXPIRED)
    assert bob.counters.get(*Reason.REFUSE_REQUEST_EXPIRED.counter) == 1
    for timeout_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LocalProtocolError):
            alice.ask(BOB, timeout_s=timeout_s)


def test_times_are_rounded_up_and_capped() -> None:
    alice, _ = pair()
    for timeout_s, deadline_ms in ((0.0001, 1), (1e9, 0xFFFFFFFF)):
        alice.ask(BOB, timeout_s=timeout_s)
        sent = decode_request(alice.wire.pop()[1])
        assert isinstance(sent, Request)
        assert sent.deadline_ms == deadline_ms


# ── ending early ────────────────────────────────────────────────────────────────────────────


def test_a_canceled_request_ends_on_both_sides() -> None:
    alice, bob = pair()
    request = alice.ask(BOB)
    carry(alice, bob)
    assert alice.requester.cancel(request, 0.5, alice.out)
    assert not alice.requester.cancel(request, 0.5, alice.out)
    assert carry(alice, bob, 0.6) == [RequestEnded(ALICE, request, EndReason.CANCELED)]
    assert alice.requests.next_timer() is None
    assert bob.hear(ALICE, encode_request(Cancel(req=request))) == []
    assert bob.counters.get("drop", "cancel_late") == 1


def test_removing_a_peer_ends_all_its_requests() -> None:
    alice = Side(ALICE, BOB, 30)
    bob = Side(BOB, ALICE, 30)
    bob.responder.serve(PLAN)
    asked = [alice.ask(BOB), alice.ask(BOB)]
    elsewhere = alice.ask(30)
    alice.wire.pop()
    carry(alice, bob)
    bob.hear(30, encode_request(Request(req=7, deadline_ms=1000, channel=PLAN)))
    alice.requests.peer_down(PeerGone(BOB, DownReason.CLOSED), 0.0, alice.out)
    bob.requests.peer_down(PeerFailed(ALICE, DownReason.SILENT), 0.0, bob.out)
    assert alice.told() == [RequestFailed(request, BOB, PLAN, RequestFault.PEER_GONE) for request in asked]
    assert bob.told() == [RequestEnded(ALICE, request, EndReason.PEER_GONE) for request in asked]
    assert alice.tick(9.0) == [RequestFailed(elsewhere, 30, PLAN, RequestFault.TIMEOUT)]
    assert len(bob.responder) == 1


def test_a_removed_peer_gets_no_more_messages() -> None:
    alice, bob = pair()
    request = alice.ask(BOB)
    carry(alice, bob)
    alice.peers.remove(BOB)
    bob.peer(ALICE).negotiated = NegotiatedSet()
    alice.tick(5.0)
    assert not alice.wire
    assert not bob.responder.reply(ALICE, request, b"", 0.1, bob.out)
    assert not bob.wire


# ── bounds and faults ───────────────────────────────────────────────────────────────────────


def test_requests_need_a_peer_with_the_agreement() -> None:
    alice, _ = pair()
    alice.peer(BOB).negotiated = NegotiatedSet()
    with pytest.raises(PeerError, match="does not accept requests"):
        alice.ask(BOB)
    assert not alice.wire


def test_open_requests_are_bounded_at_the_requester(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "MAX_PENDING", 3)
    alice, _ = pair()
    first, *_ = [alice.ask(BOB) for _ in range(3)]
    with pytest.raises(DeliveryError, match="3 requests already wait"):
        alice.ask(BOB)
    alice.requester.cancel(first, 0.1, alice.out)
    alice.ask(BOB)


def test_open_requests_are_bounded_at_the_responder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "MAX_SERVING", 3)
    monkeypatch.setattr(request_module, "MAX_SERVING_PER_PEER", 2)
    bob = Side(BOB, ALICE, 30)
    bob.responder.serve(PLAN)

    def ask(sender: int, request: int) -> ReplyStatus | None:
        taken = bob.hear(sender, encode_request(Request(req=request, deadline_ms=1000, channel=PLAN)))
        if taken:
            return None
        reply = decode_request(bob.wire.pop()[1])
        assert isinstance(reply, Reply)
        return reply.status

    assert [ask(ALICE, request) for request in (1, 2, 3)] == [None, None, ReplyStatus.BUSY]
    assert [ask(30, request) for request in (1, 2)] == [None, ReplyStatus.BUSY]
    assert bob.responder.reply(ALICE, 1, b"", 0.1, bob.out)
    bob.wire.clear()
    assert ask(30, 2) is None
    bob.tick(9.0)
    assert ask(ALICE, 9) is None
    assert bob.counters.get("refuse", "request_busy") == 2


def test_a_repeated_request_is_handled_once() -> None:
    alice, bob = pair()
    alice.ask(BOB)
    message = alice.wire[0][1]
    assert len(bob.hear(ALICE, message)) == 1
    assert bob.hear(ALICE, message) == []
    assert bob.counters.get("drop", "request_duplicate") == 1


def test_replies_count_only_from_the_requested_peer() -> None:
    alice = Side(ALICE, BOB, 30)
    request = alice.ask(BOB)
    assert alice.hear(30, encode_request(Reply(req=request, payload=b"evil"))) == []
    assert alice.counters.get("drop", "reply_foreign") == 1
    assert alice.hear(BOB, encode_request(Reply(req=request, payload=b"good"))) != []


def test_request_numbers_do_not_repeat_after_a_restart() -> None:
    first, second = (rig(node_id=ALICE, seed=seed).requests.requester for seed in (1, 2))
    assert abs(first._next - second._next) > 1 << 32


def test_numbers_wrap_around() -> None:
    alice, _ = pair()
    alice.requester._next = 0xFFFFFFFFFFFFFFFF
    assert [alice.ask(BOB), alice.ask(BOB)] == [0xFFFFFFFFFFFFFFFF, 0]


def test_a_full_stream_is_an_error_for_the_caller_or_counted() -> None:
    alice, bob = pair()
    request = alice.ask(BOB)
    carry(alice, bob)
    alice.blocked = bob.blocked = True
    with pytest.raises(Backpressure):
        alice.ask(BOB)
    assert len(alice.requester) == 1, "a question that was not sent is not open"
    with pytest.raises(Backpressure):
        bob.responder.reply(ALICE, request, b"", 0.1, bob.out)
    assert len(bob.responder) == 1, "an answer that was not sent can be tried again"
    bob.hear(ALICE, encode_request(Request(req=1, deadline_ms=5, channel=OTHER)))
    assert bob.counters.get("drop", "refusal_unsent") == 1
    assert alice.requester.cancel(request, 0.2, alice.out)
    assert alice.counters.get("drop", "cancel_unsent") == 1


def test_a_request_that_is_too_large_is_refused() -> None:
    alice, bob = pair()
    with pytest.raises(LocalProtocolError, match=f"max_event_bytes is {LIMIT}"):
        alice.ask(BOB, payload=bytes(LIMIT + 1))
    assert len(alice.requester) == 0
    request = alice.ask(BOB, payload=bytes(LIMIT))
    carry(alice, bob)
    with pytest.raises(LocalProtocolError, match="a reply of"):
        bob.responder.reply(ALICE, request, bytes(LIMIT + 1), 0.1, bob.out)
    assert bob.responder.reply(ALICE, request, bytes(LIMIT), 0.1, bob.out)


def test_a_request_above_the_limit_of_the_responder_is_refused_with_a_sentence() -> None:
    _alice, bob = pair()
    bob.hear(ALICE, encode_request(Request(req=1, deadline_ms=5, channel=PLAN, payload=bytes(LIMIT + 1))))
    assert bob.counters.get("refuse", "large") == 1
    assert len(bob.responder) == 0
    reply = decode_request(bob.wire[0][1])
    assert isinstance(reply, Reply)
    assert reply.status is ReplyStatus.FAILED
    assert b"20001 bytes is too large" in reply.payload


def test_open_requests_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "MAX_SERVING_BYTES_PER_PEER", 3 * LIMIT)
    _alice, bob = pair()
    for number in range(5):
        bob.hear(ALICE, encode_request(Request(req=number, deadline_ms=5000, channel=PLAN, payload=bytes(LIMIT))))
    assert len(bob.responder) == 3
    assert bob.counters.get("refuse", "request_busy") == 2
    assert bob.responder.reply(ALICE, 0, b"", 0.1, bob.out)
    bob.hear(ALICE, encode_request(Request(req=9, deadline_ms=5000, channel=PLAN, payload=bytes(LIMIT))))
    assert len(bob.responder) == 3, "an answer makes room for another request"


def test_hostile_bytes_are_counted() -> None:
    alice, bob = pair()
    alice.ask(BOB)
    message = alice.wire[0][1]
    for damaged in (b"", b"\x09", message[:10], message[:15], b"\x02" + bytes(9) + b"\xff\x01"):
        assert bob.hear(ALICE, damaged) == []
    assert bob.counters.get("drop", "request_malformed") == 5
    rng = random.Random(3)
    for _ in range(3000):
        bob.hear(ALICE, bytes([rng.randrange(4)]) + rng.randbytes(rng.randrange(40)))
    assert len(bob.responder) <= 256
