"""Test the reliable streams with one peer: messages and their timing, new sessions, agreements, and lying peers."""

from __future__ import annotations

import pytest

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import StreamFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import MAX_STREAMS
from meshbus.engine.streams.reliable import MAX_ACKS, RESUME_S
from meshbus.engine.streams.reorder import ACK_DELAY_S
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.constants import PACKET_COST, Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.header import Header
from meshbus.wire.messages.reliable import (
    FIRST_SEQUENCE,
    Ack,
    Base,
    Fin,
    FinAck,
    ReliableMessage,
    Reset,
    ResetReason,
    decode_reliable,
    encode_reliable,
)
from tests.engine.ends import CHANNEL, ORIGIN, SERVED, STREAM, End, Ends
from tests.engine.fleet import numbered


def pass_message(end: End, message: ReliableMessage, now: float = 0.0) -> Output:
    """Pass a message about a stream to an end."""
    out = Output()
    end.delivery.receive(end.peer, memoryview(encode_reliable(message)), now, out)
    end.streams.received(now, out)
    return out


def messages_in(ends: Ends, out: Output, to: End) -> list[ReliableMessage]:
    """Return the messages about streams in an output, as an end reads them."""
    messages = []
    for train in out.trains:
        for datagram in train.datagrams():
            header, plain = to.peer.link.opener.open(datagram)
            if header.subprotocol_id == Subprotocol.RELIABLE:
                messages += [decode_reliable(frame) for frame in unpack_frames(plain, header.event_count)]
    return messages


def test_a_stream_starts_with_a_base_and_is_acknowledged_once_for_a_batch() -> None:
    ends = Ends()
    out = ends.left.send(numbered(20), reliable=True, pub_seq=500)
    answer, headers = ends.carry(out, ends.right)
    base, *data = headers
    assert base.subprotocol_id == Subprotocol.RELIABLE
    assert [header.sequence for header in data] == list(range(data[0].sequence, data[0].sequence + 20))
    assert data[0].sequence > FIRST_SEQUENCE
    (ack,) = messages_in(ends, answer, ends.left)
    assert ack == Ack(stream_id=STREAM, cumulative=data[-1].sequence + 1, free=1024)
    assert answer.events[0].pub_seq == 500


def test_acknowledgements_give_the_credit_back() -> None:
    ends = Ends()
    stream = ends.left.peer.tx_stream(STREAM)
    out = ends.left.send(numbered(20), reliable=True)
    assert stream.credit == stream.window - 20 * (PACKET_COST + 12)
    ends.settle(out, ends.right)
    assert stream.credit == stream.window
    assert ends.left.streams.next_timer() is None


@pytest.mark.parametrize("lost", range(6))
def test_a_retransmission_is_the_packet_again_under_a_new_nonce(lost: int) -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    events = numbered(6)
    place = lost + 1  # behind the BASE
    answer, first = ends.carry(left.send(events, reliable=True, priority=9), right, lost=[place])
    delivered = [payload for batch in answer.events for payload in batch.payloads()]
    assert delivered == events[:lost]
    answer.merge(right.tick(0.01))
    again, _ = ends.carry(answer, left, 0.01)
    again.merge(left.tick(5.0))
    answer, second = ends.carry(again, right, 5.0)
    repeated = next(header for header in second if header.sequence == first[place].sequence)
    differing = {f for f in Header.__struct_fields__ if getattr(repeated, f) != getattr(first[place], f)}
    assert differing == {"nonce"}
    assert repeated.counter > first[-1].counter
    assert (repeated.origin_hash, repeated.priority, repeated.hop_ttl, repeated.subnet_id) == (ORIGIN, 9, 8, 3)
    assert repeated.channel_hash == CHANNEL.hash & 0xFFFF
    assert delivered + [payload for batch in answer.events for payload in batch.payloads()] == events


