"""Records of a replicated channel in bulk: payloads become records and records become payloads without an object for each.

A record without headers is its payload behind a head of fixed size (wire/record.py). Records with headers take the way of
single records. Events of one size, the usual case of large batches, are copied as a matrix.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from meshbus.wire.column import ByteColumn, only_size
from meshbus.wire.record import RECORD_COST, pack_record_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Split = tuple[NDArray[np.void], NDArray[np.int32], memoryview]

HEAD = np.dtype([("ts_ns", "<i8"), ("origin", "<u8"), ("headers", "<u2")])
"""The head of a record, as wire/record.py writes it."""
_SIZE_AT = RECORD_COST - 2


def pack_record_column(
    offsets: NDArray[np.integer], data: NDArray[np.uint8], ts_ns: int, origin: int
) -> ByteColumn:  # hot: bench_replication
    """Write payloads as records without headers, published at one moment by one node."""
    count, head = len(offsets) - 1, pack_record_head(ts_ns, origin)
    starts = np.asarray(offsets, np.int64)
    edges = starts - starts[0] + RECORD_COST * np.arange(count + 1)
    size = only_size(starts)
    if size is None:
        view, positions = data.data, starts.tolist()
        parts = [part for left, right in pairwise(positions) for part in (head, view[left:right])]
        return ByteColumn(memoryview(b"".join(parts)), edges)
    out = np.empty((count, RECORD_COST + size), np.uint8)
    out[:, :RECORD_COST] = np.frombuffer(head, np.uint8)
    out[:, RECORD_COST:] = data[starts.item(0) : starts.item(-1)].reshape(count, size)
    return ByteColumn(out.reshape(-1).data, edges)


def split_record_column(records: ByteColumn) -> Split | None:  # hot: bench_replication
    """Return the heads of records, and offsets and data of their payloads; None if one has headers or is no record."""
    edges, count, size = records.edges, len(records), records.only_size()
    if not count or np.diff(edges).min() < RECORD_COST:
        return None
    raw = np.frombuffer(records.data, np.uint8)
    rows = None if size is None else raw[edges.item(0) : edges.item(-1)].reshape(count, size)
    packed = raw[edges[:-1, None] + np.arange(RECORD_COST)] if rows is None else rows[:, :RECORD_COST].copy()
    heads: NDArray[np.void] = packed.reshape(-1).view(HEAD)
    if heads["headers"].any():
        return None
    offsets = (edges - edges[0] - RECORD_COST * np.arange(count + 1)).astype(np.int32)
    if rows is None:
        parts = [records.data[left + RECORD_COST : right] for left, right in pairwise(edges.tolist())]
        return heads, offsets, memoryview(b"".join(parts))
    return heads, offsets, np.ascontiguousarray(rows[:, RECORD_COST:]).reshape(-1).data


def have_headers(records: ByteColumn) -> bool:
    """Return whether one of the records has headers; what is too short to be a record has none."""
    edges, size, raw = records.edges, records.only_size(), np.frombuffer(records.data, np.uint8)
    if size is not None:
        rows = raw[edges.item(0) : edges.item(-1)].reshape(len(records), size)
        return size >= RECORD_COST and bool(rows[:, _SIZE_AT:RECORD_COST].any())
    places = edges[:-1][np.diff(edges) >= RECORD_COST] + _SIZE_AT
    return bool(raw[places].any() or raw[places + 1].any())
