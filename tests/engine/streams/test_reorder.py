from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.counters import Counters
from meshbus.engine.streams.reorder import ACK_DELAY_S, BASE_COST, Budget, Payloads, ReliableRx
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.messages.reliable import MAX_RANGES, NEW_STREAM_DISTANCE, Ack, Base, Fin, FinAck, encode_reliable
from tests.engine.lossy import columns

STREAM = 7
FIRST = 5_000_001


def start(sequence: int = FIRST, pub_seq: int | None = 90) -> Base:
    return Base(stream_id=STREAM, sequence=sequence, pub_seq=pub_seq, start=True)


def jump(sequence: int, pub_seq: int | None) -> Base:
    return Base(stream_id=STREAM, sequence=sequence, pub_seq=pub_seq)


def stream(*, capacity: int = 16, budget: Budget | None = None, counters: Counters | None = None) -> ReliableRx:
    """A stream that knows where it starts."""
    rx = unstarted(capacity=capacity, budget=budget, counters=counters)
    assert rx.on_base(start(), 0.0) == []
    rx.make_ack()
    return rx


def unstarted(*, capacity: int = 16, budget: Budget | None = None, counters: Counters | None = None) -> ReliableRx:
    return ReliableRx(STREAM, counters=counters or Counters(), capacity=capacity, budget=budget)


def batch(*offsets: int) -> Payloads:
    """Return packets at these positions of the stream, each with two events and its position as payload."""
    return columns([(FIRST + offset, bytes((offset % 256,)) * 3, 2) for offset in offsets])


def places(runs: list[Payloads]) -> list[int]:
    """Return which packets were delivered, and check their payloads."""
    found = []
    for run in runs:
        for sequence, start, length in zip(
            run.sequences.tolist(), run.starts.tolist(), run.lengths.tolist(), strict=True
        ):
            place = sequence - FIRST
            assert run.data[start : start + length].tobytes() == bytes((place % 256,)) * 3
            found.append(place)
    return found


def ack(cumulative: int, *ranges: tuple[int, int], free: int = 16) -> Ack:
    shifted = tuple((FIRST + first, count) for first, count in ranges)
    return Ack(stream_id=STREAM, cumulative=FIRST + cumulative, free=free, ranges=shifted)


def ack_due(rx: ReliableRx, now: float) -> bool:
    due = rx.next_timer()
    return due is not None and now >= due


def test_a_batch_that_simply_follows_is_returned_as_it_is() -> None:
    rx = stream()
    given_ = batch(0, 1, 2)
    (run,) = rx.accept(given_, 1.0)
    assert run.data is given_.data
    assert run.starts is given_.starts
    assert run.pub_seq == 90
    (run,) = rx.accept(batch(3), 1.0)
    assert run.pub_seq == 96
    assert rx.next_sequence == FIRST + 4
    assert len(run) == 1


def test_a_stream_without_numbers_delivers_none() -> None:
    rx = unstarted()
    rx.on_base(start(FIRST, None), 0.0)
    (run,) = rx.accept(batch(0, 1), 1.0)
    assert run.pub_seq is None
    (run,) = rx.accept(batch(2), 1.0)
    assert run.pub_seq is None


def test_an_empty_batch_is_nothing() -> None:
    rx = stream()
    assert rx.accept(batch(), 1.0) == []
    assert rx.next_timer() is None


def test_a_gap_holds_back_what_follows_it() -> None:
    rx = stream()
    assert places(rx.accept(batch(1, 2, 4), 1.0)) == []
    assert rx.make_ack() == ack(0, (1, 2), (4, 1), free=13)
    (run,) = rx.accept(batch(0), 1.0)
    assert places([run]) == [0, 1, 2]
    assert run.pub_seq == 90
    assert rx.make_ack() == ack(3, (4, 1), free=15)
    (run,) = rx.accept(batch(3), 1.0)
    assert places([run]) == [3, 4]
    assert run.pub_seq == 96
    assert rx.make_ack() == ack(5)


def test_one_batch_may_fill_gaps_of_its_own() -> None:
    rx = stream()
    assert places(rx.accept(batch(2, 0, 1, 3, 5), 1.0)) == [0, 1, 2, 3]
    assert rx.waiting == 1


def test_a_long_stretch_between_others_is_returned_without_a_copy() -> None:
    rx = stream(capacity=64)
    rx.on_base(jump(FIRST + 21, 500), 1.0)
    given_ = batch(*range(20), *range(21, 40), 41)
    before, after = rx.accept(given_, 1.0)
    assert places([before]) == list(range(20))
    assert places([after]) == list(range(21, 40))
    assert before.data is after.data is given_.data
    assert (before.pub_seq, after.pub_seq) == (90, 500)
    (rest,) = rx.accept(batch(40), 1.0)
    assert (places([rest]), rest.pub_seq) == ([40, 41], 500 + 2 * 19)


