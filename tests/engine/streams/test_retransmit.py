from __future__ import annotations

import random

import numpy as np
import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.session.stream import TxStream
from meshbus.engine.streams.congestion import FIRST_RTO_S, MAX_WINDOW, MIN_RTO_S
from meshbus.engine.streams.retransmit import MAX_RESENDS, ReliableTx, Resend, draw_start
from meshbus.errors import LocalProtocolError
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.frames import Packed
from meshbus.wire.messages.reliable import NEW_STREAM_DISTANCE, Ack, Base, Fin, FinAck, Reset, ResetReason
from tests.seeds import for_each_seed

STREAM, NODE = 7, 0xABC
START = 5_000_000
FIRST = START + 1
"""The first data packet: the sequence before it is the BASE."""
SIZE = 10
"""Bytes of each payload; each holds two events."""


def stream(*, window: int = 10, round_trip_s: float | None = 0.004) -> ReliableTx:
    return ReliableTx(
        STREAM, NODE, first_sequence=START, counters=Counters(), window=window, round_trip_s=round_trip_s
    )  # fmt: skip


def send(tx: ReliableTx, packets: int, now: float = 0.0, pub_seq: int | None = None) -> int:
    """Send a batch, and return its first sequence."""
    tx.number(pub_seq, now)
    first = tx.next_sequence
    data = np.repeat(np.arange(packets, dtype=np.uint8), SIZE)
    tx.sent(first, Packed(data, np.arange(packets + 1) * SIZE, np.full(packets, 2)), now)
    return first


def ack(cumulative: int, *ranges: tuple[int, int], free: int = 1000) -> Ack:
    return Ack(stream_id=STREAM, cumulative=cumulative, free=free, ranges=ranges)


def sequences(resend: Resend) -> list[int]:
    return [packet.sequence for packet in resend.packets]


def test_a_stream_starts_with_a_base_in_the_place_of_a_packet() -> None:
    tx = stream()
    assert tx.number(90, 0.0) == Base(stream_id=STREAM, sequence=FIRST, pub_seq=90, start=True)
    assert tx.next_sequence == FIRST
    assert send(tx, 3, pub_seq=90) == FIRST
    assert tx.number(96, 0.0) is None  # three packets of two events: the numbers go on


def test_a_jump_of_the_numbers_needs_another_base() -> None:
    tx = stream()
    send(tx, 3, pub_seq=90)
    assert tx.number(100, 0.0) == Base(stream_id=STREAM, sequence=FIRST + 4, pub_seq=100)
    assert tx.number(100, 0.0) is None
    assert tx.number(None, 0.0) == Base(stream_id=STREAM, sequence=FIRST + 5, pub_seq=None)
    assert send(tx, 1, pub_seq=None) == FIRST + 5
    assert tx.number(None, 0.0) is None


def test_packets_must_follow_each_other_and_a_base() -> None:
    tx = stream()
    with pytest.raises(LocalProtocolError, match="first event number"):
        tx.sent_one(START, b"x", 1, 0.0)
    tx.number(0, 0.0)
    with pytest.raises(LocalProtocolError, match="expects sequence"):
        tx.sent_one(FIRST + 1, b"x", 1, 0.0)
    tx.sent_one(FIRST, b"x", 1, 0.0)
    assert tx.number(1, 0.0) is None


@pytest.mark.parametrize("start", [0, -1, 1 << 63])
def test_an_invalid_first_sequence_is_refused(start: int) -> None:
    with pytest.raises(LocalProtocolError):
        ReliableTx(STREAM, NODE, first_sequence=start, counters=Counters())


def test_a_drawn_start_is_always_legal() -> None:
    assert draw_start(bytes) == 1
    assert draw_start(lambda n: b"\xff" * n) == 1 << 62


def test_an_acknowledgement_settles_packets_and_their_credit() -> None:
    tx = stream()
    send(tx, 4)
    assert tx.unacked_bytes == 4 * (SIZE + PACKET_COST)
    settled = tx.on_ack(ack(FIRST + 3), 0.004).settled
    assert (settled.packets, settled.wire_bytes) == (3, 3 * (SIZE + PACKET_COST))
    assert tx.unacked_bytes == SIZE + PACKET_COST
    assert tx.on_ack(ack(FIRST + 4), 0.004).settled.packets == 1
    assert (tx.outstanding, tx.unacked_bytes, tx.next_timer()) == (0, 0, None)


