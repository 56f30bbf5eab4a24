"""Rows as they lie in memory and in hot files: each says only what is not as it was in the row before.

    mask u32      bit n is set when word n of the row (log/packets/row.py) is not what it was
    words u64     those that are not, in order

    count u32     with its highest bit set: so many more rows, in each of which the packet counter and the sequence go on
                  by as much as in the row before, and everything else stays

The packets of a train differ in these two numbers, so a train mostly takes 32 bytes; a row takes PACKED_MOST at worst. The
first row of a block has zeros before it, and is no repetition: every block is read for itself.
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

BLOCK_ROWS: Final = 8_192
"""Rows of one block at most."""
MASK_BYTES: Final = 4
PACKED_MOST: Final = MASK_BYTES + ROW_BYTES
"""Bytes of a row in which every word differs."""
REPEAT: Final = 1 << 31
COUNTER, SEQUENCE = 2, 5
"""Words that go on by a step while a row is repeated."""
STEPPING: Final = 1 << COUNTER | 1 << SEQUENCE

# The memory of an arena begins with its state, in words.
END, ROWS, ROOM = 0, 1, 2
"""Bytes and rows that are there, and rows that there may be."""
SEEN, TAKEN, LOST = 3, 4, 5
"""Packets that were ever offered, rows that were chosen and found room, and rows that were chosen and found none."""
SEED, HIGHEST = 6, 7
"""The rule by which packets are chosen (log/packets/fill.py)."""
REPEATED, STEPS = 8, 9
"""Rows in the repetition that ends what is there, and the steps of the two words that go on."""
EXPECTED = STEPS + 2
"""What the next row is if it is a repetition."""
NEXT = EXPECTED + ROW_WORDS
"""Room for the next row."""
STARTS = NEXT + ROW_WORDS
"""Where each block starts; the rows are behind that."""

_HASH_WORD: Final = 16
_BROKEN: Final = -1
_WORD: Final = (1 << 64) - 1


class Packed(NamedTuple):
    """Rows of one block."""

    data: Bytes
    length: int
    """How many there are."""


class Arena:
    """Memory of a fixed size that rows are packed into, one block after the other."""

    def __init__(self, rows: int, rule: tuple[int, int] = (0, _WORD)) -> None:
        """Have room for so many rows, whatever is in them; rows must fill whole blocks."""
        self.memory: Memory = np.empty(STARTS + rows // BLOCK_ROWS + -(-rows * PACKED_MOST // 8), np.int64)
        self.memory.fill(0)  # have all of its pages now: the first packets would wait for each
        self.memory[ROOM] = rows
        self.memory[SEED : HIGHEST + 1].view(np.uint64)[:] = rule

    @property
    def rows(self) -> int:
        """How many are there."""
        return self.memory.item(ROWS)

    @property
    def counts(self) -> Memory:
        """What was seen, taken and lost, by this arena and by those before it."""
        return self.memory[SEEN : LOST + 1]

    def blocks(self) -> list[Packed]:
        """Give what is there, where it lies."""
        rows, data = self.rows, data_of(self.memory)
        firsts = range(0, rows, BLOCK_ROWS)
        starts = [*self.memory[STARTS : STARTS + len(firsts)].tolist(), self.memory.item(END)]
        return [
            Packed(data[starts[number] : starts[number + 1]], min(BLOCK_ROWS, rows - first))
            for number, first in enumerate(firsts)
        ]

    def clear(self) -> None:
        """Have nothing there any more."""
        self.memory[END] = self.memory[ROWS] = 0


def data_of(memory: Memory) -> Bytes:
    """Give the part of an arena's memory that rows are packed into."""
    return memory[STARTS + memory.item(ROOM) // BLOCK_ROWS :].view(np.uint8)


class Packer:
    """Packs the rows of one block, plainly: what `fill` does in a loop."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.expected: list[int] = []
        """Empty before the first row."""
        self.steps = [0, 0]
        self.repeated = 0

    def add(self, row: list[int]) -> None:
        """Pack one more row, given as its words."""
        if row == self.expected:
            if self.repeated:
                del self.data[-MASK_BYTES:]
            self.repeated += 1
            self.data += (REPEAT | self.repeated).to_bytes(MASK_BYTES, "little")
        else:
            last = _advanced(self.expected, [-step for step in self.steps]) if self.expected else [0] * ROW_WORDS
            changed = [word for word in range(ROW_WORDS) if row[word] != last[word]]
            self.data += sum(1 << word for word in changed).to_bytes(MASK_BYTES, "little")
            self.data += b"".join(row[word].to_bytes(8, "little") for word in changed)
            self.steps, self.repeated = _steps_between(last, row), 0
        self.expected = _advanced(row, self.steps)


def _steps_between(last: list[int], row: list[int]) -> list[int]:
    return [row[word] - last[word] & _WORD for word in (COUNTER, SEQUENCE)]


def _advanced(row: list[int], steps: list[int]) -> list[int]:
    """Give a row as it is when it is repeated."""
    after = row.copy()
    for word, step in zip((COUNTER, SEQUENCE), steps, strict=True):
        after[word] = after[word] + step & _WORD
    return after


def words_of(rows: NDArray[np.void]) -> list[list[int]]:
    """Give the words of rows."""
    words: list[list[int]] = np.frombuffer(rows.tobytes(), np.uint64).reshape(-1, ROW_WORDS).tolist()
    return words


def pack_rows(rows: NDArray[np.void]) -> Packed:
    """Pack rows as a block of their own; takes its time."""
    packer = Packer()
    for row in words_of(rows):
        packer.add(row)
    return Packed(np.frombuffer(packer.data, np.uint8), len(rows))


def unpack_rows(packed: Packed) -> NDArray[np.void]:
    """Give the rows of a block as they were, or the first ones of it; takes its time."""
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
    """Give the canonical hashes in a block, 0 among them where one is missing; None when the block is not whole."""
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
    """Find the hashes of rows, those that follow each other once, and that a block has its rows and nothing else."""
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
        number += np.int64(1)
    return found if at == size else _BROKEN
