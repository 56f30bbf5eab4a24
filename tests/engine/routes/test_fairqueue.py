"""Fair queue: fairness between streams, limits, urgent packets first, no starvation."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.routes.fairqueue import QUANTUM, URGENT_RUN, FairQueue

Item = tuple[int, int]


def drained(queue: FairQueue[Item]) -> list[Item]:
    items = []
    while (item := queue.pop()) is not None:
        items.append(item)
    return items


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=300))
def test_nothing_is_lost_or_reordered_within_a_stream(pushed: list[tuple[int, bool]]) -> None:
    queue: FairQueue[Item] = FairQueue(quantum=3)
    for number, (stream, urgent) in enumerate(pushed):
        assert queue.push(stream, (stream, number), 10, urgent=urgent)
    assert (len(queue), queue.nbytes) == (len(pushed), 10 * len(pushed))
    items = drained(queue)
    assert sorted(number for _, number in items) == list(range(len(pushed)))
    for stream in range(6):
        ordinary = [number for one, number in items if one == stream and not pushed[number][1]]
        assert ordinary == sorted(ordinary)
    assert (len(queue), queue.nbytes) == (0, 0)


def test_streams_take_turns_of_a_quantum() -> None:
    queue: FairQueue[Item] = FairQueue()
    for stream, count in ((1, 100), (2, 40), (3, 5)):
        for number in range(count):
            queue.push(stream, (stream, number), 1)
    turns = [(stream, len(list(run))) for stream, run in groupby(stream for stream, _ in drained(queue))]
    assert turns[:6] == [(1, QUANTUM), (2, QUANTUM), (3, 5), (1, QUANTUM), (2, QUANTUM), (1, QUANTUM)]


def test_a_weight_is_a_longer_turn() -> None:
    queue: FairQueue[Item] = FairQueue(quantum=2)
    for number in range(30):
        queue.push(1, (1, number), 1)
        queue.push(2, (2, number), 1, weight=3)
    assert Counter(stream for stream, _ in (queue.pop() or (0, 0) for _ in range(16))) == {1: 4, 2: 12}


def test_urgent_packets_go_first_but_do_not_silence_the_rest() -> None:
    queue: FairQueue[Item] = FairQueue()
    for number in range(3 * URGENT_RUN):
        queue.push(9, (9, number), 1, urgent=True)
    queue.push(1, (1, 0), 1)
    order = [stream for stream, _ in drained(queue)]
    assert order.index(1) == URGENT_RUN


def test_one_stream_cannot_take_the_room_of_another() -> None:
    queue: FairQueue[Item] = FairQueue(depth=4)
    assert [queue.push(1, (1, n), 1) for n in range(6)] == [True] * 4 + [False] * 2
    assert queue.push(2, (2, 0), 1)
    assert [queue.push(3, (3, n), 1, urgent=True) for n in range(5)] == [True] * 4 + [False]


def test_the_bytes_of_all_are_bounded() -> None:
    queue: FairQueue[Item] = FairQueue(max_bytes=100)
    assert queue.push(1, (1, 0), 60)
    assert not queue.push(2, (2, 0), 60)
    assert queue.pop() == (1, 0)
    assert queue.push(2, (2, 0), 60)


def test_an_empty_queue_gives_nothing() -> None:
    assert FairQueue[Item]().pop() is None
