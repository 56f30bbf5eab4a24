from __future__ import annotations

import random

from meshbus.engine.streams.scoreboard import Flight, Scoreboard
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.messages.reliable import Base
from tests.seeds import for_each_seed


def flight(first: int, sizes: list[int], now: float = 0.0, pub_seq: int | None = 0) -> Flight:
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    return Flight(first, memoryview(bytes(range(bounds[-1]))), bounds, [2] * len(sizes), pub_seq=pub_seq, now=now)


def board_of(packets: int, first: int = 50) -> Scoreboard:
    board = Scoreboard(first)
    board.add(flight(first, [4] * packets))
    return board


def test_packets_leave_from_the_front_only() -> None:
    board = Scoreboard(50)
    board.add(flight(50, [1, 2, 3], now=1.0))
    board.add(flight(53, [4, 5], now=2.0))
    assert (board.base, board.next_sequence, len(board), board.flying) == (50, 55, 5, 5)
    assert board.unacked_bytes == 15 + 5 * PACKET_COST

    settled = board.advance(52)
    assert (settled.packets, settled.wire_bytes, settled.sent_at) == (2, 3 + 2 * PACKET_COST, 1.0)
    settled = board.advance(55)
    assert (settled.packets, settled.wire_bytes, settled.sent_at) == (3, 12 + 3 * PACKET_COST, 2.0)
    assert (board.base, len(board), board.flying, board.unacked_bytes) == (55, 0, 0, 0)


def test_an_empty_batch_leaves_no_trace() -> None:
    board = Scoreboard(50)
    board.add(flight(50, []))
    assert len(board) == 0
    assert board.advance(50).packets == 0


def test_a_packet_comes_back_as_it_was_sent() -> None:
    board = Scoreboard(50)
    board.add(flight(50, [1, 2, 3]))
    board.lose_expired(0.0)
    taken = board.take_lost(2, 5.0)
    assert [(where.packet(sequence).payload.tolist(), sequence) for where, sequence, _ in taken] == [
        ([0], 50),
        ([1, 2], 51),
    ]
    assert taken[0][0].packet(50).event_count == 2
    assert (board.flying, board.lost) == (2, 1)


def test_a_base_takes_a_place_but_no_credit() -> None:
    base = Base(stream_id=1, sequence=51, pub_seq=9)
    board = Scoreboard(50)
    board.add(Flight.of_base(50, base, 0.0))
    board.add(flight(51, [4, 4], pub_seq=9))
    assert board.unacked_bytes == 2 * (4 + PACKET_COST)
    assert board.oldest.start_at(50, 1) == Base(stream_id=1, sequence=51, pub_seq=9, start=True)
    assert board.advance(51).packets == 0
    assert board.oldest.start_at(52, 1) == Base(stream_id=1, sequence=52, pub_seq=11, start=True)


def test_a_stream_without_numbers_has_a_base_without_one() -> None:
    assert flight(50, [1, 1], pub_seq=None).start_at(51, 1) == Base(stream_id=1, sequence=51, pub_seq=None, start=True)


def test_three_later_arrivals_make_a_loss() -> None:
    board = board_of(10)
    board.mark([(52, 1), (55, 1)])
    board.lose_overtaken()
    assert board.lost == 0
    board.mark([(58, 1)])
    board.lose_overtaken()
    assert [sequence for _, sequence, _ in board.take_lost(10, 1.0)] == [50, 51]


def test_what_was_sent_again_is_lost_only_when_something_newer_overtakes_it() -> None:
    board = board_of(5)
    board.mark([(52, 3)])
    board.lose_overtaken()
    board.take_lost(10, 1.0)
    board.lose_overtaken()
    assert board.lost == 0  # 52, 53 and 54 left before the second try
    board.add(flight(55, [1, 1, 1], now=1.0))
    board.mark([(55, 3)])
    board.lose_overtaken()
    assert board.lost == 2


def test_the_first_gap_can_be_given_up_alone() -> None:
    board = board_of(6)
    board.mark([(52, 1), (54, 1)])
    board.lose_first_gap()
    assert [sequence for _, sequence, _ in board.take_lost(10, 1.0)] == [50, 51]
    board.lose_first_gap()
    assert board.lost == 0


def test_only_old_packets_expire() -> None:
    board = Scoreboard(50)
    board.add(flight(50, [1, 1], now=1.0))
    board.add(flight(52, [1], now=2.0))
    board.lose_expired(1.5)
    assert board.lost == 2
    board.take_lost(1, 1.6)
    board.lose_expired(1.55)
    assert (board.lost, board.flying) == (1, 2)
    board.lose_expired(2.0)
    assert board.lost == 3