def test_a_stretch_with_packets_that_wait_already_is_delivered_once() -> None:
    counters = Counters()
    rx = stream(capacity=64, counters=counters)
    rx.accept(batch(12), 1.0)
    runs = rx.accept(batch(*range(3, 20), *range(20)), 1.0)
    assert [place for run in runs for place in places([run])] == list(range(20))
    assert rx.waiting == 0
    assert counters.get("drop", "duplicate") == 1 + 17


def test_columns_that_came_out_can_be_written_to_like_those_that_went_in() -> None:
    (run,) = stream().accept(batch(1, 0), 1.0)
    assert run.data.flags.writeable
    assert run.sequences.dtype == np.uint64
    assert run.starts.dtype == run.lengths.dtype == run.counts.dtype == np.int64


def test_what_waits_does_not_depend_on_the_buffer_it_came_in() -> None:
    rx = stream()
    given_ = batch(1)
    rx.accept(given_, 1.0)
    given_.data[:] = 0
    assert places(rx.accept(batch(0), 1.0)) == [0, 1]


def test_every_packet_is_delivered_once() -> None:
    counters = Counters()
    rx = stream(counters=counters)
    assert places(rx.accept(batch(0, 1), 1.0)) == [0, 1]
    assert places(rx.accept(batch(0, 1, 2, 2), 1.0)) == [2]
    rx.accept(batch(5), 1.0)
    rx.accept(batch(5), 1.0)
    assert counters.get("drop", "duplicate") == 4


def test_packets_too_far_ahead_are_dropped() -> None:
    counters = Counters()
    rx = stream(capacity=4, counters=counters)
    rx.accept(batch(1, 2, 3, 4, 5), 1.0)
    assert rx.waiting == 3
    assert rx.free == 1
    assert counters.get("drop", "beyond_window") == 2
    assert places(rx.accept(batch(0), 1.0)) == [0, 1, 2, 3]


def test_a_full_budget_slows_down_and_does_not_stop() -> None:
    counters = Counters()
    cost = 3 + PACKET_COST
    budget = Budget(2 * cost)
    rx = stream(counters=counters, budget=budget)
    assert places(rx.accept(batch(1, 2, 3), 1.0)) == []
    assert (rx.waiting, budget.left) == (2, 0)
    assert counters.get("drop", "buffer_full") == 1
    assert places(rx.accept(batch(0), 1.0)) == [0, 1, 2]
    assert budget.left == budget.limit


def test_streams_share_a_budget_and_give_it_back() -> None:
    budget = Budget(2 * (3 + PACKET_COST))
    one, other = stream(budget=budget), stream(budget=budget)
    one.accept(batch(1, 2), 1.0)
    other.accept(batch(1), 1.0)
    assert other.waiting == 0
    one.close()
    assert budget.left == budget.limit
    other.accept(batch(1), 1.0)
    assert other.waiting == 1


def test_eight_packets_are_acknowledged_at_once() -> None:
    rx = stream()
    rx.accept(batch(0, 1, 2, 3, 4, 5, 6), 1.0)
    assert not ack_due(rx, 1.0)
    rx.accept(batch(7), 1.001)
    assert ack_due(rx, 1.001)
    assert rx.make_ack() == ack(8)
    assert not ack_due(rx, 9.0)
    assert rx.next_timer() is None


def test_fewer_packets_are_acknowledged_after_a_while() -> None:
    rx = stream()
    rx.accept(batch(0), 1.0)
    rx.accept(batch(1), 1.004)
    assert rx.next_timer() == pytest.approx(1.0 + ACK_DELAY_S)
    assert not ack_due(rx, 1.004)
    assert ack_due(rx, 1.0 + ACK_DELAY_S)


@pytest.mark.parametrize("offsets", [(1,), (0, 0), (100,)])
def test_a_gap_a_duplicate_and_a_drop_are_acknowledged_at_once(offsets: tuple[int, ...]) -> None:
    rx = stream()
    rx.accept(batch(*offsets), 1.0)
    assert ack_due(rx, 1.0)


def test_the_end_of_a_gap_is_acknowledged_at_once() -> None:
    rx = stream()
    rx.accept(batch(1), 1.0)
    rx.make_ack()
    rx.accept(batch(0), 1.1)
    assert ack_due(rx, 1.1)


