"""Append batches exactly once, however often they are tried: each event records which batch it belongs to.

A writer has a name of its own and numbers its batches upward; a batch has the same rows in the same order each time it
is tried. Each event carries writer, batch and position in its headers, so the log itself shows how much of a batch it
has, and after a crash only the rest is appended. Two writers that use the same name at the same time are not detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshbus.log.log import RedexFile

WRITER, BATCH, PLACE = "meshbus.writer", "meshbus.batch", "meshbus.place"
"""Names of the headers that such an event has."""

EVENTS_AT_ONCE = 8_192
"""Events per append: bounds the memory for their headers, which are Python objects."""
_LOOK_BACK = 1_024
"""Events that are read at a time while searching backward: the newest batch is usually at the end."""


def rows_done(log: RedexFile, writer: str, batch: int, rows: int) -> int:
    """Return how many rows of a batch a log has: all, if it has a later batch of this writer."""
    end = log.next_seq
    while end > log.first_seq:
        start = max(end - _LOOK_BACK, log.first_seq)
        # Newest first: the last event of this writer tells how far it got.
        for event in reversed(list(log.read_range(start, end))):
            headers = event.headers or {}
            if headers.get(WRITER) == writer.encode():
                newest = int(headers[BATCH])
                if newest > batch:
                    return rows
                return int(headers[PLACE]) + 1 if newest == batch else 0
        end = start
    return 0


def slices_left(log: RedexFile, rows: Any, writer: str, batch: int) -> list[tuple[Any, dict[str, Any]]]:
    """Return the rows of an Arrow table that a log does not have, in slices: the payloads of each and its columns.

    The table has a column `payload` and may have `ts_ns` and `headers`; other columns are not stored.
    """
    # A batch has the same rows each time, so what the log has is a prefix of it.
    return batch_slices(rows, writer, batch, rows_done(log, writer, batch, len(rows)))


def batch_slices(rows: Any, writer: str, batch: int, first: int = 0) -> list[tuple[Any, dict[str, Any]]]:
    """Return the rows of a batch from one on, in slices: the payloads of each and its columns."""
    return [
        (part.column("payload").combine_chunks(), _columns(part, writer, batch, start))
        for start in range(first, len(rows), EVENTS_AT_ONCE)
        if (part := rows.slice(start, EVENTS_AT_ONCE))
    ]


def _columns(rows: Any, writer: str, batch: int, start: int) -> dict[str, Any]:
    given: Sequence[Any] = rows.column("headers").to_pylist() if "headers" in rows.column_names else [None] * len(rows)
    marks = {WRITER: writer.encode(), BATCH: str(batch).encode()}
    headers: list[Mapping[str, bytes]] = [
        {**dict(own or ()), **marks, PLACE: str(start + place).encode()} for place, own in enumerate(given)
    ]
    columns: dict[str, Any] = {"headers": headers}
    if "ts_ns" in rows.column_names:
        columns["ts_ns"] = rows.column("ts_ns").to_numpy()
    return columns
