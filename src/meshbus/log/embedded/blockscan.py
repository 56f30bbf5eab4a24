"""Find the parts of the blocks of a hot file, and copy payloads out of them: what sealing reads.

`HotView.rows` returns objects for each block, which suits readers, but takes longer than all encoding if blocks are small.
Here compiled loops walk over the mapped file without the interpreter's lock, so that appends go on meanwhile. The layout
of a block is in log/embedded/block.py; the references use `read_rows` of that module. The columns of the blocks are found
by log/embedded/blockruns.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.embedded.block import BLOCK_HEADER, BlockKey, read_rows, unpack_block
from meshbus.log.headers import padded
from meshbus.log.rows import STORED, Kind, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.embedded.hot import HotView

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]

SIZES = np.array([column.dtype.itemsize for column in STORED], np.int64)
"""Bytes of a cell of each column."""
COLUMNS: Final = len(STORED)
HEADER: Final = BLOCK_HEADER
KINDS_AT: Final = 48
"""Where in a block the kinds of its columns are."""
NULL, _, SAME, COUNT, EACH, SOME = (int(kind) for kind in Kind)
_LENGTH_AT, _COUNT_AT, _PAYLOAD_AT = 4, 40, 44
_PREFIX: Final = 4
"""Bytes of the length before each payload in a plain page of Parquet."""
_BLOCK, _ROW = 0, 1
"""Fields of a cursor."""


class Damaged(ValueError):
    """A block is not what its header says; `at` is its offset in the file."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Parts(NamedTuple):
    """Where the parts of the blocks of a hot file are. Rows have numbers from 0."""

    data: Bytes
    """The mapped file."""
    places: Numbers
    """Offset of each block, and of the end of the last one."""
    firsts: Numbers
    """Number of the first row of each block, and of the row after the last one."""
    bodies: Numbers
    """Offset of the payload offsets of each block."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.firsts.item(-1)

    def block_of(self, row: int) -> int:
        """Return the block that has a row."""
        return int(np.searchsorted(self.firsts, row, "right")) - 1

    def payloads(self, low: int, high: int, size: int) -> Iterator[tuple[memoryview, int]]:
        """Yield the payloads of a range of rows, each after its length, in parts of about `size` bytes.

        Each part comes with its number of rows and is overwritten by the next one. Raises Damaged.
        """
        out, cursor = np.empty(size, np.uint8), np.array([self.block_of(low), low])
        while (row := cursor.item(_ROW)) < high:
            used = _copy_payloads.run(*self, cursor, high, out)
            if used < 0:
                raise Damaged(self.places.item(cursor.item(_BLOCK)))
            if used:
                yield out.data[:used], cursor.item(_ROW) - row
            else:  # a payload that is larger than a part
                out = np.empty(2 * len(out), np.uint8)


def survey(view: HotView) -> Parts | None:
    """Find the parts of all blocks of a hot file; return None if one has headers, and raise Damaged if one is not whole."""
    places, firsts = view.layout()
    bodies = np.zeros(len(places) - 1, np.int64)
    parts = Parts(np.frombuffer(view.mapped(), np.uint8), places, firsts - firsts[0], bodies)
    problem = _survey.run(*parts)
    if problem < 0:
        return None
    if problem < len(bodies):
        raise Damaged(places.item(problem))
    return parts


# ── the parts of blocks ─────────────────────────────────────────────────────────────────────


def rows_of(data: Bytes, at: int) -> Rows:
    """Parse a block; raises ValueError or struct.error if it is not whole."""
    buffer = data.data
    # Its checksum was verified when the file was opened, or written by this process.
    return read_rows(buffer, at, unpack_block(buffer, at, BlockKey(bytes(buffer[at : at + 4]), 0), check=False))


def _survey_reference(data: Bytes, places: Numbers, firsts: Numbers, bodies: Numbers) -> int:
    for block, (at, stop) in enumerate(pairwise(places.tolist())):
        try:
            rows = rows_of(data[:stop], at)
        except (ValueError, struct.error):
            return block
        size, whole = len(rows.data), int.from_bytes(data[at + _LENGTH_AT : at + _LENGTH_AT + 4].tobytes(), "little")
        end = at + HEADER + whole  # control blocks may follow before the next block
        if len(rows) != firsts[block + 1] - firsts[block] or end > stop:
            return block
        if rows.headers is not None:
            return -1
        bodies[block] = end - padded(size) - padded(4 * len(rows) + 4)
    return len(bodies)


@jit.helper
def padded_size(size: int) -> int:
    """Round a size up to a multiple of 8, in compiled loops."""
    return (size + 7) & ~7


@jit.helper
def _u32(address: int) -> Any:
    # As a signed number, because differences of unsigned ones would wrap.
    return np.int64(jit.load_u32(address))


@jit.kernel(_survey_reference)
def _survey(data: Bytes, places: Numbers, firsts: Numbers, bodies: Numbers) -> int:
    """Fill in where the bodies of blocks are; return the first block that is damaged, or -1 if one has headers."""
    base = data.ctypes.data
    for block in range(len(bodies)):
        at, stop = base + places[block], base + places[block + 1]
        if stop - at < HEADER or stop > base + len(data):
            return block
        count, size = _u32(at + _COUNT_AT), _u32(at + _PAYLOAD_AT)
        end = at + HEADER + _u32(at + _LENGTH_AT)  # control blocks may follow before the next block
        if end > stop or count != firsts[block + 1] - firsts[block]:
            return block
        kinds = data[places[block] + KINDS_AT : places[block] + HEADER]
        if kinds[COLUMNS]:
            return -1
        place = at + HEADER
        for column in range(COLUMNS):
            if kinds[column] > SOME:
                return block
            place += cells_size(kinds[column], count, SIZES[column])
        # The sizes add up, so everything that follows is inside the block.
        if place + padded_size(4 * count + 4) + padded_size(size) != end or _u32(place + 4 * count) != size:
            return block
        bodies[block] = place - base
    return len(bodies)


@jit.helper
def cells_size(kind: int, count: int, size: int) -> int:
    """Return how many bytes the cells of a column take in a block."""
    if kind < SAME:
        return 0
    if kind < EACH:
        return 8
    return padded_size(count * size) + (padded_size((count + 7) // 8) if kind == SOME else 0)


# ── payloads ────────────────────────────────────────────────────────────────────────────────


def _copy_payloads_reference(
    data: Bytes, places: Numbers, firsts: Numbers, bodies: Numbers, cursor: Numbers, high: int, out: Bytes
) -> int:
    used = 0
    while (row := cursor.item(_ROW)) < high:
        block = cursor.item(_BLOCK)
        first, stop = firsts[block : block + 2].tolist()
        offsets = np.frombuffer(data, "<i4", stop - first + 1, bodies.item(block)).tolist()
        at, place = places.item(block) + _PAYLOAD_AT, bodies.item(block) + padded(4 * len(offsets))
        payloads = data[place : place + int.from_bytes(data[at : at + 4].tobytes(), "little")]
        for begin, end in pairwise(offsets[row - first : high - first + 1]):
            if not 0 <= begin <= end <= len(payloads):
                return -1
            if used + _PREFIX + end - begin > len(out):
                return used
            out[used : used + _PREFIX] = np.frombuffer((end - begin).to_bytes(_PREFIX, "little"), np.uint8)
            out[used + _PREFIX : used + _PREFIX + end - begin] = payloads[begin:end]
            used += _PREFIX + end - begin
            cursor[_ROW] += 1
        cursor[_BLOCK] += int(cursor[_ROW] < high)
    return used


@jit.kernel(_copy_payloads_reference)
def _copy_payloads(
    data: Bytes, places: Numbers, firsts: Numbers, bodies: Numbers, cursor: Numbers, high: int, out: Bytes
) -> int:
    """Copy payloads from a cursor (block, row) on, each after its length, while they fit; return the bytes used.

    Returns -1 if the offsets of a block are damaged; the cursor is then at that block.
    """
    target, base = out.ctypes.data, data.ctypes.data
    used = 0
    while cursor[_ROW] < high:
        block, row = cursor[_BLOCK], cursor[_ROW]
        count, limit = firsts[block + 1] - firsts[block], _u32(base + places[block] + _PAYLOAD_AT)
        offsets, stop = base + bodies[block], min(high, firsts[block + 1])
        source = offsets + padded_size(4 * count + 4)
        begin = _u32(offsets + 4 * (row - firsts[block]))
        while row < stop:
            end = _u32(offsets + 4 * (row - firsts[block]) + 4)
            if begin > end or end > limit:
                cursor[_ROW] = row
                return -1
            if used + _PREFIX + end - begin > len(out):
                cursor[_ROW] = row
                return used
            jit.store_u32(target + used, end - begin)
            jit.copy_bytes(target + used + _PREFIX, source + begin, end - begin)
            used += _PREFIX + end - begin
            begin = end
            row += 1
        cursor[_ROW] = row
        if row < high:
            cursor[_BLOCK] += 1
    return used
