"""Rows as they lie in memory and in hot files: each says only which of its words differ from those of the row before.

    mask u32      bit n is set when word n of the row (log/packets/row.py) is not what it was
    words u64     those that are not, in order

Packets of a train differ in a counter or two, so a row of 136 bytes mostly takes 12 or 20; the worst takes PACKED_MOST.
The first row of a block has zeros before it: every block is read for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.packets.row import ROW, ROW_BYTES, ROW_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.packets.row import Bytes, Words

BLOCK_ROWS: Final = 8_192
"""Rows of one block at most."""
MASK_BYTES: Final = 4
PACKED_MOST: Final = MASK_BYTES + ROW_BYTES
"""Bytes of a row in which every word differs."""
END, ROWS, LAST, NEXT, STARTS = 0, 1, 2, 2 + ROW_WORDS, 2 + 2 * ROW_WORDS
"""The state of an arena, as `fill` keeps it: bytes and rows that are there, the last row, room for the next one, and where
each block starts."""

_HASH_WORD: Final = 16
_BROKEN: Final = -1


class Packed(NamedTuple):
    """Rows of one block."""

    data: Bytes
    length: int
    """How many there are."""


class Arena:
    """Memory of a fixed size that rows are packed into, one block after the other."""

    def __init__(self, rows: int) -> None:
        """Have room for so many rows, whatever is in them; rows must fill whole blocks."""
        self.data: Bytes = np.empty(rows * PACKED_MOST, np.uint8)
        self.data.fill(0)  # have all of its pages now: the first packets would wait for each
        self.state = np.zeros(STARTS + rows // BLOCK_ROWS, np.int64)

    @property
    def rows(self) -> int:
        """How many are there."""
        return self.state.item(ROWS)

    def blocks(self) -> list[Packed]:
        """Give what is there, where it lies."""
        rows, end = self.rows, self.state.item(END)
        firsts = range(0, rows, BLOCK_ROWS)
        starts = [*self.state[STARTS : STARTS + len(firsts)].tolist(), end]
        return [
            Packed(self.data[starts[number] : starts[number + 1]], min(BLOCK_ROWS, rows - first))
            for number, first in enumerate(firsts)
        ]

    def clear(self) -> None:
        """Have nothing there any more."""
        self.state[END] = self.state[ROWS] = 0


def pack_rows(rows: NDArray[np.void], before: Words | None = None) -> Packed:
    """Pack rows behind one that is there already, or as a block of their own."""
    count = len(rows)
    words = np.zeros((count + 1, ROW_WORDS), np.uint64)
    if before is not None:
        words[0] = before
    words[1:] = np.frombuffer(rows.tobytes(), np.uint64).reshape(count, ROW_WORDS)
    changed = words[1:] != words[:-1]
    parts = np.empty((count, 1 + 2 * ROW_WORDS), np.uint32)
    parts[:, 0] = changed @ (1 << np.arange(ROW_WORDS))
    parts[:, 1:] = words[1:].view(np.uint32)
    kept = np.ones(parts.shape, np.bool_)
    kept[:, 1:] = np.repeat(changed, 2, axis=1)
    return Packed(parts[kept].view(np.uint8), count)


def unpack_rows(packed: Packed) -> NDArray[np.void]:
    """Give the rows of a block as they were; takes its time."""
    data, at = packed.data.tobytes(), 0
    changed = np.zeros((packed.length, ROW_WORDS), np.bool_)
    words = bytearray()
    for number in range(packed.length):
        mask = int.from_bytes(data[at : at + MASK_BYTES], "little")
        changed[number] = [mask >> word & 1 for word in range(ROW_WORDS)]
        begin, at = at + MASK_BYTES, at + MASK_BYTES + 8 * mask.bit_count()
        words += data[begin:at]
    table = np.zeros((packed.length + 1, ROW_WORDS), np.uint64)
    table[1:][changed] = np.frombuffer(words, np.uint64)
    newest = np.maximum.accumulate(np.where(changed, np.arange(1, packed.length + 1)[:, None], 0), axis=0)
    return np.take_along_axis(table, newest, axis=0).view(ROW)[:, 0]


def hashes_in(packed: Packed) -> set[int] | None:
    """Give the canonical hashes in a block, 0 among them where one is missing; None when the block is not whole."""
    found = np.empty(packed.length, np.uint64)
    count = _walk.run(jit.writable(packed.data), packed.length, found)
    return None if count == _BROKEN else set(found[:count].tolist())


def _walk_reference(data: Bytes, count: int, hashes: Words) -> int:
    whole, at, found, last = data.tobytes(), 0, 0, -1
    for number in range(count):
        mask = int.from_bytes(whole[at : at + MASK_BYTES], "little")
        at += MASK_BYTES + 8 * mask.bit_count()
        if mask >> ROW_WORDS or at > len(whole):
            return _BROKEN
        value = int.from_bytes(whole[at - 8 : at], "little") if mask >> _HASH_WORD else 0 if number == 0 else last
        if value != last:
            hashes[found] = last = value
            found += 1
    return found if at == len(whole) else _BROKEN


@jit.kernel(_walk_reference)
def _walk(data: Bytes, count: int, hashes: Words) -> int:
    """Find the hashes of rows, those that follow each other once, and that a block has its rows and nothing else."""
    begin, size, at, found = data.ctypes.data, len(data), 0, 0
    last = np.uint64(0)
    for number in range(count):
        if at + MASK_BYTES > size:
            return _BROKEN
        mask = left = np.int64(jit.load_u32(begin + at))
        at += MASK_BYTES
        if mask >> ROW_WORDS:
            return _BROKEN
        while left:
            at += 8
            left &= left - 1
        if at > size:
            return _BROKEN
        value = np.uint64(jit.load_u64(begin + at - 8)) if mask >> _HASH_WORD else last
        if number == 0 or value != last:
            hashes[found] = last = value
            found += 1
    return found if at == size else _BROKEN
