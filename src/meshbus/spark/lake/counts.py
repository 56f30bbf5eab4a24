"""Count tables: what the gold tables need of events and packets, added up by minute when a batch is committed.

Each batch of a source is read once, and a gold table is then computed from counts, so that its cost does not grow with
the rows of an hour. Counts of several batches are added by `merge`, so batches may be counted one by one, together, and
in any order. The columns are in spark/lake/tableschema.py. Nothing here knows where tables are stored:
spark/lake/countfiles.py reads the rows, and spark/run/counting.py decides which.

Rows are Arrow tables, and are added up by Arrow: it takes tens of nanoseconds for a row, and nothing for a query, where
a query of Spark takes half a second whatever it reads. Minutes and latencies are computed by numpy, from the integers in
the columns; a minute becomes a time, and the hour a text, after the rows are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meshbus.log.schema import EVENTS, PACKETS, Table, arrow_schema
from meshbus.spark.lake.grouping import added
from meshbus.spark.lake.minutes import MINUTE_NS, MINUTE_US, hours_of, mapped, start_of_minute
from meshbus.spark.lake.tableschema import EVENT_COUNTS, LATENCY_COUNTS, PACKET_COUNTS, RECEIPT_COUNTS, Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGITS = 1_000
"""Latencies keep three digits: percentiles are then within half a percent, and a minute has few different values."""
_STEPS_NS = (1, 10, 100, 1_000, 10_000, 100_000)
"""What latencies are rounded to: never to more than the last, so that the delay is known even if clocks are hours apart."""
_FARTHEST_NS = 2**62 - 2**20
"""Times before 1824 or after 2116 count as those for a latency, which then has 64 bits: others may send any time."""


class CountTable(msgspec.Struct, frozen=True):
    """One count table."""

    table: Table
    source: str
    """Qualified name of the table whose rows are counted."""
    rows: Table
    """Its columns, as far as they are counted."""
    reads: tuple[str, ...]
    """The columns that are read."""
    add_up: Callable[[Mapping[str, Any]], Any]
    """Takes these columns and returns an Arrow table with the columns of the count table except the hour."""
    measures: tuple[str, ...]
    """Columns that are added up; the others are keys."""

    @property
    def name(self) -> str:
        """The qualified name, such as `silver.event_counts`."""
        return f"{Layer.SILVER}.{self.table.name}"

    @property
    def schema(self) -> Any:
        """The Arrow schema of counts, all columns nullable, as in other files of tables."""
        import pyarrow as pa

        schema = arrow_schema(self.table, dictionaries=False)
        return pa.schema([field.with_nullable(True) for field in schema], schema.metadata)

    def compute(self, rows: Any) -> Any:
        """Count the rows of an Arrow table, of any number of batches; a column that it does not have is unknown."""
        import pyarrow as pa

        types, present = arrow_schema(self.rows, dictionaries=False), set(rows.column_names)
        columns = {
            name: rows[name] if name in present else pa.chunked_array([pa.nulls(len(rows), types.field(name).type)])
            for name in self.reads
        }
        return self._finished(self.add_up(columns))

    def merge(self, counts: Any) -> Any:
        """Add up the counts of several batches, so that each combination of keys has one row."""
        keys = [name for name in counts.column_names if name not in {"hour", *self.measures}]
        return self._finished(
            added({name: counts[name] for name in keys}, {name: (counts[name], "sum") for name in self.measures})
        )

    def _finished(self, counted: Any) -> Any:
        """Add the hour, which follows from the minute, and return the columns of the table."""
        hours = hours_of(counted["window_start"])
        return counted.append_column("hour", hours).select(self.schema.names).cast(self.schema)


def _event_counts(rows: Mapping[str, Any]) -> Any:
    import pyarrow.compute as pc

    keys = {
        "window_start": start_of_minute(rows["recv_ts"]),
        **{name: rows[name] for name in ("channel", "origin", "src", "dst")},
    }
    sent = mapped(rows["ts_ns"], lambda ns: ns // MINUTE_NS * MINUTE_US)
    size = pc.binary_length(rows["payload"])
    return added(keys | {"sent_minute": sent}, {"events": (None, "count_all"), "bytes": (size, "sum")})


def _receipt_counts(rows: Mapping[str, Any]) -> Any:
    import pyarrow.compute as pc

    keys = {name: rows[name] for name in ("channel", "log_id", "origin", "recorder")}
    # Only what arrived in a session was received; a node writes its own events without one.
    keys |= {"window_start": start_of_minute(rows["recv_ts"]), "received": pc.is_valid(rows["session_id"])}
    return added(keys, {"rows": (None, "count_all"), "timed": (rows["ts_ns"], "count")})


def _latency_counts(rows: Mapping[str, Any]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = [pc.is_valid(rows[name]) for name in ("session_id", "ts_ns", "recv_ts_ns")]
    timed = pa.table(dict(rows)).filter(reduce(pc.and_, known))
    received, sent = (_clipped(timed[name]) for name in ("recv_ts_ns", "ts_ns"))
    keys = {name: timed[name] for name in ("channel", "origin", "recorder")}
    # Grouped as integers, which costs less than numbers with fractions.
    keys |= {"window_start": start_of_minute(timed["recv_ts"]), "latency_us": pa.array(_rounded(received - sent))}
    counted = added(keys, {"rows": (None, "count_all")})
    place = counted.schema.get_field_index("latency_us")
    return counted.set_column(place, "latency_us", pa.array(counted["latency_us"].to_numpy() / 1000))


def _packet_counts(rows: Mapping[str, Any]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    taken = ("recorder", "verdict", "reason", "channel", "origin", "src", "dst")
    keys = {name: rows[name] for name in taken} | {
        "window_start": start_of_minute(rows["ts"]),
        "peer": rows["previous_hop"],
    }
    # A recorded packet stands for `sampling_rate` packets.
    packets = rows["sampling_rate"].cast(pa.int64())
    size = pc.multiply(rows["payload_len"].cast(pa.int64()), packets)
    return added(keys, {"packets": (packets, "sum"), "bytes": (size, "sum")})


def _clipped(times_ns: Any) -> NDArray[np.int64]:
    held: NDArray[np.int64] = times_ns.to_numpy()
    return np.clip(held, -_FARTHEST_NS, _FARTHEST_NS)


def _rounded(took_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round latencies to multiples of a power of ten; a half is rounded up."""
    size = np.abs(took_ns)
    step = np.full(len(took_ns), _STEPS_NS[-1], np.int64)
    for one in reversed(_STEPS_NS[:-1]):
        step[size < _DIGITS * one] = one
    rounded: NDArray[np.int64] = (took_ns + (step >> 1)) // step * step
    return rounded


_COUNTED_EVENT = ("recv_ts", "channel", "origin", "ts_ns")

COUNTS = (
    CountTable(
        EVENT_COUNTS,
        "silver.events",
        EVENTS,
        (*_COUNTED_EVENT, "src", "dst", "payload"),
        _event_counts,
        ("events", "bytes"),
    ),
    CountTable(
        RECEIPT_COUNTS,
        "bronze.events",
        EVENTS,
        (*_COUNTED_EVENT, "log_id", "recorder", "session_id"),
        _receipt_counts,
        ("rows", "timed"),
    ),
    CountTable(
        LATENCY_COUNTS,
        "bronze.events",
        EVENTS,
        (*_COUNTED_EVENT, "recv_ts_ns", "recorder", "session_id"),
        _latency_counts,
        ("rows",),
    ),
    CountTable(
        PACKET_COUNTS,
        "bronze.packets",
        PACKETS,
        (
            "ts", "recorder", "verdict", "reason", "previous_hop", "channel", "origin", "src", "dst", "payload_len",
            "sampling_rate",
        ),
        _packet_counts,
        ("packets", "bytes"),
    ),
)  # fmt: skip
"""Every count table."""
