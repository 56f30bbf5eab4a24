"""One event of a log as a Python object; batches of columns (log/arrow.py) are faster for many."""

from __future__ import annotations

from typing import Any

import msgspec

from meshbus.log.rows import Rows
from meshbus.log.schema import unsigned


class LogEvent(msgspec.Struct, frozen=True):
    """One event of a log."""

    seq: int
    payload: bytes
    ts_ns: int
    """When the event happened, in nanoseconds since 1970."""
    origin: int
    """Origin hash of the publisher."""
    pub_seq: int | None = None
    headers: dict[str, bytes] | None = None


COLUMNS = ("seq", "payload", "ts_ns", "origin", "pub_seq", "headers")
"""The columns that an event is made of."""


def events_of_rows(rows: Rows, start: int, stop: int) -> list[LogEvent]:
    """Return the events of a range, which must be within `rows`."""  # hot
    low, high = start - rows.first, stop - rows.first
    times, _ = rows.values("ts_ns")
    origins, _ = rows.values("origin")
    numbers, valid = rows.values("pub_seq")
    assert times is not None
    assert origins is not None
    published = [None] * (high - low) if numbers is None else numbers[low:high].tolist()
    # One bit per row, the lowest first, as in Arrow.
    if valid is not None:
        published = [number if valid[row >> 3] >> (row & 7) & 1 else None for row, number in enumerate(published, low)]
    headers = [None] * (high - low) if rows.headers is None else [rows.headers.row(row) for row in range(low, high)]
    columns = (range(start, stop), rows.payloads(low, high), times[low:high].tolist())
    return list(map(LogEvent, *columns, unsigned(origins[low:high]).tolist(), published, headers))


def events_of_batch(batch: Any) -> list[LogEvent]:
    """Return the events of a record batch that has COLUMNS."""
    seqs, payloads, times, _, published, headers = (batch.column(name).to_pylist() for name in COLUMNS)
    origins = unsigned(batch.column("origin").to_numpy()).tolist()
    pairs = (None if row is None else dict(row) for row in headers)
    return list(map(LogEvent, seqs, payloads, times, origins, published, pairs))
