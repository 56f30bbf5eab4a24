"""The packed form of rows in memory and in hot files: each row stores only what differs from the row before.

    mask u32      bit n is set if word n of the row (log/packets/row.py) differs
    words u64     the words that differ, in order

    count u32     with its highest bit set: this many more rows, in each of which the packet counter and the sequence
                  change by as much as in the row before, and everything else stays the same

The packets of a train differ in these two numbers only, so a train usually takes 32 bytes; a row takes at most
PACKED_MOST. The first row of a block is stored relative to zeros and is never a repetition: each block can be read on
its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.packets.row import ROW, ROW_BYTES, ROW_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.packets.row import Bytes, Words

    Memory = NDArray[np.int64]

# Our choice; one block is written and checked at a time.
BLOCK_ROWS: Final = 8_192
"""Most rows in one block: readers refuse more, because a few bytes can repeat a row any number of times."""
MASK_BYTES: Final = 4
PACKED_MOST: Final = MASK_BYTES + ROW_BYTES
"""Size of a packed row in which every word differs."""
REPEAT: Final = 1 << 31
COUNTER, SEQUENCE = 2, 5
"""The words that change by a constant step in a repetition."""
STEPPING: Final = 1 << COUNTER | 1 << SEQUENCE

# The memory of an arena begins with its state, in words.
END, ROWS, ROOM = 0, 1, 2
"""Bytes and rows in the arena, and its capacity in rows."""
SEEN, TAKEN, LOST = 3, 4, 5
"""Totals: packets offered, rows stored, and rows that were chosen but found no room."""
SEED, HIGHEST = 6, 7
"""The rule that chooses packets (log/packets/fill.py)."""
REPEATED, STEPS = 8, 9
"""Rows in the repetition at the end of the arena, and the steps of the two words that change in it."""
EXPECTED = STEPS + 2
"""The next row, if it continues the repetition."""
NEXT = EXPECTED + ROW_WORDS
"""Space for the next row."""
STARTS = NEXT + ROW_WORDS
"""Offset of each block; the rows follow."""

_HASH_WORD: Final = 16
_BROKEN: Final = -1
_WORD: Final = (1 << 64) - 1


class Packed(NamedTuple):
    """The packed rows of one block."""

    data: Bytes
    length: int
    """Number of rows."""


class Arena:
    """Memory of a fixed size that rows are packed into, one block after the other."""

    def __init__(self, rows: int, rule: tuple[int, int] = (0, _WORD)) -> None:
        """Allocate space for `rows` rows of any content; must be a multiple of BLOCK_ROWS."""
        self.memory: Memory = np.empty(STARTS + rows // BLOCK_ROWS + -(-rows * PACKED_MOST // 8), np.int64)
        self.memory.fill(0)  # touch every page now, or the first packets would wait for each page fault
        self.memory[ROOM] = rows
        self.memory[SEED : HIGHEST + 1].view(np.uint64)[:] = rule

    @property
    def rows(self) -> int:
        """Number of rows in the arena."""
        return self.memory.item(ROWS)

    @property
    def counts(self) -> Memory:
        """Totals of packets seen, taken and lost, those of earlier arenas included."""
        return self.memory[SEEN : LOST + 1]

    def blocks(self) -> list[Packed]:
        """Return the blocks of the arena as views."""
        rows, data = self.rows, data_of(self.memory)
        firsts = range(0, rows, BLOCK_ROWS)
        starts = [*self.memory[STARTS : STARTS + len(firsts)].tolist(), self.memory.item(END)]
        return [
            Packed(data[starts[number] : starts[number + 1]], min(BLOCK_ROWS, rows - first))
            for number, first in enumerate(firsts)
        ]

    def clear(self) -> None:
        """Remove all rows."""
        self.memory[END] = self.memory[ROWS] = 0


def data_of(memory: Memory) -> Bytes:
    """Return the part of an arena's memory that holds packed rows."""
    return memory[STARTS + memory.item(ROOM) // BLOCK_ROWS :].view(np.uint8)


class Packer:
    """Packs the rows of one block in plain Python; the reference for `fill`."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.expected: list[int] = []
        """Empty before the first row."""
        self.steps = [0, 0]
        self.repeated = 0

    def add(self, row: list[int]) -> None:
        """Pack one more row, given as words."""
        if row == self.expected:
            if self.repeated:
                del self.data[-MASK_BYTES:]
            self.repeated += 1
            self.data += (REPEAT | self.repeated).to_bytes(MASK_BYTES, "little")
        else:
            # `expected` is one step ahead of the last row.
            last = _advanced(self.expected, [-step for step in self.steps]) if self.expected else [0] * ROW_WORDS
            changed = [word for word in range(ROW_WORDS) if row[word] != last[word]]
            self.data += sum(1 << word for word in changed).to_bytes(MASK_BYTES, "little")
            self.data += b"".join(row[word].to_bytes(8, "little") for word in changed)
            self.steps, self.repeated = _steps_between(last, row), 0
        self.expected = _advanced(row, self.steps)


def _steps_between(last: list[int], row: list[int]) -> list[int]:
    return [row[word] - last[word] & _WORD for word in (COUNTER, SEQUENCE)]


def _advanced(row: list[int], steps: list[int]) -> list[int]:
    """Return the row after a row in a repetition."""
    after = row.copy()
    for word, step in zip((COUNTER, SEQUENCE), steps, strict=True):
        after[word] = after[word] + step & _WORD
    return after


def words_of(rows: NDArray[np.void]) -> list[list[int]]:
    """Return the words of rows."""
    words: list[list[int]] = np.frombuffer(rows.tobytes(), np.uint64).reshape(-1, ROW_WORDS).tolist()
    return words


def pack_rows(rows: NDArray[np.void]) -> Packed:
    """Pack rows as one block; slow."""
    packer = Packer()
    for row in words_of(rows):
        packer.add(row)
    return Packed(np.frombuffer(packer.data, np.uint8), len(rows))


def unpack_rows(packed: Packed) -> NDArray[np.void]:
    """Return the rows of a block, or its first ones; slow."""
    data, at, rows = packed.data.tobytes(), 0, [[0] * ROW_WORDS]
    steps = [0, 0]
    while len(rows) <= packed.length:
        mask = int.from_bytes(data[at : at + MASK_BYTES], "little")
        at += MASK_BYTES
        if mask & REPEAT:
            for _ in range(mask ^ REPEAT):
                rows.append(_advanced(rows[-1], steps))
            continue
        row = rows[-1].copy()
        for word in range(ROW_WORDS):
            if mask >> word & 1:
                row[word] = int.from_bytes(data[at : at + 8], "little")
                at += 8
        steps = _steps_between(rows[-1], row)
        rows.append(row)
    return np.array(rows[1 : packed.length + 1], np.uint64).reshape(packed.length, ROW_WORDS).view(ROW)[:, 0]


def hashes_in(packed: Packed) -> set[int] | None:
    """Return the canonical hashes in a block, with 0 for rows without one; None if the block is malformed."""
    found = np.empty(packed.length, np.uint64)
    count = _walk.run(jit.writable(packed.data), packed.length, found)
    return None if count == _BROKEN else set(found[:count].tolist())


def _walk_reference(data: Bytes, count: int, hashes: Words) -> int:
    whole, at, number, found, last = data.tobytes(), 0, 0, 0, -1
    while number < count:
        if at + MASK_BYTES > len(whole):
            return _BROKEN
        mask = int.from_bytes(whole[at : at + MASK_BYTES], "little")
        at += MASK_BYTES
        if mask & REPEAT:
            number += mask ^ REPEAT
            if number == mask ^ REPEAT or mask == REPEAT or number > count:
                return _BROKEN
            continue
        at += 8 * mask.bit_count()
        if mask >> ROW_WORDS or at > len(whole):
            return _BROKEN
        value = int.from_bytes(whole[at - 8 : at], "little") if mask >> _HASH_WORD else 0 if number == 0 else last
        if value != last:
            hashes[found] = last = value
            found += 1
        number += 1
    return found if at == len(whole) else _BROKEN


@jit.kernel(_walk_reference)
def _walk(data: Bytes, count: int, hashes: Words) -> int:
    """Collect the hashes of rows, equal neighbors once, and check that the block holds `count` rows and nothing else."""
    begin, size, at, found = data.ctypes.data, len(data), 0, 0
    number = np.int64(0)
    last = np.uint64(0)
    while number < count:
        if at + MASK_BYTES > size:
            return _BROKEN
        mask = left = np.int64(jit.load_u32(begin + at))
        at += MASK_BYTES
        if mask & REPEAT:
            left ^= REPEAT
            if number == 0 or left == 0 or number + left > count:
                return _BROKEN
            number += left
            continue
        # A bit for a word that rows do not have.
        if mask >> ROW_WORDS:
            return _BROKEN
        while left:
            at += 8
            left &= left - 1
        if at > size:
            return _BROKEN
        # The hash is the last word of a row, so if it changed it is the last one that was stored.
        value = np.uint64(jit.load_u64(begin + at - 8)) if mask >> _HASH_WORD else last
        if number == 0 or value != last:
            hashes[found] = last = value
            found += 1
        number += np.int64(1)
    return found if at == size else _BROKEN
