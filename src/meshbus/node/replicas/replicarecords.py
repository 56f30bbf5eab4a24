"""Records of a replicated channel as rows of its log, and back: payloads, and columns for what else a record has.

A record is packed for the wire (wire/record.py). In the log its parts are columns, so that every reader of logs sees the
payload, the publisher's time, the origin and the headers of an event, as in the log of any other channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshbus.log.columns import Columns
from meshbus.log.event import LogEvent
from meshbus.wire.record import RECORD_COST, Record, pack_record, unpack_record

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEAD = np.dtype([("ts_ns", "<i8"), ("origin", "<u8"), ("headers", "<u2")])


def rows_of(records: Sequence[bytes]) -> tuple[list[bytes], Columns]:  # hot
    """Return the payloads of records, and their columns."""
    heads: NDArray[np.void] = np.frombuffer(b"".join([record[:RECORD_COST] for record in records]), _HEAD)
    origins = heads["origin"]
    same = bool((origins == origins[0]).all())
    columns: Columns = {"ts_ns": heads["ts_ns"], "origin": int(origins[0]) if same else origins.view(np.int64)}
    if not heads["headers"].any():
        return [record[RECORD_COST:] for record in records], columns
    unpacked = [unpack_record(record) for record in records]
    columns["headers"] = [record.headers for record in unpacked]
    return [record.payload for record in unpacked], columns


def records_of(events: Sequence[LogEvent]) -> tuple[bytes, ...]:
    """Return the records of events of a log."""
    return tuple(
        pack_record(Record(event.payload, event.ts_ns or 0, event.origin, event.headers or None)) for event in events
    )