def test_credit_of_lost_packets_returns_with_the_acknowledgement() -> None:
    tx, credit = stream(), TxStream(STREAM, 1000)
    send(tx, 4)
    credit.take(4, 4 * SIZE)
    credit.grant(2 * (SIZE + PACKET_COST))  # the receiver's count misses two packets for ever
    tx.on_ack(ack(FIRST + 4), 0.004)
    credit.grant(credit.sent - tx.unacked_bytes)
    assert credit.credit == 1000


def test_the_window_bounds_what_is_on_the_way() -> None:
    tx = stream(window=10)
    assert tx.room() == 10
    send(tx, 9)  # and the base
    assert tx.room() == 0
    tx.on_ack(ack(FIRST + 9), 0.004)
    assert tx.room() == 20  # slow start: ten arrived


def test_the_receivers_room_bounds_too() -> None:
    tx = stream(window=64)
    send(tx, 9)
    tx.on_ack(ack(FIRST + 7, free=5), 0.004)
    assert tx.room() == 3
    tx.on_ack(ack(FIRST + 9, free=0), 0.004)
    assert tx.room() == 0


def test_a_receiver_without_room_is_asked_until_it_has_some() -> None:
    tx = stream(round_trip_s=0.001)
    send(tx, 3, pub_seq=90)
    tx.on_ack(ack(FIRST + 3, free=0), 0.001)
    asked: list[float] = []
    while len(asked) < 30:
        now = tx.next_timer()
        assert now is not None
        asked.append(now)
        assert tx.due(now).messages == [Base(stream_id=STREAM, sequence=FIRST + 3, pub_seq=96, start=True)]
        assert tx.due(now).messages == ()
        tx.on_ack(ack(FIRST + 3, free=0), now)
        assert tx.room() == 0
    assert asked[1] - asked[0] == pytest.approx(2 * MIN_RTO_S)
    assert asked[-1] - asked[-2] == pytest.approx(2.0)
    tx.on_ack(ack(FIRST + 3, free=5), asked[-1])
    assert tx.room() == 5
    assert tx.next_timer() is None
    assert tx.rto == pytest.approx(MIN_RTO_S)
    assert send(tx, 1, pub_seq=96) == FIRST + 3


def test_memory_stays_bounded_whatever_a_receiver_claims() -> None:
    tx = stream(window=MAX_WINDOW)
    send(tx, 10)
    now = 0.0
    # A receiver that never takes the first packet, and everything else.
    while (room := min(tx.room(), 100)) > 0:
        first = send(tx, room)
        now += 0.001
        tx.on_ack(ack(START, (FIRST, first + room - FIRST), free=0xFFFFFFFF), now)
    assert tx.next_sequence - START <= MAX_WINDOW + 1


def test_three_packets_that_overtook_it_make_a_loss() -> None:
    tx = stream()
    send(tx, 6)
    assert sequences(tx.on_ack(ack(FIRST + 1, (FIRST + 2, 2)), 0.004)) == []
    resend = tx.on_ack(ack(FIRST + 1, (FIRST + 2, 3)), 0.004)
    assert sequences(resend) == [FIRST + 1]
    assert bytes(resend.packets[0].payload) == b"\x01" * SIZE
    assert resend.packets[0].event_count == 2
    assert sequences(tx.on_ack(ack(FIRST + 1, (FIRST + 2, 4)), 0.005)) == []  # it is on its way


def test_three_reports_of_one_gap_make_a_loss() -> None:
    tx = stream()
    send(tx, 6)
    report = ack(FIRST + 1, (FIRST + 2, 1))
    assert sequences(tx.on_ack(report, 0.004)) == []
    assert sequences(tx.on_ack(report, 0.004)) == []
    assert sequences(tx.on_ack(report, 0.004)) == [FIRST + 1]
    assert sequences(tx.on_ack(report, 0.004)) == []


def test_a_lost_base_is_sent_again_like_a_packet() -> None:
    tx = stream()
    send(tx, 4, pub_seq=90)
    tx.on_ack(ack(FIRST + 4), 0.004)
    send(tx, 3, pub_seq=200)
    resend = tx.on_ack(ack(FIRST + 4, (FIRST + 5, 3)), 0.008)
    assert resend.messages == [Base(stream_id=STREAM, sequence=FIRST + 5, pub_seq=200)]
    assert sequences(resend) == []