def test_retransmissions_follow_a_change_of_the_channels_policy() -> None:
    ends = Ends()
    ends.settle(ends.left.send(numbered(1), reliable=True, priority=1), ends.right)
    ends.settle(ends.right.tick(0.1), ends.left, 0.1)
    lost = ends.left.send(numbered(1, first=1), reliable=True, priority=7, pub_seq=101)
    _, (header,) = ends.carry(lost, ends.right, lost=[0])
    assert header.priority == 7
    _, again = ends.carry(ends.left.tick(5.0), ends.right, 5.0)
    assert {h.priority for h in again if h.sequence == header.sequence} == {7}


def test_releasing_a_stream_notifies_its_sender_at_once() -> None:
    ends = Ends()
    right = ends.right
    right.traffic.hold(STREAM, 0.0, held=True)
    answer, _ = ends.carry(ends.left.send(numbered(20), reliable=True), right)
    (held,) = messages_in(ends, answer, ends.left)
    assert isinstance(held, Ack)
    assert held.free == 0
    assert right.streams.next_timer() is None
    right.traffic.hold(STREAM, 3.0, held=False)
    assert right.streams.next_timer() == 3.0
    (released,) = messages_in(ends, right.tick(3.0), ends.left)
    assert isinstance(released, Ack)
    assert (released.cumulative, released.free) == (held.cumulative, 1024)
    assert right.streams.next_timer() is None


def test_a_base_that_comes_last_delivers_under_the_streams_own_terms() -> None:
    ends = Ends()
    out = ends.left.send([b"a", b"b"], reliable=True, pub_seq=7)
    base, *data = out.trains
    out.trains[:] = data
    answer, _ = ends.carry(out, ends.right)
    assert answer.events == []
    late = Output()
    late.trains.append(base)
    answer, _ = ends.carry(late, ends.right)
    (batch,) = answer.events
    assert batch.payloads() == [b"a", b"b"]
    assert (batch.channel, batch.origin_hash, batch.pub_seq) == (CHANNEL, ORIGIN, 7)


def test_one_reliable_stream_carries_one_subprotocol() -> None:
    ends = Ends()
    ends.settle(ends.left.send([b"event"], reliable=True, stream_id=SERVED), ends.right)
    out = Output()
    ends.left.traffic.send_reliable(SERVED, b"message", 0.0, out)
    ends.carry(out, ends.right)
    assert ends.right.probe.served == []
    assert ends.right.counters.get("drop", "wrong_stream") == 1


# ── sessions ────────────────────────────────────────────────────────────────────────────────


def test_a_new_session_continues_without_loss_or_repetition() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    events = numbered(40)
    first = left.send(events[:20], reliable=True, pub_seq=0)
    answer, _ = ends.carry(first, right, lost=[3, 9])  # and the answer is lost
    delivered = [payload for batch in answer.events for payload in batch.payloads()]
    assert 0 < len(delivered) < 20
    ends.new_session(1.0)
    waiting = left.send(events[20:], 1.0, reliable=True, pub_seq=20)
    assert waiting.trains == []  # nobody knows yet whether the peer still speaks this
    assert left.tick(3.0).trains == []
    agreed, _ = ends.agree(3.0)
    now = 3.0
    delivered += ends.settle(agreed, right, now)
    for _ in range(300):
        now += 0.01
        delivered += ends.settle(right.tick(now), left, now)
        delivered += ends.settle(left.tick(now), right, now)
    assert delivered == events
    stream = left.peer.tx_stream(STREAM)
    assert stream.credit == stream.window


def test_what_is_on_the_way_counts_in_the_credit_of_a_new_session() -> None:
    ends = Ends()
    stream = ends.left.peer.tx_stream(STREAM)
    ends.left.send(numbered(20), reliable=True)
    spent = stream.window - stream.credit
    assert spent > 0
    ends.new_session(1.0)
    assert stream.credit == stream.window - spent
    out, _ = ends.agree(1.0)
    now, delivered = 1.0, ends.settle(out, ends.right, 1.0)
    for _ in range(100):
        now += 0.05
        delivered += ends.settle(ends.left.tick(now), ends.right, now)
    assert delivered == numbered(20)
    assert stream.credit == stream.window