def test_what_a_receiver_names_is_lost_unless_it_may_be_on_the_way() -> None:
    board = Scoreboard(50)
    board.add(flight(50, [1, 1], now=1.0))
    board.add(flight(52, [1, 1], now=2.0))
    board.mark([(51, 1)])
    board.lose([49, 50, 51, 52, 54], limit=1.5, again_limit=9.0, shown=53)
    assert [sequence for _, sequence, _ in board.take_lost(10, 3.0)] == [50], "52 is too young, the others are not here"
    board.lose([50], limit=9.0, again_limit=9.0, shown=53)
    assert board.lost == 0, "53 was sent before the copy"
    board.add(flight(54, [1], now=4.0))
    board.lose([50], limit=9.0, again_limit=2.5, shown=54)
    assert board.lost == 0, "the copy is too young"
    board.lose([50], limit=9.0, again_limit=3.0, shown=54)
    assert board.lost == 1


def test_a_packet_may_be_repeated_without_being_lost() -> None:
    board = board_of(2)
    assert not board.repeated
    assert board.repeat(51, 1.0).sequence == 51
    assert (board.repeated, board.flying, board.lost) == (True, 2, 0)
    assert board.advance(52).sent_at is None, "which copy arrived is not known"
    assert not board.repeated


def test_a_receiver_that_forgot_gets_everything_again() -> None:
    board = board_of(4)
    board.mark([(51, 1), (53, 1)])
    assert [board.oldest_arrived, board.flying] == [False, 2]
    board.mark([(50, 1)])
    assert [board.oldest_arrived, board.flying] == [True, 1]
    board.lose_arrived()
    assert [board.oldest_arrived, board.flying, board.lost] == [False, 1, 3]


def test_ranges_about_packets_that_were_never_sent_are_ignored() -> None:
    board = board_of(4)
    wrong, _ = board.mark([(54, 1), (53, 2), (0, 1 << 40), ((1 << 64) - 1, 0xFFFFFFFF), (53, 1)])
    assert wrong == 4
    assert board.flying == 3


def test_the_time_of_a_packet_that_was_sent_twice_is_unknown() -> None:
    board = board_of(4)
    board.lose_expired(0.0)
    board.take_lost(1, 1.0)
    assert board.mark([(50, 1)]) == (0, None)
    assert board.advance(51).sent_at is None
    assert board.advance(52).sent_at == 0.0


def test_tries_are_counted_and_can_be_forgotten() -> None:
    board = board_of(1)
    for expected in (1, 2, 1):
        board.lose_oldest()
        board.lose_oldest()  # twice is once
        assert board.lost == 1
        ((_, _, resent),) = board.take_lost(1, 1.0)
        assert resent.tries == expected
        if expected == 2:
            board.forget_tries()


def test_nothing_is_left_after_clearing() -> None:
    board = board_of(4)
    board.mark([(52, 1)])
    board.clear()
    assert (len(board), board.flying, board.lost, board.unacked_bytes, board.base) == (0, 0, 0, 0, 54)


class Naive:
    """The same bookkeeping, one dictionary entry per packet."""

    def __init__(self, first: int) -> None:
        self.base = self.next = first
        self.state: dict[int, str] = {}
        self.sizes: dict[int, int] = {}

    def count(self, state: str) -> int:
        return sum(value == state for value in self.state.values())


@for_each_seed(range(20))
def test_the_counts_equal_those_of_a_plain_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    board, naive = Scoreboard(1000), Naive(1000)
    for step in range(300):
        action = rng.choice(["add", "mark", "advance", "take", "expire", "forget"])
        if action == "add" and len(board) < 200:
            sizes = [rng.randrange(20) for _ in range(rng.randrange(8))]
            board.add(flight(naive.next, sizes, now=float(step)))
            for size in sizes:
                naive.state[naive.next], naive.sizes[naive.next] = "flying", size + PACKET_COST
                naive.next += 1
        elif action == "mark":
            ranges = [(rng.randrange(naive.base - 5, naive.next + 3), rng.randrange(1, 6)) for _ in range(3)]
            board.mark(ranges)
            for first, count in ranges:
                if first + count <= naive.next:
                    naive.state.update(
                        {sequence: "arrived" for sequence in range(first, first + count) if sequence in naive.state}
                    )
        elif action == "advance":
            cumulative = rng.randrange(naive.base, min(naive.base + 10, naive.next) + 1)
            settled = board.advance(cumulative)
            gone = range(naive.base, cumulative)
            assert settled.packets == len(gone)
            assert settled.wire_bytes == sum(naive.sizes.pop(sequence) for sequence in gone)
            for sequence in gone:
                del naive.state[sequence]
            naive.base = cumulative
        elif action == "take":
            taken = [sequence for _, sequence, _ in board.take_lost(rng.randrange(6), float(step))]
            assert taken == sorted(s for s, state in naive.state.items() if state == "lost")[: len(taken)]
            naive.state.update(dict.fromkeys(taken, "flying"))
        elif action == "expire":
            board.lose_expired(float(step))
            naive.state = {s: "lost" if state == "flying" else state for s, state in naive.state.items()}
        elif action == "forget" and step % 5 == 0:
            board.lose_arrived()
            naive.state = {s: "lost" if state == "arrived" else state for s, state in naive.state.items()}
        assert (board.flying, board.lost) == (naive.count("flying"), naive.count("lost"))
        assert (board.base, board.next_sequence, len(board)) == (naive.base, naive.next, len(naive.state))
        assert board.unacked_bytes == sum(naive.sizes.values())