def test_an_acknowledgement_names_the_oldest_gaps_when_there_are_too_many() -> None:
    rx = stream(capacity=1000)
    rx.accept(batch(*range(1, 100, 2)), 1.0)
    found = rx.make_ack()
    assert found.ranges == tuple((FIRST + 1 + 2 * i, 1) for i in range(MAX_RANGES))
    encode_reliable(found)


def test_packets_before_the_first_base_wait_for_it() -> None:
    rx = unstarted()
    assert rx.accept(batch(0, 1, 3), 1.0) == []
    assert rx.next_sequence is None
    assert ack_due(rx, 1.0)
    assert rx.make_ack() == Ack(stream_id=STREAM, cumulative=0, free=13, ranges=((FIRST, 2), (FIRST + 3, 1)))
    (run,) = rx.on_base(start(), 1.1)
    assert places([run]) == [0, 1]
    assert run.pub_seq == 90
    assert ack_due(rx, 1.1)
    assert rx.make_ack() == ack(2, (3, 1), free=15)


def test_a_base_drops_what_waited_for_another_stream() -> None:
    counters = Counters()
    budget = Budget()
    rx = unstarted(counters=counters, budget=budget)
    rx.accept(batch(0, 500), 1.0)
    rx.accept(columns([(3, b"old", 1), ((1 << 64) - 1, b"far", 1)]), 1.0)
    encode_reliable(rx.make_ack())
    assert places(rx.on_base(start(), 1.0)) == [0]
    assert counters.get("drop", "other_stream") == 3
    assert (rx.waiting, budget.left) == (0, budget.limit)


def test_a_jump_of_the_numbers_cuts_the_delivery() -> None:
    rx = stream()
    assert rx.on_base(jump(FIRST + 3, 500), 1.0) == []  # in the place of packet 2
    assert places(rx.accept(batch(3, 1), 1.0)) == []
    one, two = rx.accept(batch(0), 1.0)
    assert (places([one]), one.pub_seq) == ([0, 1], 90)
    assert (places([two]), two.pub_seq) == ([3], 500)
    assert rx.next_sequence == FIRST + 4
    (run,) = rx.accept(batch(4), 1.0)
    assert run.pub_seq == 502


def test_a_jump_is_not_passed_without_its_start() -> None:
    rx = stream()
    assert places(rx.accept(batch(0, 1, 3, 4), 1.0)) == [0, 1]
    (run,) = rx.on_base(jump(FIRST + 3, None), 1.0)
    assert places([run]) == [3, 4]
    assert run.pub_seq is None


def test_a_base_in_order_needs_no_separate_acknowledgement() -> None:
    rx = stream()
    assert rx.on_base(jump(FIRST + 1, 500), 1.0) == []
    assert not ack_due(rx, 1.0)
    (run,) = rx.accept(batch(1), 1.0)
    assert run.pub_seq == 500


def test_a_repeated_base_is_a_duplicate() -> None:
    counters = Counters()
    rx = stream(counters=counters)
    rx.accept(batch(0, 1), 1.0)
    rx.make_ack()
    assert rx.on_base(start(), 1.0) == []
    assert counters.get("drop", "duplicate") == 1
    assert ack_due(rx, 1.0)
    (run,) = rx.accept(batch(2), 1.0)
    assert run.pub_seq == 94


def test_a_start_far_away_begins_a_new_stream() -> None:
    counters = Counters()
    budget = Budget()
    rx = stream(counters=counters, budget=budget)
    rx.accept(batch(0, 5), 1.0)
    far = FIRST + NEW_STREAM_DISTANCE + 2
    rx.on_base(start(far, 1), 1.0)
    assert rx.next_sequence == far
    assert budget.left == budget.limit
    assert counters.get("restart", "stream") == 1
    rx.on_base(start(5, 3), 1.0)
    assert rx.next_sequence == 5


def test_numbers_that_wait_take_their_share_of_the_budget_and_return_it() -> None:
    counters, budget = Counters(), Budget(10 * BASE_COST)
    rx = stream(capacity=64, budget=budget, counters=counters)
    for place in range(2, 40):
        rx.on_base(jump(FIRST + place, 5), 1.0)
    assert rx.waiting == 10
    assert counters.get("drop", "buffer_full") == 28
    assert budget.left == 0
    rx.close()
    assert budget.left == budget.limit


@pytest.mark.parametrize("number", [1 << 62, (1 << 63) - 5, (1 << 64) - 2])
def test_a_publish_number_that_cannot_be_counted_on_from_is_refused(number: int) -> None:
    counters = Counters()
    rx = unstarted(counters=counters)
    assert rx.on_base(start(FIRST, number), 1.0) == []
    assert rx.next_sequence is None
    assert counters.get("drop", "bad_base") == 1