def test_an_idle_stream_continues_in_a_new_session() -> None:
    ends = Ends()
    delivered = ends.settle(ends.left.send(numbered(10), reliable=True), ends.right)
    ends.new_session(1.0)
    for out, to in zip(ends.agree(1.0), (ends.right, ends.left), strict=True):
        ends.settle(out, to, 1.0)
    delivered += ends.settle(ends.left.send(numbered(10, first=10), 1.0, reliable=True, pub_seq=110), ends.right, 1.0)
    assert delivered == numbered(20)
    assert ends.right.counters.get("restart", "new_stream") == 0


def test_packets_of_the_side_that_agreed_first_count_once() -> None:
    """One side uses the agreement before the other does: its packets are sent again, and count once."""
    ends = Ends(profile=False)
    left, right = ends.left, ends.right
    left.peer.negotiated = NegotiatedSet(frozenset({Subprotocol.RELIABLE}))
    out = left.send(numbered(3), reliable=True)
    early = Output()
    early.trains += out.trains[1:]  # the BASE does not get past the core, which knows of no agreement either
    answer, _ = ends.carry(early, right)
    assert answer.events == []
    assert right.counters.get("drop", "not_negotiated") == 3
    assert right.probe.missed == 3
    ends.agree(1.0)
    now, delivered = 1.0, list[bytes]()
    for _ in range(100):
        now += 0.05
        delivered += ends.settle(left.tick(now), right, now)
        delivered += ends.settle(right.tick(now), left, now)
    assert delivered == numbered(3)


def test_the_side_that_agreed_last_is_treated_as_a_plain_peer() -> None:
    ends = Ends(profile=False)
    ends.right.peer.negotiated = NegotiatedSet(frozenset({Subprotocol.RELIABLE}))
    answer, _ = ends.carry(ends.left.send(numbered(3), reliable=True), ends.right)
    assert [payload for batch in answer.events for payload in batch.payloads()] == numbered(3)


def test_a_peer_that_returns_as_plain_receives_nothing_of_the_profile() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    ends.carry(left.send(numbered(5), reliable=True), right, lost=range(10))
    left.traffic.send_reliable(SERVED, b"lost", 0.0, Output())
    ends.new_session(10.0)
    sent = Output()
    for now in (10.0, 12.0, 20.0, 24.9):
        sent.merge(left.tick(now))
    sent.merge(left.send([b"waits"], 12.0, reliable=True, deadline=1e9))
    sent.merge(left.send([b"plain"], 12.0, stream_id=77))
    left.traffic.send_reliable(SERVED, b"waits too", 12.0, sent)
    sent.merge(left.tick(10.0 + RESUME_S))
    assert [(f.node_id, f.stream_id) for f in sent.control if isinstance(f, StreamFailed)] == [
        (right.node_id, STREAM),
        (right.node_id, SERVED),
    ]
    answer, headers = ends.carry(sent, right, 30.0)
    assert {header.subprotocol_id for header in headers} == {Subprotocol.EVENTS}
    assert {header.sequence < FIRST_SEQUENCE for header in headers} == {True}
    assert sorted(payload for batch in answer.events for payload in batch.payloads()) == [b"plain", b"waits"]
    assert left.counters.get("fail", "reliable_stream") == 2


# ── ends ────────────────────────────────────────────────────────────────────────────────────


def test_a_receiver_that_never_answers_fails_the_stream_which_starts_anew() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    left.send(numbered(3), reliable=True)
    failed: list[StreamFailed] = []
    now = 0.0
    while not failed:
        now += 0.5
        out = left.tick(now)
        failed = [event for event in out.control if isinstance(event, StreamFailed)]
        assert now < 60
    assert failed[0].node_id == right.node_id
    assert "12 times" in failed[0].problem
    assert left.streams.next_timer() is None
    assert ends.settle(left.send(numbered(3), now, reliable=True), right, now) == numbered(3)


def test_the_receiver_may_end_a_stream() -> None:
    ends = Ends()
    left = ends.left
    left.send(numbered(3), reliable=True)
    out = pass_message(left, Reset(stream_id=STREAM, reason=ResetReason.REFUSED))
    assert [event.stream_id for event in out.control if isinstance(event, StreamFailed)] == [STREAM]
    pass_message(left, Reset(stream_id=STREAM, reason=ResetReason.REFUSED))
    assert left.counters.get("drop", "reliable_unknown_stream") == 1


