from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.wire.constants import MAX_REPLAY_JUMP
from meshbus.wire.replaywindow import COUNTER_LIMIT, ReplayWindow
from tests.vectors import load
from tests.wire.strategies import u64

SCRIPT: dict[str, Any] = load("transport")["replay_window"]


class SetModel:
    """The rules of the window, written with a set that keeps every counter."""

    def __init__(self, size: int, max_jump: int) -> None:
        self.size, self.max_jump = size, max_jump
        self.seen: set[int] = set()
        self.highest = -1

    def admit(self, counter: int) -> bool:
        if counter == COUNTER_LIMIT or counter in self.seen:
            return False
        if counter - self.highest > self.max_jump or self.highest - counter >= self.size:
            return False
        self.seen.add(counter)
        self.highest = max(self.highest, counter)
        return True


def test_the_golden_script_is_judged_as_by_a_real_node() -> None:
    window = ReplayWindow(SCRIPT["size"])
    for row in SCRIPT["script"]:
        counter = int(row["counter"], 16) if isinstance(row["counter"], str) else row["counter"]
        assert window.admit(counter) is row["accept"], row


# Counters near each other, so that repeats, reordering and the edges of a small window all happen.
near = st.lists(st.integers(0, 60), max_size=120)
far = st.lists(
    st.one_of(st.integers(0, 3000), u64, st.sampled_from([0, COUNTER_LIMIT, COUNTER_LIMIT - 1])), max_size=60
)


@given(st.one_of(near, far), st.sampled_from([1, 8, 64, 1024]), st.sampled_from([1, 20, 500, 1 << 20, 1 << 64]))
def test_the_window_equals_a_set_that_never_forgets(counters: list[int], size: int, max_jump: int) -> None:
    window, model = ReplayWindow(size, max_jump), SetModel(size, max_jump)
    assert [window.admit(counter) for counter in counters] == [model.admit(counter) for counter in counters]
    assert window.next == model.highest + 1


runs = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=8)


@given(
    runs, st.lists(st.integers(0, 400), max_size=30), st.sampled_from([8, 64, 1024]), st.sampled_from([5, 100, 1 << 20])
)
def test_batches_equal_single_counters(
    spans: list[tuple[int, int]], strays: list[int], size: int, max_jump: int
) -> None:
    batch, single = ReplayWindow(size, max_jump), ReplayWindow(size, max_jump)
    consecutive = [list(range(start, start + length)) for start, length in spans]
    for counters in [*consecutive, strays, *consecutive]:
        judged = batch.admit_batch(np.array(counters, np.uint64))
        assert judged.dtype == np.bool_
        assert judged.tolist() == [single.admit(counter) for counter in counters]


def test_a_batch_longer_than_the_window_moves_it_as_a_whole() -> None:
    window = ReplayWindow()
    assert window.admit_batch(np.arange(5000, dtype=np.uint64)).all()
    assert not window.admit(5000 - 1024)
    assert not window.admit(4999)
    assert window.admit(5000)


def test_a_batch_that_wraps_around_is_not_consecutive() -> None:
    window = ReplayWindow(max_jump=1 << 64)
    counters = np.array([COUNTER_LIMIT - 1, COUNTER_LIMIT, 0], np.uint64)
    assert window.admit_batch(counters).tolist() == [True, False, False]


def test_a_batch_may_be_a_strided_column() -> None:
    rows = np.zeros(4, [("flags", "u1"), ("counter", "<u8")])
    rows["counter"] = [0, 1, 2, 3]
    window = ReplayWindow()
    assert window.admit_batch(rows["counter"]).all()
    assert not window.admit_batch(rows["counter"]).any()


@pytest.mark.parametrize("start", [0, 1, 7_000])
def test_a_jump_is_capped_from_wherever_the_window_stands(start: int) -> None:
    window = ReplayWindow()
    for counter in range(0, start, 1000):
        window.admit(counter)
    highest = max(range(0, start, 1000), default=-1)
    assert not window.admit(highest + MAX_REPLAY_JUMP + 1)
    assert not window.admit_batch(np.array([highest + MAX_REPLAY_JUMP + 1], np.uint64)).any()
    assert window.admit(highest + MAX_REPLAY_JUMP)


def test_an_old_counter_costs_nothing_however_old_it_is() -> None:
    window = ReplayWindow(max_jump=1 << 64)
    assert window.admit(1 << 63)
    assert not window.admit(0)
    assert not window.admit_batch(np.array([0, 1], np.uint64)).any()


def test_the_last_counter_is_never_accepted() -> None:
    window = ReplayWindow(max_jump=1 << 64)
    assert window.admit(COUNTER_LIMIT - 1)
    assert not window.admit(COUNTER_LIMIT)
    assert not window.admit_batch(np.array([COUNTER_LIMIT], np.uint64)).any()


def test_every_age_inside_the_window_is_accepted_once() -> None:
    window = ReplayWindow()
    window.admit(5000)
    ages = [counter for counter in range(3900, 5000) if window.admit(counter)]
    assert ages == list(range(5000 - 1023, 5000))
    assert all(later - earlier == 1 for earlier, later in pairwise(ages))
    assert not any(window.admit(counter) for counter in range(3900, 5001))
