"""Count tables: what the gold tables need of events and packets, added up by minute when a batch is committed.

Each batch of a source is scanned once, and a gold table is then computed from counts, so that its cost does not grow with
the rows of an hour. Counts of several batches are added by `merge`, so batches may be counted one by one, together, and
in any order. The columns are in spark/lake/tableschema.py. Nothing here knows where tables are stored: the caller reads
the rows of a batch and writes their counts.

A scan reads only the columns that it groups by (and payloads, for their length), and groups by plain numbers: a minute
is an integer until the rows are added up. `F.window` and a text for the hour would cost a quarter more per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from meshbus.spark.lake.tableschema import (
    EVENT_COUNTS,
    LATENCY_COUNTS,
    PACKET_COUNTS,
    RECEIPT_COUNTS,
    WINDOW_S,
    Layer,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from meshbus.log.schema import Table

MINUTE_NS = WINDOW_S * 10**9
_MINUTE_US = WINDOW_S * 10**6
_DIGITS = 1_000
"""Latencies keep three digits: percentiles are then within half a percent, and a minute has few different values."""
_STEPS_NS = (1, 10, 100, 1_000, 10_000, 100_000)
"""What latencies are rounded to: never to more than the last, so that the delay is known even if clocks are hours apart."""


class CountTable(msgspec.Struct, frozen=True):
    """One count table."""

    table: Table
    source: str
    """Qualified name of the table whose rows are counted."""
    compute: Callable[[DataFrame], DataFrame]
    """Takes rows of the source, of any number of batches, and returns their counts."""
    measures: tuple[str, ...]
    """Columns that are added up; the others are keys."""

    @property
    def name(self) -> str:
        """The qualified name, such as `silver.event_counts`."""
        return f"{Layer.SILVER}.{self.table.name}"

    def merge(self, counts: DataFrame) -> DataFrame:
        """Add up the counts of several batches, so that each combination of keys has one row."""
        from pyspark.sql import functions as F

        keys = [column.name for column in self.table if column.name not in self.measures]
        return counts.groupBy(*keys).agg(*(F.sum(name).alias(name) for name in self.measures))


def start_of_minute(time: Column, unit: int = _MINUTE_US) -> Column:
    """Round an integer time down to its minute; `unit` is a minute in the unit of the time.

    Cheaper than `F.window`, which makes a struct of each row's window.
    """
    from pyspark.sql import functions as F

    return time - F.pmod(time, F.lit(unit))


def _event_counts(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    sent = start_of_minute(F.col("ts_ns"), MINUTE_NS).alias("_sent")
    counted = rows.groupBy(_minute("recv_ts"), "channel", "origin", "src", "dst", sent).agg(
        F.count("*").alias("events"), F.sum(F.octet_length("payload")).alias("bytes")
    )
    sent_minute = F.timestamp_micros(F.call_function("div", F.col("_sent"), F.lit(1000)))
    return _finished(counted.withColumn("sent_minute", sent_minute), EVENT_COUNTS)


def _receipt_counts(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    # As text, which costs nothing and is undone below: Spark's fastest hash table does not take binary keys.
    log_id = F.col("log_id").cast("string").alias("_log_id")
    # Only what arrived in a session was received; a node writes its own events without one.
    received = F.col("session_id").isNotNull().alias("received")
    counted = rows.groupBy(_minute("recv_ts"), "channel", log_id, "origin", "recorder", received).agg(
        F.count("*").alias("rows"), F.count("ts_ns").alias("timed")
    )
    return _finished(counted.withColumn("log_id", F.col("_log_id").cast("binary")), RECEIPT_COUNTS)


def _latency_counts(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    timed = rows.where(F.col("session_id").isNotNull() & F.col("ts_ns").isNotNull())
    # One step at a time: Spark then computes each once per row.
    timed = timed.withColumn("_took", F.col("recv_ts_ns") - F.col("ts_ns"))
    timed = timed.withColumn("_step", _rounding_step(F.col("_took")))
    middle = F.col("_took") + F.shiftright("_step", 1)
    rounded = (middle - F.pmod(middle, "_step")).alias("_rounded")
    counted = timed.groupBy(_minute("recv_ts"), "channel", "origin", "recorder", rounded).agg(
        F.count("*").alias("rows")
    )
    return _finished(counted.withColumn("latency_us", F.col("_rounded") / 1000), LATENCY_COUNTS)


def _packet_counts(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    keys = ("recorder", "verdict", "reason", F.col("previous_hop").alias("peer"), "channel", "origin", "src", "dst")
    # A recorded packet stands for `sampling_rate` packets.
    counted = rows.groupBy(_minute("ts"), *keys).agg(
        F.sum("sampling_rate").alias("packets"),
        F.sum(F.col("payload_len").cast("bigint") * F.col("sampling_rate")).alias("bytes"),
    )
    return _finished(counted, PACKET_COUNTS)


def _minute(time: str) -> Column:
    """Return the key for the minute of a timestamp: an integer, until `_finished`."""
    from pyspark.sql import functions as F

    return start_of_minute(F.unix_micros(time)).alias("_minute")


def _rounding_step(took_ns: Column) -> Column:
    """Return the power of ten that a latency is rounded to a multiple of."""
    from pyspark.sql import functions as F

    size = F.abs(took_ns)
    *steps, chosen = map(F.lit, _STEPS_NS)
    for step in reversed(steps):
        chosen = F.when(size < _DIGITS * step, step).otherwise(chosen)
    return chosen.cast("bigint")


def _finished(counted: DataFrame, table: Table) -> DataFrame:
    """Add the columns that follow from the minute, and return those of the table."""
    from pyspark.sql import functions as F

    start = F.timestamp_micros("_minute")
    times = {"window_start": start, "hour": F.date_format(start, "yyyy-MM-dd'T'HH")}
    return counted.withColumns(times).select(*(column.name for column in table))


COUNTS = (
    CountTable(EVENT_COUNTS, "silver.events", _event_counts, ("events", "bytes")),
    CountTable(RECEIPT_COUNTS, "bronze.events", _receipt_counts, ("rows", "timed")),
    CountTable(LATENCY_COUNTS, "bronze.events", _latency_counts, ("rows",)),
    CountTable(PACKET_COUNTS, "bronze.packets", _packet_counts, ("packets", "bytes")),
)
"""Every count table."""