def test_one_loss_event_halves_the_window_once() -> None:
    tx = stream(window=64)
    send(tx, 63)
    tx.on_ack(ack(FIRST + 3, (FIRST + 10, 5)), 0.004)
    assert tx.window == 36  # nine arrived: 73 after slow start, halved
    tx.on_ack(ack(FIRST + 3, (FIRST + 10, 5), (FIRST + 20, 5)), 0.005)
    assert tx.window == 36


def test_after_a_timeout_the_oldest_go_and_then_as_many_as_the_window_has_room_for() -> None:
    tx = stream(window=12)
    send(tx, 11)
    resend = tx.due(0.012)
    assert len(resend.messages) == 1
    assert sequences(resend) == [FIRST]
    assert tx.window == 6
    resend = tx.on_ack(ack(FIRST + 1), 0.014)
    assert sequences(resend) == list(range(FIRST + 1, FIRST + 7))


def test_a_lost_acknowledgement_costs_little() -> None:
    tx = stream(window=64)
    send(tx, 60)
    resend = tx.due(0.012)
    assert len(resend.messages) + len(resend.packets) == 2
    assert sequences(tx.on_ack(ack(FIRST + 60), 0.016)) == []
    assert tx.outstanding == 0


def test_the_timeout_sends_again_and_doubles() -> None:
    tx = stream(round_trip_s=0.001)
    send(tx, 1)
    assert tx.next_timer() == pytest.approx(MIN_RTO_S)
    assert sequences(tx.due(0.009)) == []
    assert sequences(tx.due(0.010)) == [FIRST]
    assert tx.next_timer() == pytest.approx(0.030)
    assert sequences(tx.due(0.030)) == [FIRST]
    assert tx.next_timer() == pytest.approx(0.070)


def test_without_a_measurement_the_first_timeout_is_patient() -> None:
    tx = stream(round_trip_s=None)
    send(tx, 1)
    assert tx.next_timer() == pytest.approx(FIRST_RTO_S)


def test_the_answer_to_a_repeated_packet_measures_nothing() -> None:
    tx = stream(round_trip_s=0.001)
    send(tx, 1)
    tx.due(0.010)
    tx.on_ack(ack(FIRST + 1), 0.5)
    assert tx.rto == pytest.approx(2 * MIN_RTO_S)  # neither measured nor forgotten
    send(tx, 1, now=1.0)
    tx.on_ack(ack(FIRST + 2), 1.001)
    assert tx.rto == pytest.approx(MIN_RTO_S)


def test_an_answer_that_a_resend_provoked_measures_nothing() -> None:
    tx = stream(round_trip_s=0.001)
    send(tx, 4)
    tx.due(0.010)  # everything is due, but the window is full
    send_again = tx.on_ack(ack(FIRST + 4), 1.0)  # the last packet was sent once, a second ago
    assert sequences(send_again) == []
    assert tx.rto == pytest.approx(2 * MIN_RTO_S)


def test_only_what_is_old_enough_is_sent_again() -> None:
    tx = stream(round_trip_s=0.004, window=64)
    send(tx, 0, now=0.0)
    send(tx, 1, now=0.0)
    send(tx, 2, now=0.008)
    tx.due(0.012)
    assert sequences(tx.on_ack(ack(FIRST), 0.013)) == []  # the base arrived, the rest is on its way


def test_progress_restarts_the_timer() -> None:
    tx = stream(round_trip_s=0.004)
    send(tx, 4)
    tx.on_ack(ack(FIRST + 1), 0.010)
    timer = tx.next_timer()
    assert timer is not None
    assert timer > 0.020


def test_a_dead_receiver_fails_the_stream_with_a_reason() -> None:
    tx = stream(round_trip_s=0.001)
    send(tx, 5)
    now, rounds = 0.0, 0
    messages = []
    while tx.failed is None:
        timer = tx.next_timer()
        assert timer is not None
        assert timer > now
        now = timer
        messages = list(tx.due(now).messages)
        rounds += 1
    assert rounds == MAX_RESENDS + 1
    assert now < 20
    assert messages == [Reset(stream_id=STREAM, reason=ResetReason.GAVE_UP)]
    assert "0000000000000abc" in tx.failed
    assert "12 times" in tx.failed
    assert (tx.room(), tx.outstanding, tx.unacked_bytes, tx.next_timer()) == (0, 0, 0, None)
    assert tx.on_ack(ack(FIRST + 1), now).packets == ()
    with pytest.raises(LocalProtocolError, match="did not acknowledge"):
        tx.number(0, now)


