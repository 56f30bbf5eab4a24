"""One event of a log as a Python object, for those who want them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from meshbus.log.rows import Rows


class LogEvent(msgspec.Struct, frozen=True):
    """One event of a log."""

    seq: int
    payload: bytes
    ts_ns: int
    """When it happened, in nanoseconds since 1970."""
    origin: int
    """Origin hash of its publisher."""
    pub_seq: int | None = None
    headers: dict[str, bytes] | None = None


COLUMNS = ("seq", "payload", "ts_ns", "origin", "pub_seq", "headers")
"""What is read for it."""

_MASK = (1 << 64) - 1


def events_of_rows(rows: Rows, start: int, stop: int) -> Iterator[LogEvent]:
    """Give the events of a range, which the caller has cut to what is there."""
    low, high = start - rows.first, stop - rows.first
    times, _ = rows.values("ts_ns")
    origins, _ = rows.values("origin")
    numbers, valid = rows.values("pub_seq")
    assert times is not None
    assert origins is not None
    published = [None] * (high - low) if numbers is None else numbers[low:high].tolist()
    if valid is not None:
        published = [number if valid[row >> 3] >> (row & 7) & 1 else None for row, number in enumerate(published, low)]
    columns = zip(
        range(start, stop),
        rows.payloads(low, high),
        times[low:high].tolist(),
        origins[low:high].tolist(),
        published,
        strict=True,
    )
    for seq, payload, ts_ns, origin, pub_seq in columns:
        headers = None if rows.headers is None else rows.headers.row(seq - rows.first)
        yield LogEvent(seq, payload, ts_ns, origin & _MASK, pub_seq, headers)


def events_of_batch(batch: Any) -> Iterator[LogEvent]:
    """Give the events of a record batch that has COLUMNS."""
    seqs, payloads, times, origins, published, headers = (batch.column(name).to_pylist() for name in COLUMNS)
    for seq, payload, ts_ns, origin, pub_seq, pairs in zip(
        seqs, payloads, times, origins, published, headers, strict=True
    ):
        yield LogEvent(seq, payload, ts_ns, origin & _MASK, pub_seq, None if pairs is None else dict(pairs))
