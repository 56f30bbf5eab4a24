"""A set of numbers as disjoint ranges, for many numbers in few ranges: the publish numbers and sequences in silver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Intervals:
    """A set of 64-bit numbers, stored as sorted ranges that neither touch nor overlap."""

    def __init__(self) -> None:
        self._firsts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._lasts: NDArray[np.int64] = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def add(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add ranges, each with its first and last number."""
        given = np.array(list(ranges), np.int64).reshape(-1, 2)
        if not len(given):
            return
        if len(given) == 1 and self._extend(*map(int, given[0])):
            return
        firsts, lasts = np.concatenate((self._firsts, given[:, 0])), np.concatenate((self._lasts, given[:, 1]))
        order = np.argsort(firsts, kind="stable")
        firsts, reach = firsts[order], np.maximum.accumulate(lasts[order])
        begins = range_starts(firsts, reach)
        self._firsts, self._lasts = firsts[begins], reach[np.append(begins[1:], len(order)) - 1]

    def contains(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each number whether it is in the set."""
        if not len(self._firsts):
            return np.zeros(len(numbers), np.bool_)
        place = np.searchsorted(self._firsts, numbers, side="right") - 1
        return (place >= 0) & (self._lasts[place] >= numbers)

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether any number of a range is in the set."""
        place = int(np.searchsorted(self._firsts, last, side="right"))
        return place > 0 and bool(self._lasts[place - 1] >= first)

    def _extend(self, first: int, last: int) -> bool:
        """Append to the last range without sorting, which is nearly always possible; returns whether it was."""
        if not len(self._firsts) or first < self._firsts[-1] or first - 1 > self._lasts[-1]:
            return False
        self._lasts[-1] = max(int(self._lasts[-1]), last)
        return True


def range_starts(firsts: NDArray[np.int64], reach: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where ranges begin that neither touch nor overlap, in ranges in the order of their first numbers.

    `reach` is the highest number of each range and all before it. A range begins where its first number is beyond
    everything before it, by more than one; the difference of two extreme numbers would exceed 64 bits.
    """
    apart = (firsts[1:] > reach[:-1]) & (firsts[1:] - 1 != reach[:-1])
    return np.flatnonzero(np.concatenate(([True], apart)))