def test_a_new_session_renews_the_patience() -> None:
    tx = stream(round_trip_s=0.001)
    send(tx, 1)
    now = 0.0
    for _ in range(MAX_RESENDS):
        now = tx.next_timer() or 0.0
        tx.due(now)
    tx.renew(now + 5)
    assert tx.next_timer() == now + 5
    assert sequences(tx.due(now + 5)) == [FIRST]
    assert tx.failed is None
    assert tx.next_timer() == pytest.approx(now + 5 + 2 * MIN_RTO_S)


def test_a_new_session_of_an_idle_stream_changes_nothing() -> None:
    tx = stream()
    tx.renew(3.0)
    assert tx.next_timer() is None


def test_a_receiver_that_lost_the_stream_gets_a_start() -> None:
    tx = stream()
    send(tx, 6, pub_seq=90)
    tx.on_ack(ack(FIRST + 2, (FIRST + 4, 1)), 0.004)
    resend = tx.on_ack(ack(0, (FIRST + 5, 1)), 0.005)  # a new process, which has only the last packet
    start = Base(stream_id=STREAM, sequence=FIRST + 2, pub_seq=94, start=True)
    assert resend.messages == [start]
    assert FIRST + 4 in sequences(resend)  # what the old process had is sent again
    assert FIRST + 5 not in sequences(resend)
    assert tx.on_ack(ack(0, (FIRST + 5, 1)), 0.006).messages == []  # not with every report
    assert start in tx.due(0.1).messages


def test_a_receiver_of_another_stream_gets_a_start() -> None:
    tx = stream()
    send(tx, 2, pub_seq=90)
    base = Base(stream_id=STREAM, sequence=FIRST, pub_seq=90, start=True)
    assert tx.on_ack(ack(FIRST + NEW_STREAM_DISTANCE * 2, (FIRST, 2)), 0.004).messages == [base]
    assert tx.outstanding == 3
    assert tx.on_ack(ack(1000), 1.0).messages == [base]


def test_a_receiver_that_waits_for_what_is_gone_is_moved_on_by_the_timeout() -> None:
    tx = stream()
    send(tx, 6, pub_seq=90)
    tx.on_ack(ack(FIRST + 4), 0.004)
    assert tx.on_ack(ack(FIRST + 2, (FIRST + 4, 2)), 0.005).messages == []  # usually it is only late
    timer = tx.next_timer()
    assert timer is not None
    assert tx.due(timer).messages == [Base(stream_id=STREAM, sequence=FIRST + 4, pub_seq=98, start=True)]


def test_an_idle_stream_sends_no_start_to_a_receiver_without_state() -> None:
    tx = stream()
    assert tx.on_ack(ack(0), 0.0).messages == []


def test_a_receiver_that_takes_back_what_it_had_gets_it_again() -> None:
    tx = stream()
    send(tx, 6)
    tx.on_ack(ack(FIRST + 1, (FIRST + 2, 1)), 0.004)
    resend = tx.on_ack(ack(FIRST + 2), 0.005)  # 1 arrived, and yet 2 is missing now
    assert sequences(resend) == []
    assert sequences(tx.on_ack(ack(FIRST + 2), 0.006)) == [FIRST + 2]


def test_everything_arrived_and_nothing_is_confirmed() -> None:
    tx = stream()
    send(tx, 2)
    tx.on_ack(ack(0, (START, 3)), 0.004)
    assert tx.outstanding == 0
    timer = tx.next_timer()
    assert timer is not None
    resend = tx.due(timer)
    assert resend.messages[0] == Base(stream_id=STREAM, sequence=FIRST, pub_seq=None, start=True)


def test_late_acknowledgements_do_no_harm() -> None:
    tx = stream()
    send(tx, 6)
    tx.on_ack(ack(FIRST + 4, free=100), 0.004)
    tx.on_ack(ack(FIRST + 1, (FIRST + 3, 1), free=0), 0.005)
    assert tx.outstanding == 2
    assert tx.room() > 0


def test_acknowledgements_of_what_was_never_sent_are_ignored() -> None:
    counters = Counters()
    tx = ReliableTx(STREAM, NODE, first_sequence=START, counters=counters)
    send(tx, 6)
    tx.on_ack(ack(FIRST + 7), 0.004)
    tx.on_ack(ack(START, (FIRST + 3, 100), (FIRST + 5, 0xFFFFFFFF), ((1 << 64) - 1, 1)), 0.004)
    assert tx.outstanding == 7
    assert counters.get("drop", "bad_ack") == 4