@pytest.mark.parametrize("sequence", [0, 1 << 63, (1 << 64) - 1])
def test_a_base_without_a_sense_is_dropped(sequence: int) -> None:
    counters = Counters()
    rx = unstarted(counters=counters)
    assert rx.on_base(start(sequence), 1.0) == []
    assert rx.on_base(start(FIRST, 1 << 63), 1.0) == []
    assert rx.next_sequence is None
    assert counters.get("drop", "bad_base") == 2


def test_the_end_is_confirmed_when_everything_was_delivered() -> None:
    counters = Counters()
    rx = stream(counters=counters)
    rx.accept(batch(0, 1), 1.0)
    assert rx.on_fin(Fin(stream_id=STREAM, total=FIRST + 9)) is None
    assert (rx.finished, counters.get("drop", "bad_fin")) == (False, 1)
    end = FinAck(stream_id=STREAM, total=FIRST + 2)
    assert rx.on_fin(Fin(stream_id=STREAM, total=FIRST + 2)) == end
    assert (rx.finished, rx.next_timer()) == (True, None)
    assert rx.on_fin(Fin(stream_id=STREAM, total=FIRST + 2)) == end


def test_the_end_of_a_stream_that_was_forgotten_is_confirmed_too() -> None:
    assert unstarted().on_fin(Fin(stream_id=STREAM, total=99)) == FinAck(stream_id=STREAM, total=99)


def test_a_question_for_room_is_answered_at_once() -> None:
    rx = stream()
    rx.accept(batch(0), 1.0)
    rx.make_ack()
    assert rx.on_base(start(FIRST + 1, 92), 1.0) == []
    assert ack_due(rx, 1.0)
    assert rx.make_ack() == ack(1)
    (run,) = rx.accept(batch(1), 1.0)
    assert run.pub_seq == 92


def test_a_jump_does_not_start_a_stream() -> None:
    rx = unstarted()
    assert rx.on_base(jump(FIRST + 2, 500), 1.0) == []
    assert rx.accept(batch(2), 1.0) == []
    assert rx.make_ack().ranges == ((FIRST + 1, 2),)
    assert rx.on_base(start(), 1.0) == []
    one, two = rx.accept(batch(0), 1.0)
    assert (places([one]), one.pub_seq) == ([0], 90)
    assert (places([two]), two.pub_seq) == ([2], 500)


def test_a_start_ahead_skips_what_the_sender_no_longer_has() -> None:
    budget = Budget()
    rx = stream(budget=budget)
    rx.accept(batch(2, 6), 1.0)
    rx.make_ack()
    assert rx.on_base(start(FIRST + 5, 700), 1.0) == []
    assert ack_due(rx, 1.0)
    assert rx.make_ack() == ack(5, (6, 1), free=15)
    (run,) = rx.accept(batch(5), 1.0)
    assert (places([run]), run.pub_seq) == ([5, 6], 700)
    assert budget.left == budget.limit
    assert rx.on_base(start(FIRST + 5, 700), 1.0) == []  # once is enough
    assert rx.next_sequence == FIRST + 7


def test_a_jump_far_away_is_beyond_the_window() -> None:
    counters = Counters()
    rx = stream(counters=counters)
    rx.on_base(jump(FIRST + NEW_STREAM_DISTANCE * 3, 1), 1.0)
    assert rx.next_sequence == FIRST
    assert counters.get("drop", "beyond_window") == 1


def test_a_closed_stream_can_start_again() -> None:
    rx = stream()
    rx.accept(batch(0, 2), 1.0)
    rx.close()
    assert (rx.next_sequence, rx.waiting, rx.next_timer()) == (None, 0, None)
    rx.on_base(start(), 2.0)
    assert places(rx.accept(batch(0), 2.0)) == [0]


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(
            st.permutations(list(range(n)) + list(range(0, n, 3))),
            st.lists(st.integers(1, 7), min_size=2 * n, max_size=2 * n),
            st.integers(0, n),
        )
    )
)
def test_any_order_comes_out_in_order(case: tuple[list[int], list[int], int]) -> None:
    arrivals, sizes, start_after = case
    rx = unstarted(capacity=64)
    out: list[int] = []
    started = False
    position = 0
    for size in sizes:
        if not started and position >= start_after:
            out += places(rx.on_base(start(), 1.0))
            started = True
        for run in rx.accept(batch(*arrivals[position : position + size]), 1.0):
            assert run.pub_seq == 90 + 2 * len(out)
            out += places([run])
        position += size
    if not started:
        out += places(rx.on_base(start(), 1.0))
    distinct = max(arrivals) + 1
    if position >= len(arrivals):
        assert out == list(range(distinct))
        assert rx.waiting == 0
    else:
        assert out == list(range(len(out)))
