"""A set of numbers as ranges holds what a set of Python holds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbus.spark.lake.intervals import Intervals

RANGES = st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 9)), max_size=8)
LOWEST, HIGHEST = -(2**63), 2**63 - 1


@given(st.lists(RANGES, max_size=4), st.integers(-25, 70), st.integers(0, 5))
def test_it_holds_what_a_set_holds(given_ranges: list[list[tuple[int, int]]], first: int, length: int) -> None:
    held, expected = Intervals(), set()
    for ranges in given_ranges:
        held.add((start, start + size) for start, size in ranges)
        expected |= {number for start, size in ranges for number in range(start, start + size + 1)}
    numbers = np.arange(-30, 80)
    assert held.contains(numbers).tolist() == [number in expected for number in numbers.tolist()]
    assert held.overlaps(first, first + length) is any(
        number in expected for number in range(first, first + length + 1)
    )
    assert len(held) == sum(number - 1 not in expected for number in expected)


def test_numbers_that_count_up_are_one_range() -> None:
    held = Intervals()
    for first in range(0, 100, 10):
        held.add([(first, first + 9)])
    assert len(held) == 1
    assert not held.overlaps(100, 200)


def test_the_lowest_and_the_highest_numbers_are_numbers_like_others() -> None:
    held = Intervals()
    held.add([(HIGHEST, HIGHEST), (LOWEST, LOWEST), (LOWEST, LOWEST + 1), (0, 0)])
    found = held.contains(np.array([LOWEST, LOWEST + 1, LOWEST + 2, -1, 0, HIGHEST - 1, HIGHEST]))
    assert found.tolist() == [True, True, False, False, True, False, True]
    assert len(held) == 3
