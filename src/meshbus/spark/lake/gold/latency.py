"""gold.latency: how long events took from each publisher to each node that logged them, per hour, and the clocks of both.

    latency = receipt (recorder's clock) − publication (publisher's clock)
    delay   = latency + clock offset          offset = publisher's clock − recorder's clock, wrong by at most the error

Latency is what the rows say; it includes the difference of two clocks, and may be negative. The delay is without it, as
far as the recorder knew: nodes measure the clocks of their peers and write them into their census (log/census.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.census import FactKind
from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import GoldTable, Section
from meshbus.spark.lake.minutes import MINUTE_NS
from meshbus.spark.lake.percentiles import ROUNDED, named_percentiles, percentiles
from meshbus.spark.lake.tableschema import CHANNEL, ORIGIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latency(receipts: DataFrame, latencies: DataFrame, census: DataFrame) -> DataFrame:
    """Add up receipts by channel, publisher and recorder."""
    from pyspark.sql import functions as F

    received = receipts.where("received").drop("log_id", "received")
    clocks = _clocks_by_minute(received, census)
    # All counts in one pass: a row is either of receipts, and has no latency, or of latencies.
    counts = received.unionByName(latencies, allowMissingColumns=True)
    took, rows, offset = F.col("latency_us"), F.col("rows"), F.col("clock_offset_ns")
    is_receipt = took.isNull()
    added = (
        counts.join(clocks, ["window_start", "origin", "recorder"], "left")
        .groupBy("hour", "channel", "origin", "recorder")
        .agg(
            F.sum(F.when(is_receipt, rows)).alias("events"),
            F.sum("timed").alias("timed"),
            (F.percentile(F.when(is_receipt, offset), 0.5, rows) / 1000).alias("clock_offset_us"),
            (F.max("clock_error_ns") / 1000).alias("clock_error_us"),
            percentiles(took, rows, "_latencies"),
            percentiles(took + offset / 1000, rows, "_delays"),
        )
    )
    return added.withColumns(named_percentiles("latency", "_latencies") | named_percentiles("delay", "_delays"))


def _clocks_by_minute(received: DataFrame, census: DataFrame) -> DataFrame:
    """Return the offset of the publisher's clock for each minute of receipt.

    It is the one that the recorder knew at the end of the minute, or if it knew none yet, the next.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    clock = ["clock_offset_ns", "clock_error_ns"]
    minutes = received.select("origin", "recorder", "window_start").distinct()
    end = (F.unix_micros("window_start") * 1000 + MINUTE_NS - 1).alias("_at")
    known = census.where((F.col("kind") == FactKind.NODE.value) & F.col("clock_offset_ns").isNotNull()).select(
        "origin", "recorder", F.col("ts_ns").alias("_at"), *clock
    )
    ordered = Window.partitionBy("recorder", "origin").orderBy("_at")
    before = ordered.rowsBetween(Window.unboundedPreceding, 0)
    after = ordered.rowsBetween(0, Window.unboundedFollowing)
    nearest = {
        name: F.coalesce(F.last(name, ignorenulls=True).over(before), F.first(name, ignorenulls=True).over(after))
        for name in clock
    }
    both = minutes.select("*", end).unionByName(known, allowMissingColumns=True)
    return both.withColumns(nearest).where("window_start IS NOT NULL").drop("_at")


_MEASURED = f"in microseconds; null if no event carries the time of its publication; {ROUNDED}"

TABLE = GoldTable(
    name="latency",
    doc="Time from publication to receipt by channel, publisher and recorder, per hour, with the offset of their clocks.",
    columns=(
        CHANNEL,
        ORIGIN,
        Column("recorder", ColumnType.BIGINT, "Node that received the events.", bit_cast=True),
        Column("events", ColumnType.BIGINT, "Number of events that it received."),
        Column("timed", ColumnType.BIGINT, "Those that carry the time of their publication; only they are measured."),
        Column(
            "latency_p50_us",
            ColumnType.DOUBLE,
            f"Median of receipt by the recorder's clock minus publication by the publisher's clock, {_MEASURED}.",
            nullable=True,
        ),
        Column("latency_p95_us", ColumnType.DOUBLE, "95th percentile of the same.", nullable=True),
        Column("latency_p99_us", ColumnType.DOUBLE, "99th percentile of the same.", nullable=True),
        Column(
            "clock_offset_us",
            ColumnType.DOUBLE,
            "The publisher's clock minus the recorder's, as the recorder measured it: the median over events, each with the"
            " offset that was known at the end of the minute of its receipt, or else next; null if it was not measured.",
            nullable=True,
        ),
        Column("clock_error_us", ColumnType.DOUBLE, "The offset is wrong by at most this much.", nullable=True),
        Column(
            "delay_p50_us",
            ColumnType.DOUBLE,
            "Median of latency plus clock offset: the time on the way, by one clock; null if the offset is unknown. It is"
            " rounded as the latency is: within half a percent of the latency, and within 0.05 ms.",
            nullable=True,
        ),
        Column("delay_p95_us", ColumnType.DOUBLE, "95th percentile of the same.", nullable=True),
        Column("delay_p99_us", ColumnType.DOUBLE, "99th percentile of the same.", nullable=True),
    ),
    sources=("silver.receipt_counts", "silver.latency_counts", "bronze.census"),
    around=("bronze.census",),
    compute=latency,
    question="How long are events on the way, and how far apart are the clocks?",
    query="""\
SELECT channel, publisher.name AS publisher, receiver.name AS receiver, delay_p50_us, clock_offset_us, clock_error_us
FROM gold_latency AS l LEFT JOIN gold_nodes AS publisher ON l.origin = publisher.origin
LEFT JOIN gold_nodes AS receiver ON l.recorder = receiver.node_id ORDER BY delay_p99_us DESC LIMIT 10""",
    section=Section("Latency", "No received events have been read."),
)
