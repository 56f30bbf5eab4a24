"""Byte strings in one buffer: a sequence that large batches use in place of a tuple of bytes.

An object for each event costs more than everything else that is done with it, so batches stay in this form from the
publisher to the disk and from packets to the disk. Where a few events are handled, a tuple does; the functions here take
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ByteColumn(Sequence[bytes]):
    """Byte strings one after the other; a slice is a view of the same buffer."""

    __slots__ = ("data", "edges")

    def __init__(self, data: memoryview, edges: NDArray[np.int64]) -> None:
        self.data = data
        self.edges = edges
        """String `i` is `data[edges[i] : edges[i + 1]]`."""

    def __len__(self) -> int:
        return len(self.edges) - 1

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> ByteColumn: ...
    def __getitem__(self, place: int | slice) -> bytes | ByteColumn:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice of a column has step 1, got {step}")
            return ByteColumn(self.data, self.edges[start : max(start, stop) + 1])
        place = range(len(self))[place]
        return bytes(self.data[self.edges.item(place) : self.edges.item(place + 1)])

    def __iter__(self) -> Iterator[bytes]:
        edges = self.edges.tolist()
        raw, base = bytes(self.data[edges[0] : edges[-1]]), edges[0]
        return (raw[left - base : right - base] for left, right in pairwise(edges))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, bytes | str):
            return NotImplemented
        return len(self) == len(other) and all(map(bytes.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ByteColumn({list(self)!r})"

    @property
    def nbytes(self) -> int:
        """Bytes of all strings."""
        return self.edges.item(-1) - self.edges.item(0)

    def only_size(self) -> int | None:
        """Return the size that all strings have, or None if they differ or there is none."""
        return only_size(self.edges)


def column_of(data: memoryview, sizes: NDArray[np.integer]) -> ByteColumn:
    """Return strings of these sizes, which begin at the start of a buffer."""
    edges = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=edges[1:])
    return ByteColumn(data, edges)


def only_size(edges: NDArray[np.int64]) -> int | None:
    """Return the size of all strings between these edges, or None if they differ or there is none."""
    sizes = np.diff(edges)
    return int(sizes[0]) if len(sizes) and bool((sizes == sizes[0]).all()) else None


def nbytes_of(strings: Sequence[bytes]) -> int:  # hot: bench_replication
    """Return the bytes of all strings."""
    return strings.nbytes if isinstance(strings, ByteColumn) else sum(map(len, strings))


def largest_of(strings: Sequence[bytes]) -> int:
    """Return the size of the largest string; 0 if there is none."""
    if isinstance(strings, ByteColumn):
        return int(np.diff(strings.edges).max(initial=0))
    return max(map(len, strings), default=0)


def joined(parts: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """Return the strings of several sequences as one; a single one is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    columns = [part for part in parts if isinstance(part, ByteColumn)]
    if not parts or len(columns) < len(parts):
        return tuple(chain.from_iterable(parts))
    views = [one.data[one.edges.item(0) : one.edges.item(-1)] for one in columns]
    return column_of(memoryview(b"".join(views)), np.concatenate([np.diff(one.edges) for one in columns]))


def fitting(strings: Sequence[bytes], max_bytes: int, cost: int) -> Sequence[bytes]:  # hot: bench_replication
    """Return as many of the first strings as fit `max_bytes`, with `cost` bytes for each in addition."""
    if isinstance(strings, ByteColumn):
        edges = strings.edges
        ends = edges[1:] - edges.item(0) + cost * np.arange(1, len(edges))
        return strings[: int(np.searchsorted(ends, max_bytes, side="right"))]
    for place, string in enumerate(strings):
        max_bytes -= cost + len(string)
        if max_bytes < 0:
            return strings[:place]
    return strings
