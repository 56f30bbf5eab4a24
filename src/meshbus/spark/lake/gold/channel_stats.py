"""gold.channel_stats: rate, volume and latency of each channel, per minute."""

from __future__ import annotations

from typing import Any

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import Groups, added, stacked
from meshbus.spark.lake.percentiles import ROUNDED, named_percentiles
from meshbus.spark.lake.tableschema import CHANNEL, WINDOW_S, WINDOW_START


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


_TITLE = "How many events arrived, and when?"
_FINE_S, _FINE_EVENTS = 1800.0, 2_000_000
"""A chart shows seconds if all events are within half an hour and few enough to be counted one by one."""


def _draw(rows: Rows, scans: Scans) -> Drawn:
    seconds = _seconds(rows, scans)
    counts, finest_s = (_minutes(rows), WINDOW_S) if seconds is None else (seconds, 1)
    chart = charts.rates(counts, finest_s, title=_TITLE, unit="events", what="channel")
    return Drawn((chart,), rows=_by_channel(rows))


def _minutes(rows: Rows) -> list[charts.Count]:
    return [charts.Count(row["channel"], row["window_start"].timestamp(), row["events"]) for row in rows]


def _seconds(rows: Rows, scans: Scans) -> list[charts.Count] | None:
    """Count events by second; None if they are too many, too far apart, or not at hand."""
    import pyarrow.compute as pc

    starts = [row["window_start"] for row in rows]
    long = (max(starts) - min(starts)).total_seconds() > _FINE_S
    if long or sum(row["events"] for row in rows) > _FINE_EVENTS or (silver := scans("silver.events")) is None:
        return None
    events = silver.rows(["channel", "recv_ts_ns"], None)
    keys = {"channel": events["channel"], "second": pc.divide(events["recv_ts_ns"], 10**9)}
    found = added(keys, {"events": (None, "count_all")})
    return [charts.Count(row["channel"], row["second"], row["events"]) for row in found.to_pylist()]


def _by_channel(rows: Rows) -> list[dict[str, Any]]:
    """Return a row for each channel: what it carried, and its fastest minute."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        one = found.setdefault(
            row["channel"],
            {"channel": row["channel"], "events": 0, "bytes": 0, "publishers": 0, "busiest_minute_per_s": 0.0},
        )
        one["events"] += row["events"]
        one["bytes"] += row["bytes"]
        one["publishers"] = max(one["publishers"], row["publishers"])
        one["busiest_minute_per_s"] = max(one["busiest_minute_per_s"], row["events_per_s"])
    return sorted(found.values(), key=lambda one: (-one["events"], one["channel"]))


def _facts(rows: Rows) -> dict[str, int]:
    return {
        "events": sum(row["events"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "channels": len({row["channel"] for row in rows}),
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
    section=Section(_TITLE, "No events have been read.", _draw, _facts),
)
