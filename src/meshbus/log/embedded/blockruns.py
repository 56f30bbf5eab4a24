"""The columns of the blocks of a hot file as runs: what sealing encodes.

A block has most of its columns as one number, so a run usually takes many blocks, and rows are only looked at where a
block has an array. The blocks are found, and checked, by log/embedded/blockscan.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.embedded.blockscan import (
    COLUMNS,
    COUNT,
    EACH,
    HEADER,
    KINDS_AT,
    NULL,
    SAME,
    SIZES,
    SOME,
    Parts,
    cells_size,
    padded_size,
    rows_of,
)
from meshbus.log.parquet.runs import Runs
from meshbus.log.rows import STORED, expand

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.embedded.blockscan import Bytes, Numbers

    Flags = NDArray[np.bool_]

_STEPPED = ("pub_seq", "packet_seq", "event_index")
"""Columns that often count: their runs have steps of 0 or 1."""
_IN_STEPS = np.array([column.name in _STEPPED for column in STORED])
_SETTLED: Final = 3
"""Rows after which equal or counting values continue one run, whatever came before them."""
_FEW: Final = 4_096
"""Runs per column that there is room for at first."""
_HIGHEST: Final = (1 << 63) - 1


class _Room(NamedTuple):
    """Space for the runs of all columns; the fields are those of Runs, for each column."""

    starts: NDArray[np.int32]
    values: Numbers
    valid: Flags
    steps: Numbers

    @classmethod
    def of(cls, runs: int) -> _Room:
        shape = (COLUMNS, runs)
        numbers, steps = np.empty(shape, np.int64), np.empty(shape, np.int64)
        return cls(np.empty(shape, np.int32), numbers, np.empty(shape, np.bool_), steps)

    def column(self, row: int, runs: int) -> Runs:
        return Runs(self.starts[row, :runs], self.values[row, :runs], self.valid[row, :runs], self.steps[row, :runs])


class RunFinder:
    """Finds the runs of ranges of rows, one after the other."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # Most columns have few runs. New memory for a run per row would cost more than finding them.
        self._room = _Room.of(_FEW)

    def runs(self, low: int, high: int) -> dict[str, Runs]:
        """Return the stored columns of a range of rows; they are overwritten by the next call."""
        used = self._gathered(low, high)
        if used is None:
            # There are never more runs than rows, so this is enough; it is kept for the next range.
            self._room = _Room.of(high - low)
            used = self._gathered(low, high)
            assert used is not None
        return {column.name: self._room.column(row, used[row]) for row, column in enumerate(STORED)}

    def _gathered(self, low: int, high: int) -> list[int] | None:
        """Find the runs of a range; return their number for each column, or None if there is not enough room."""
        data, places, firsts, _ = self._parts
        starts, values, valid, steps = self._room
        where, used = np.array([self._parts.block_of(low), low]), np.zeros(COLUMNS, np.int64)
        done = _gather.run(data, places, firsts, where, high, starts, values, valid, steps, used)
        return used.tolist() if done else None


def _gather_reference(
    data: Bytes,
    places: Numbers,
    firsts: Numbers,
    where: Numbers,
    high: int,
    starts: NDArray[np.int32],
    values: Numbers,
    valid: Flags,
    steps: Numbers,
    used: Numbers,
) -> bool:
    block, low = where.tolist()
    while block < len(firsts) - 1 and firsts[block] < high:
        first = firsts.item(block)
        rows = rows_of(data, places.item(block))
        begin, end = max(low - first, 0), min(high - first, len(rows))
        for column, cells in enumerate(rows.cells):
            array, bitmap = expand(cells, len(rows), STORED[column].dtype)
            numbers = np.zeros(len(rows), np.int64) if array is None else array.astype(np.int64)
            there = np.full(len(rows), array is not None)
            if bitmap is not None:
                there = np.unpackbits(bitmap, count=len(rows), bitorder="little").astype(np.bool_)
            for row in range(begin, end):
                number = numbers.item(row) if there[row] else 0
                run, at = used.item(column) - 1, first + row - low
                if run >= 0 and valid[column, run] == there[row]:
                    length = at - starts.item(column, run)
                    newest = values.item(column, run) + (length - 1) * steps.item(column, run)
                    if _IN_STEPS[column] and length == 1 and number - newest in {0, 1}:
                        steps[column, run] = number - newest
                    if number - newest == steps[column, run]:
                        continue
                run += 1
                if run == starts.shape[1]:
                    return False
                starts[column, run], values[column, run], valid[column, run] = at, number, there[row]
                steps[column, run] = 0
                used[column] = run + 1
        block += 1
    return True


@jit.helper
def _number(address: int, size: int) -> np.int64:
    """Read a signed number of 2, 4 or 8 bytes."""
    if size == 8:
        return np.int64(jit.load_u64(address))
    # Two bytes more than needed may be read: cells are padded, and offsets follow them.
    value, sign = np.int64(jit.load_u32(address)), np.int64(1) << np.int64(8 * size - 1)
    return ((value & (2 * sign - 1)) ^ sign) - sign


@jit.kernel(_gather_reference)
def _gather(
    data: Bytes,
    places: Numbers,
    firsts: Numbers,
    where: Numbers,
    high: int,
    starts: NDArray[np.int32],
    values: Numbers,
    valid: Flags,
    steps: Numbers,
    used: Numbers,
) -> bool:
    """Add the rows from `where` (a block and a row) to `high` to the runs of all columns; False if there is no room."""
    base, block, low = data.ctypes.data, where[0], where[1]
    while block < len(firsts) - 1 and firsts[block] < high:
        first, count = firsts[block], firsts[block + 1] - firsts[block]
        begin, end = max(low - first, 0), min(high - first, count)
        at, place = first - low, base + places[block] + HEADER
        for column in range(COLUMNS):
            kind, size, stepped = data[places[block] + KINDS_AT + column], SIZES[column], _IN_STEPS[column]
            bits, cells = place, place
            place += cells_size(kind, count, size)
            there, value, step = kind != NULL, np.int64(0), np.int64(0)
            if SAME <= kind < EACH:
                value = np.int64(jit.load_u64(cells))
            if kind == COUNT:
                step = np.int64(1)
                value += begin
            if kind == SOME:
                cells += padded_size((count + 7) // 8)
            last = end
            if kind < EACH and (step == 0 or (stepped and value <= _HIGHEST - count)):
                last = min(end, begin + _SETTLED)  # the rest continues the run
            run = used[column] - 1
            newest, gap, was, second = np.int64(0), np.int64(0), False, False
            if run >= 0:
                # The last row before these, and the run that it is in.
                length, gap, was = at + begin - starts[column, run], steps[column, run], valid[column, run]
                newest, second = values[column, run] + (length - 1) * gap, length == 1
            for row in range(begin, last):
                if kind >= EACH:
                    value = _number(cells + row * size, size)
                if kind == SOME:
                    there = (data[bits - base + (row >> 3)] >> (row & 7)) & 1 == 1
                    if not there:
                        value = np.int64(0)
                if second and stepped and was == there and value > newest and value - newest == 1:
                    gap = np.int64(1)  # the second row of a run sets its step
                    steps[column, run] = gap
                # The last part holds unless the difference overflows.
                if run >= 0 and was == there and value - newest == gap and value >= newest:
                    second = False
                else:
                    run += 1
                    if run == starts.shape[1]:
                        return False
                    starts[column, run], values[column, run] = at + row, value
                    valid[column, run], steps[column, run] = there, 0
                    gap, was, second = np.int64(0), there, True
                newest = value
                value += step
            used[column] = run + 1
        block += 1
    return True