def test_the_sender_may_end_a_stream() -> None:
    ends = Ends()
    ends.carry(ends.left.send(numbered(3), reliable=True), ends.right, lost=[1])
    pass_message(ends.right, Reset(stream_id=STREAM, reason=ResetReason.GAVE_UP))
    assert ends.right.streams.next_timer() is None


def test_a_stream_that_was_closed_is_confirmed_and_forgotten() -> None:
    ends = Ends()
    out = ends.left.send(numbered(3), reliable=True)
    _, headers = ends.carry(out, ends.right)
    total = headers[-1].sequence + 1
    for _ in range(2):  # the confirmation may be lost
        answer = pass_message(ends.right, Fin(stream_id=STREAM, total=total))
        assert messages_in(ends, answer, ends.left) == [FinAck(stream_id=STREAM, total=total)]
    assert ends.right.streams.next_timer() is None
    pass_message(ends.left, FinAck(stream_id=12345, total=1))
    assert ends.left.counters.get("drop", "reliable_unknown_stream") == 1


# ── liars ───────────────────────────────────────────────────────────────────────────────────


def test_hostile_acknowledgements_change_nothing_for_the_honest_stream() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    out = left.send(numbered(10), reliable=True)
    stream = left.peer.tx_stream(STREAM)
    credit = stream.credit
    top = (1 << 64) - 1
    for message in (
        Ack(stream_id=99, cumulative=1, free=5),
        Ack(stream_id=STREAM, cumulative=top, free=top >> 32),
        Ack(stream_id=STREAM, cumulative=0, free=0, ranges=((top, 0xFFFFFFFF),)),
        Ack(stream_id=STREAM, cumulative=0, free=7, ranges=((0, 0xFFFFFFFF),) * 32),
    ):
        pass_message(left, message)
    assert left.counters.get("drop", "ack_unknown_stream") == 1
    assert left.counters.get("drop", "bad_ack") > 0
    assert stream.credit == credit
    delivered = ends.settle(out, right)
    now = 0.0
    for _ in range(100):
        now += 0.1
        delivered += ends.settle(left.tick(now), right, now)
        delivered += ends.settle(right.tick(now), left, now)
    assert delivered == numbered(10)


def test_numbers_of_many_streams_in_one_packet_cause_few_answers() -> None:
    ends = Ends()
    ends.settle(ends.left.send(numbered(3), reliable=True), ends.right)
    right, out, now = ends.right, Output(), 0.0
    for stream_id in range(300):
        base = Base(stream_id=stream_id, sequence=FIRST_SEQUENCE + 5, pub_seq=1)
        right.delivery.receive(right.peer, memoryview(encode_reliable(base)), now, out)
    right.streams.received(now, out)
    sizes = [len(datagram) for train in out.trains for datagram in train.datagrams()]
    assert len(sizes) <= 4
    assert sum(sizes) < 300 * 26
    # The others are acknowledged a little later, each once.
    acks = [len(sizes)]
    for _ in range(10):
        now += ACK_DELAY_S
        later = right.tick(now)
        acks.append(sum(len(list(train.datagrams())) for train in later.trains))
    assert 0 < sum(acks[1:]) <= 16
    assert acks[-1] == 0


def test_a_full_table_of_sending_streams_makes_the_next_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.engine.streams.reliable.MAX_STREAMS", 3)
    ends = Ends()
    ends.settle(ends.left.send(numbered(1), reliable=True), ends.right)
    reliable, out = ends.left.streams.traffic_of(ends.left.peer).reliable, Output()
    for stream_id in (901, 902):
        sequence = reliable.prepare(Header(stream_id=stream_id), None, 1.0, out)
        reliable.sent_one(stream_id, sequence, b"payload", 0, 1.0)
    assert reliable.sends(901)
    assert reliable.sends(902)
    assert reliable.room(903) == 0
    reliable.abandon(901, out)
    assert reliable.room(903)


