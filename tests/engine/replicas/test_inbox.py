from __future__ import annotations

import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.replicas.inbox import MAX_ANSWERS, MAX_QUESTIONS, Inbox
from meshbus.policy.reason import Reason
from meshbus.wire.messages.redex import (
    NackCode,
    RedexMessage,
    Role,
    SyncHeartbeat,
    SyncNack,
    SyncRequest,
    SyncResponse,
    encode_redex,
)

HERE, ELSEWHERE = bytes(32), bytes([1]) * 32
MEMBER, STRANGER = 1, 9


def request(channel: bytes = HERE) -> SyncRequest:
    return SyncRequest(channel_id=channel, since_seq=5, chunk_max=0, request_id=77)


def beat(channel: bytes = HERE) -> SyncHeartbeat:
    return SyncHeartbeat(channel_id=channel, tail_seq=1, role=Role.REPLICA, wall_clock_ms=0)


def response() -> SyncResponse:
    return SyncResponse(channel_id=HERE, first_seq=0, leader_first_retained_seq=0, request_id=1)


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def inbox(counters: Counters) -> Inbox:
    found = Inbox(counters)
    found.open(HERE, frozenset({MEMBER, 2}))
    return found


CAUSES = [
    pytest.param(MEMBER, ELSEWHERE, NackCode.CHANNEL_CLOSED, Reason.REPLICATION_UNKNOWN_CHANNEL, id="unknown channel"),
    pytest.param(STRANGER, HERE, NackCode.NOT_LEADER, Reason.REPLICA_NOT_MEMBER, id="not a member"),
]


@pytest.mark.parametrize(("sender", "channel", "code", "reason"), CAUSES)
def test_a_rejected_request_is_answered_with_its_cause(
    inbox: Inbox, counters: Counters, sender: int, channel: bytes, code: NackCode, reason: Reason
) -> None:
    nack = inbox.put(sender, encode_redex(request(channel)))
    assert nack is not None
    assert (nack.code, nack.channel_id, nack.since_seq, nack.request_id) == (code, channel, 5, 77)
    assert nack.detail
    assert inbox.put(sender, encode_redex(beat(channel))) is None, "only requests are answered"
    assert counters.get(*reason.counter) == 2
    assert inbox.take() is None


def test_a_full_queue_is_backpressure(inbox: Inbox, counters: Counters) -> None:
    for _ in range(MAX_QUESTIONS):
        assert inbox.put(MEMBER, encode_redex(request())) is None
    nack = inbox.put(MEMBER, encode_redex(request()))
    assert nack is not None
    assert nack.code == NackCode.BACKPRESSURE
    for _ in range(MAX_ANSWERS + 3):
        assert inbox.put(MEMBER, encode_redex(response())) is None, "answers have room of their own"
    assert counters.get(*Reason.REPLICATION_QUEUE_FULL.counter) == 4


def test_answers_are_served_first(inbox: Inbox) -> None:
    nack = SyncNack(channel_id=HERE, since_seq=0, code=NackCode.NOT_LEADER, request_id=1)
    sent: list[RedexMessage] = [beat(), request(), response(), nack]
    for message in sent:
        inbox.put(2, encode_redex(message))
    taken = [inbox.take() for _ in range(5)]
    assert taken == [(2, response()), (2, nack), (2, beat()), (2, request()), None]


def test_unreadable_and_reserved_messages_are_counted_and_not_answered(inbox: Inbox, counters: Counters) -> None:
    for event in (b"", b"\x00\x0e", encode_redex(request())[:47], b"\x00\x05" + encode_redex(request())[2:]):
        assert inbox.put(MEMBER, event) is None
    for code in range(0x24, 0x30):
        assert inbox.put(MEMBER, b"\x00\x0e" + bytes([code])) is None
    assert counters.get(*Reason.REPLICATION_MALFORMED.counter) == 4
    assert counters.get(*Reason.REPLICATION_RESERVED.counter) == 12
    assert inbox.take() is None


def test_the_documented_short_request_is_accepted_where_it_is_allowed(counters: Counters) -> None:
    inbox = Inbox(counters, compat_47=True)
    inbox.open(HERE, frozenset({MEMBER}))
    assert inbox.put(MEMBER, encode_redex(request())[:47]) is None
    assert inbox.take() == (MEMBER, SyncRequest(channel_id=HERE, since_seq=5, chunk_max=0, request_id=0))


def test_a_closed_channel_is_unknown(inbox: Inbox) -> None:
    inbox.close(HERE)
    nack = inbox.put(MEMBER, encode_redex(request()))
    assert nack is not None
    assert nack.code == NackCode.CHANNEL_CLOSED
