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
    ts_ns: int | None
    """When it was published, in nanoseconds since 1970 by the publisher's clock; None if unknown."""
    origin: int
    """Origin hash of the publisher."""
    pub_seq: int | None = None
    headers: dict[str, bytes] | None = None


COLUMNS = ("seq", "payload", "ts_ns", "origin", "pub_seq", "headers")
"""The columns that an event is made of."""


def events_of_rows(rows: Rows, start: int, stop: int) -> list[LogEvent]:
    """Return the events of a range, which must be within `rows`."""  # hot
    low, high = start - rows.first, stop - rows.first
    origins, _ = rows.values("origin")
    assert origins is not None
    times, published = (_optional(rows, name, low, high) for name in ("ts_ns", "pub_seq"))
    headers = [None] * (high - low) if rows.headers is None else [rows.headers.row(row) for row in range(low, high)]
    columns = (range(start, stop), rows.payloads(low, high), times)
    return list(map(LogEvent, *columns, unsigned(origins[low:high]).tolist(), published, headers))


def _optional(rows: Rows, name: str, low: int, high: int) -> list[int | None]:
    """Return a range of a column that may have nulls."""
    values, valid = rows.values(name)
    if values is None:
        return [None] * (high - low)
    found: list[int | None] = values[low:high].tolist()
    if valid is None:
        return found
    return [value if valid[row >> 3] >> (row & 7) & 1 else None for row, value in enumerate(found, low)]


def events_of_batch(batch: Any) -> list[LogEvent]:
    """Return the events of a record batch that has COLUMNS."""
    seqs, payloads, times, _, published, headers = (batch.column(name).to_pylist() for name in COLUMNS)
    origins = unsigned(batch.column("origin").to_numpy()).tolist()
    pairs = (None if row is None else dict(row) for row in headers)
    return list(map(LogEvent, seqs, payloads, times, origins, published, pairs))