@for_each_seed(range(10))
def test_hostile_acknowledgements_never_crash_or_corrupt(seed: int) -> None:
    rng = random.Random(seed)
    tx, now = stream(window=64), 0.0
    for _ in range(2000):
        now += rng.random() * 0.01
        if tx.failed is not None:
            break
        if tx.room() > 0 and rng.random() < 0.5:
            send(tx, rng.randint(1, min(tx.room(), 30)), now, pub_seq=rng.choice([None, 0, 10]))
        low, high = START - 10, tx.next_sequence + 10
        anywhere = [0, 1, (1 << 64) - 1, tx.next_sequence, *(rng.randrange(low, high) for _ in range(8))]
        ranges = [(rng.choice(anywhere), rng.choice([1, 2, 5, 1000, 0xFFFFFFFF])) for _ in range(rng.randrange(33))]
        resend = tx.on_ack(ack(rng.choice(anywhere), *ranges, free=rng.choice([0, 1, 50, 0xFFFFFFFF])), now)
        again = tx.due(now)
        for packet in (*resend.packets, *again.packets):
            assert START < packet.sequence < tx.next_sequence
            assert len(packet.payload) == SIZE
        assert 0 <= tx.outstanding <= tx.next_sequence - START
        assert 0 <= tx.room() <= MAX_WINDOW
        assert tx.unacked_bytes >= 0
        if tx.unacked_bytes or tx.outstanding or not tx.room():
            assert tx.next_timer() is not None
    # Whatever was claimed, an honest answer still ends it well.
    if tx.failed is None:
        tx.on_ack(ack(tx.next_sequence), now)
        assert (tx.outstanding, tx.unacked_bytes, tx.next_timer()) == (0, 0, None)


def test_a_stream_ends_when_everything_is_acknowledged() -> None:
    tx = stream(round_trip_s=0.001)
    send(tx, 2)
    assert tx.finish(0.001).messages == ()
    assert tx.room() == 0
    with pytest.raises(LocalProtocolError, match="closing"):
        tx.number(0, 0.001)
    fin = Fin(stream_id=STREAM, total=FIRST + 2)
    assert tx.on_ack(ack(FIRST + 2), 0.002).messages == [fin]
    assert tx.on_ack(ack(FIRST + 2), 0.003).messages == []
    timer = tx.next_timer()
    assert timer is not None
    assert tx.due(timer).messages == [fin]
    tx.on_fin_ack(FinAck(stream_id=STREAM, total=FIRST))
    assert (tx.done, tx.next_timer() is None) == (False, False)
    tx.on_fin_ack(FinAck(stream_id=STREAM, total=FIRST + 2))
    assert (tx.done, tx.next_timer()) == (True, None)
    assert tx.finish(1.0).messages == ()


def test_an_unexpected_fin_ack_is_ignored() -> None:
    tx = stream()
    tx.on_fin_ack(FinAck(stream_id=STREAM, total=START))
    assert not tx.done


def test_an_unused_stream_can_end() -> None:
    tx = stream()
    assert tx.finish(0.0).messages == [Fin(stream_id=STREAM, total=START)]
    tx.on_fin_ack(FinAck(stream_id=STREAM, total=START))
    assert tx.done


def test_an_end_that_is_never_confirmed_fails_the_stream() -> None:
    tx = stream(round_trip_s=0.001)
    tx.finish(0.0)
    fins = 1
    while tx.failed is None:
        resend = tx.due(tx.next_timer() or 0.0)
        fins += any(isinstance(message, Fin) for message in resend.messages)
    assert fins == MAX_RESENDS + 1
    assert "the end" in tx.failed


@pytest.mark.parametrize(("reason", "word"), [(ResetReason.REFUSED, "refused"), (0x777, "reason 1911")])
def test_a_reset_by_the_receiver_fails_the_stream(reason: int, word: str) -> None:
    tx = stream()
    send(tx, 2)
    tx.on_reset(Reset(stream_id=STREAM, reason=reason))
    assert tx.failed is not None
    assert word in tx.failed
    assert (tx.outstanding, tx.next_timer()) == (0, None)
    assert tx.cancel().messages == ()


def test_a_canceled_stream_notifies_the_receiver() -> None:
    tx = stream()
    send(tx, 2)
    assert tx.cancel().messages == [Reset(stream_id=STREAM, reason=ResetReason.CANCELED)]
    assert tx.failed is not None
    first = tx.failed
    tx.on_reset(Reset(stream_id=STREAM, reason=ResetReason.REFUSED))
    assert tx.failed == first
