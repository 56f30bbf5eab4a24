"""Sorted keys, with a value beside each where wanted, in blocks of hundreds: a change moves one block, not the table.

A key costs one pointer, and so does a value; a Python list grows by an eighth at most, so little room is wasted. No key
is there twice. The subscription index (policy/prefixes.py) keeps its table and the prefixes of each peer in these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Any

_MOST = 512
"""Keys in a block; then it is split. Moving so many pointers costs less than finding the place, and lists of this size
leave few holes in memory behind them (bench_index)."""
_FEWEST = _MOST // 8
"""Below this a block joins its neighbor, so that what once was large leaves no trail of small blocks."""


class SortedBlocks:
    """Sorted keys in blocks, and the value of each at the same block and place of `values`, where wanted."""

    __slots__ = ("heads", "keys", "size", "values")

    def __init__(self, *, values: bool = False) -> None:
        self.heads = [b""]
        """The first key of each block; below all keys for the first block."""
        self.keys: list[list[bytes]] = [[]]
        self.values: list[list[Any]] = [[]] if values else []
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        """Go through the keys, ascending."""
        return chain.from_iterable(self.keys)

    def find(self, key: bytes) -> tuple[int, int, bool]:
        """Find the block and the place of a key or where it would go, and whether it is there."""
        block = bisect_right(self.heads, key) - 1
        keys = self.keys[block]
        place = bisect_left(keys, key)
        return block, place, place < len(keys) and keys[place] == key

    def around(self, key: bytes) -> tuple[bytes | None, bool, bytes | None]:
        """Return the key before a key, whether it is there itself, and the key behind it."""
        block, place, found = self.find(key)
        behind = place + found
        before = after = None
        if place > 0:
            before = self.keys[block][place - 1]
        elif block > 0:
            before = self.keys[block - 1][-1]
        if behind < len(self.keys[block]):
            after = self.keys[block][behind]
        elif block + 1 < len(self.keys):
            after = self.keys[block + 1][0]
        return before, found, after

    def starting_with(self, prefix: bytes, most: int) -> list[bytes]:
        """List the first keys that start with a prefix and are longer."""
        block, place, found = self.find(prefix)
        place += found
        result: list[bytes] = []
        while len(result) < most:
            keys = self.keys[block]
            if place == len(keys):
                block, place = block + 1, 0
                if block == len(self.keys):
                    break
            elif keys[place].startswith(prefix):
                result.append(keys[place])
                place += 1
            else:
                break
        return result

    def insert(self, block: int, place: int, key: bytes, value: object = None) -> None:
        """Insert a key, and its value, at the place that `find` gave."""
        self.keys[block].insert(place, key)
        if self.values:
            self.values[block].insert(place, value)
        self.size += 1
        if len(self.keys[block]) > _MOST:
            self._split(block)

    def delete(self, block: int, place: int) -> None:
        """Delete the key at a place, and its value."""
        del self.keys[block][place]
        if self.values:
            del self.values[block][place]
        self.size -= 1
        if len(self.keys[block]) < _FEWEST and len(self.keys) > 1:
            self._join(max(block - 1, 0))
        elif place == 0 and block > 0:
            self.heads[block] = self.keys[block][0]

    def _split(self, block: int) -> None:
        """Make two halves of a block."""
        middle = len(self.keys[block]) // 2
        for column in self._columns():
            whole = column[block]
            column[block : block + 1] = [whole[:middle], whole[middle:]]
        self.heads.insert(block + 1, self.keys[block + 1][0])

    def _join(self, block: int) -> None:
        """Join a block and the next one; too large a result is two equal halves again."""
        for column in self._columns():
            column[block : block + 2] = [column[block] + column[block + 1]]
        del self.heads[block + 1]
        if len(self.keys[block]) > _MOST:
            self._split(block)

    def _columns(self) -> list[list[list[Any]]]:
        return [self.keys, self.values] if self.values else [self.keys]
