"""Sorted list of unique keys, optionally with values, stored in blocks so that a change moves one block only.

A key takes one pointer, and so does a value; a Python list over-allocates by an eighth at most, so little memory is
wasted. The subscription index (policy/prefixes.py) uses it for its table and for the prefixes of each peer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

_MOST = 512
"""Keys in a block before it is split: moving this many pointers costs less than finding the place, and lists of this
size fragment the memory little (bench_index)."""
_FEWEST = _MOST // 8
"""Keys in a block below which it is joined with its neighbor, so that a table that shrinks does not keep many small
blocks. Our choice."""


class SortedBlocks:
    """Sorted keys in blocks; the value of a key, if there are values, is at the same block and place of `values`."""

    __slots__ = ("heads", "keys", "size", "values")

    def __init__(self, *, values: bool = False) -> None:
        self.heads = [b""]
        """The first key of each block; for the first block the empty key, which sorts before all others."""
        self.keys: list[list[bytes]] = [[]]
        self.values: list[list[Any]] = [[]] if values else []
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the keys in order."""
        return chain.from_iterable(self.keys)

    def find(self, key: bytes) -> tuple[int, int, bool]:
        """Return the block and place of a key, or where to insert it, and whether it is there."""
        # The first head is the empty key, so the result is never -1.
        block = bisect_right(self.heads, key) - 1
        keys = self.keys[block]
        place = bisect_left(keys, key)
        return block, place, place < len(keys) and keys[place] == key

    def around(self, key: bytes) -> tuple[bytes | None, bool, bytes | None]:
        """Return the key before a key, whether the key itself is there, and the key after it."""
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
        """Return the first `most` keys that start with a prefix and are longer than it."""
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
        """Insert a key, and its value, at the place that `find` returned."""
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
            # With the neighbor before it; the first block has none and takes the one after it.
            self._join(max(block - 1, 0))
        # The head of the first block stays empty, so that `find` works for every key.
        elif place == 0 and block > 0:
            self.heads[block] = self.keys[block][0]

    def fill(self, keys: list[bytes], values: list[Any] | None = None) -> None:
        """Replace everything by these keys, which are sorted and unique, and by their values."""
        # Blocks of three quarters, so that the next insertions do not split every one.
        blocks = max(-(-len(keys) // (_MOST * 3 // 4)), 1)
        edges = [len(keys) * number // blocks for number in range(blocks + 1)]
        for column, content in zip(self._columns(), (keys, values), strict=False):
            assert content is not None
            column[:] = [content[start:stop] for start, stop in pairwise(edges)]
        self.heads[:] = [b"", *(block[0] for block in self.keys[1:])]
        self.size = len(keys)

    def _split(self, block: int) -> None:
        """Split a block into two halves."""
        middle = len(self.keys[block]) // 2
        for column in self._columns():
            whole = column[block]
            column[block : block + 1] = [whole[:middle], whole[middle:]]
        self.heads.insert(block + 1, self.keys[block + 1][0])

    def _join(self, block: int) -> None:
        """Join a block and the next one; if the result is too large, split it into equal halves."""
        for column in self._columns():
            column[block : block + 2] = [column[block] + column[block + 1]]
        del self.heads[block + 1]
        if len(self.keys[block]) > _MOST:
            self._split(block)

    def _columns(self) -> list[list[list[Any]]]:
        return [self.keys, self.values] if self.values else [self.keys]
