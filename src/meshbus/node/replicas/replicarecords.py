"""Records of a replicated channel as rows of its log, and back: payloads, and columns for what else a record has.

A record is packed for the wire (wire/record.py). In the log its parts are columns, so that every reader of logs sees the
payload, the publisher's time, the origin and the headers of an event, as in the log of any other channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshbus.log.columns import Columns, Events
from meshbus.log.event import LogEvent
from meshbus.wire.column import ByteColumn
from meshbus.wire.record import RECORD_COST, Record, pack_record, unpack_record
from meshbus.wire.recordcolumn import HEAD, split_record_column

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rows_of(records: Sequence[bytes]) -> tuple[Events, Columns]:  # hot: bench_replication
    """Return the payloads of records, and their columns."""
    split = split_record_column(records) if isinstance(records, ByteColumn) else None
    if split is not None:
        found, offsets, data = split
        return (offsets, data), _columns_of(found)
    heads: NDArray[np.void] = np.frombuffer(b"".join([record[:RECORD_COST] for record in records]), HEAD)
    columns = _columns_of(heads)
    if not heads["headers"].any():
        return [record[RECORD_COST:] for record in records], columns
    unpacked = [unpack_record(record) for record in records]
    columns["headers"] = [record.headers for record in unpacked]
    return [record.payload for record in unpacked], columns


def _columns_of(heads: NDArray[np.void]) -> Columns:
    # As one number where it is one: a batch is published at one moment, and the log stores and seals that in no time.
    times, origins = heads["ts_ns"], heads["origin"]
    return {
        "ts_ns": int(times[0]) if (times == times[0]).all() else times,
        "origin": int(origins[0]) if (origins == origins[0]).all() else origins.view(np.int64),
    }


def records_of(events: Sequence[LogEvent]) -> tuple[bytes, ...]:
    """Return the records of events of a log."""
    return tuple(
        pack_record(Record(event.payload, event.ts_ns or 0, event.origin, event.headers or None)) for event in events
    )
