"""gold.channel_stats: rate, volume and latency of each channel, per minute."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import GoldTable, Rows, Section
from meshbus.spark.lake.grouping import Groups, stacked
from meshbus.spark.lake.percentiles import ROUNDED, named_percentiles
from meshbus.spark.lake.tableschema import CHANNEL, WINDOW_S, WINDOW_START

if TYPE_CHECKING:
    from datetime import datetime


def channel_stats(events: Any, latencies: Any) -> Any:
    """Add up events by minute and channel: each event once, but its latency at every node that logged its arrival."""
    import pyarrow.compute as pc

    # By the recorder's clock, which is also that of the hour: a window never spans two hours.
    keys = ["hour", "window_start", "channel"]
    counts = stacked(
        events.select([*keys, "origin", "events", "bytes"]), latencies.select([*keys, "latency_us", "rows"])
    )
    groups = Groups(counts, keys)
    stats = groups.add_up(
        {
            "events": (counts["events"], "sum"),
            "bytes": (counts["bytes"], "sum"),
            "publishers": (counts["origin"], "count_distinct"),
        }
    )
    for name in ("events", "bytes"):
        stats = stats.append_column(f"{name}_per_s", pc.divide(pc.cast(stats[name], "double"), float(WINDOW_S)))
    for name, column in named_percentiles("latency", groups, counts["latency_us"], counts["rows"]).items():
        stats = stats.append_column(name, column)
    # A duplicate of an event has a latency of its own, perhaps in a minute without events.
    return stats.filter(pc.is_valid(stats["events"]))


def _draw(rows: Rows) -> str:
    series: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for row in rows:
        series[row["channel"]].append((row["window_start"], row["events"]))
    return charts.lines(series, "channels")


def _facts(rows: Rows) -> dict[str, int]:
    return {
        "events": sum(row["events"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "channels": len({row["channel"] for row in rows}),
        "hours": len({row["hour"] for row in rows}),
    }


TABLE = GoldTable(
    name="channel_stats",
    doc="Events, bytes and latency of each channel, per minute of receipt.",
    columns=(
        WINDOW_START,
        CHANNEL,
        Column("events", ColumnType.BIGINT, "Number of events."),
        Column("bytes", ColumnType.BIGINT, "Payload bytes."),
        Column("publishers", ColumnType.BIGINT, "Number of distinct publishers."),
        Column("events_per_s", ColumnType.DOUBLE, "Events per second, averaged over the minute."),
        Column("bytes_per_s", ColumnType.DOUBLE, "Payload bytes per second, averaged over the minute."),
        Column(
            "latency_p50_us",
            ColumnType.DOUBLE,
            "Median time from publication (publisher's clock) to receipt (recorder's clock), in microseconds; null if no"
            f" row has both; {ROUNDED}. gold.latency has it without the difference of the clocks.",
            nullable=True,
        ),
        Column("latency_p95_us", ColumnType.DOUBLE, "95th percentile of the same.", nullable=True),
        Column("latency_p99_us", ColumnType.DOUBLE, "99th percentile of the same.", nullable=True),
    ),
    sources=("silver.event_counts", "silver.latency_counts"),
    compute=channel_stats,
    by_arrow=True,
    question="Which channels had the highest rate in a minute?",
    query="""\
SELECT channel, max(events_per_s) AS events_per_s, max(latency_p99_us) AS latency_p99_us
FROM gold_channel_stats GROUP BY channel ORDER BY events_per_s DESC LIMIT 10""",
    section=Section("Events per minute", "No events have been read.", _draw, _facts),
)