def test_hostile_bases_fill_a_bounded_table() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    ends.settle(left.send(numbered(3), reliable=True), right)
    ends.settle(right.tick(0.1), left, 0.1)
    for stream_id in range(2 * MAX_STREAMS):
        pass_message(right, Base(stream_id=stream_id, sequence=FIRST_SEQUENCE + 5, pub_seq=1, start=True))
    assert right.counters.get("drop", "too_many_streams") == MAX_STREAMS + 1
    for base in (
        Base(stream_id=5, sequence=0, pub_seq=0, start=True),
        Base(stream_id=5, sequence=(1 << 64) - 1, pub_seq=None, start=True),
        Base(stream_id=5, sequence=1, pub_seq=(1 << 64) - 2, start=False),
    ):
        pass_message(right, base)
    assert right.counters.get("drop", "bad_base") == 3
    # The stream that was pushed out goes on: its sender starts it again.
    now = 1.0
    delivered = ends.settle(left.send(numbered(3, first=3), now, reliable=True, pub_seq=103), right, now)
    for _ in range(50):
        now += 0.1
        delivered += ends.settle(left.tick(now), right, now)
        delivered += ends.settle(right.tick(now), left, now)
    assert delivered == numbered(3, first=3)


def test_unreadable_messages_are_counted() -> None:
    ends = Ends()
    for message in (b"", b"\0", b"\1" + bytes(5), b"\xff" * 30):
        ends.right.delivery.receive(ends.right.peer, memoryview(message), 0.0, Output())
    assert ends.right.counters.get("drop", "reliable_malformed") == 4


def test_a_sender_keeps_a_bounded_number_of_streams() -> None:
    ends = Ends()
    left, right = ends.left, ends.right
    for n in range(MAX_STREAMS + 10):
        ends.settle(left.send([b"x"], reliable=True, stream_id=n + 1), right)
        ends.settle(right.tick(1.0), left, 1.0)
    assert len(left.traffic.reliable._sending) <= MAX_STREAMS


def test_a_callback_is_called_when_everything_is_acknowledged() -> None:
    ends, told = Ends(), list[str | None]()
    reliable = ends.left.traffic.reliable
    assert not reliable.sends(STREAM)
    first = ends.left.send(numbered(20), reliable=True)
    reliable.await_acknowledgement(STREAM, told.append)
    second = ends.left.send(numbered(20), reliable=True, pub_seq=120)
    assert reliable.sends(STREAM)
    assert told == []
    ends.settle(first, ends.right)
    assert told == [None], "what was sent later does not matter"
    reliable.await_acknowledgement(STREAM, told.append)
    ends.settle(second, ends.right)
    assert told == [None, None]
    reliable.await_acknowledgement(STREAM, told.append)
    assert told == [None, None, None], "there is nothing to wait for"


@pytest.mark.parametrize("how", ["reset", "left", "abandoned"])
def test_a_callback_gets_the_reason_if_it_is_never_acknowledged(how: str) -> None:
    ends, told = Ends(), list[str | None]()
    ends.left.send(numbered(3), reliable=True)
    reliable = ends.left.traffic.reliable
    reliable.await_acknowledgement(STREAM, told.append)
    match how:
        case "reset":
            pass_message(ends.left, Reset(stream_id=STREAM, reason=ResetReason.REFUSED))
        case "left":
            ends.left.drop()
        case _:
            reliable.abandon(STREAM, Output())
    (why,) = told
    assert why


def test_acknowledgements_that_wait_are_not_touched_with_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of streams may be due at once; each batch of packets used to schedule all of them anew."""
    ends = Ends()
    right = ends.right
    for stream_id in range(1000):
        pass_message(right, Base(stream_id=stream_id, sequence=FIRST_SEQUENCE, pub_seq=1, start=True))
    moved: list[int] = []
    set_deadline = Deadlines.set

    def counted(own: Deadlines[int], key: int, at: float) -> None:
        moved.append(key)
        set_deadline(own, key, at)

    monkeypatch.setattr(Deadlines, "set", counted)
    for turn in range(20):
        right.traffic.confirm(1.0 + turn / 10_000, Output())
    assert len(moved) <= MAX_ACKS
