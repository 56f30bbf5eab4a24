"""gold.replication_lag: how far each replica of a log is behind, per minute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import Groups, added, stacked
from meshbus.spark.lake.minutes import start_of_hour, start_of_minute
from meshbus.spark.lake.named import label
from meshbus.spark.lake.tableschema import CHANNEL, WINDOW_S, WINDOW_START

if TYPE_CHECKING:
    from meshbus.spark.lake.narrow import Scan


def replication_lag(receipts: Any, bronze: Scan) -> Any:
    """Compare the rows of all replicas; only bronze has them, because silver keeps each event once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    logs = {name: receipts[name] for name in ("hour", "channel", "log_id")}
    held = added(logs, {"replicas": (receipts["recorder"], "count_distinct")})
    # Most logs have one replica: counts tell which rows need not be read.
    replicated = held.filter(pc.greater(held["replicas"], 1)).to_pylist()
    parts = [_compared(log, _rows_of(log, bronze)) for log in replicated]
    return stacked(*parts) if parts else pa.table({})


def _rows_of(log: Mapping[str, Any], bronze: Scan) -> Any:
    """Read an hour of a log. Files hold few channels, so that the filter leaves out most of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    start = start_of_hour(log["hour"])
    begin, end = (pa.scalar(time, pa.timestamp("us", "UTC")) for time in (start, start + timedelta(hours=1)))
    where = (pc.field("recv_ts") >= begin) & (pc.field("recv_ts") < end)
    where &= (pc.field("channel") == log["channel"]) & (pc.field("log_id") == pa.scalar(log["log_id"], pa.binary(16)))
    return bronze.rows(["seq", "recorder", "recv_ts", "recv_ts_ns"], where)


def _compared(log: Mapping[str, Any], rows: Any) -> Any:
    """Return the statistics of each replica of a log, for each minute of an hour."""
    import pyarrow as pa

    first = Groups(rows, ["seq"])
    earliest = first.add_up({"first": (rows["recv_ts_ns"], "min")})["first"].to_numpy()[first.numbers]
    delay = pa.chunked_array([(rows["recv_ts_ns"].to_numpy() - earliest) / 1000])
    rows = rows.append_column("window_start", start_of_minute(rows["recv_ts"]))
    groups = Groups(rows, ["window_start", "recorder"])
    stats = groups.add_up({"events": (None, "count_all"), "last_seq": (rows["seq"], "max")})
    once = pa.chunked_array([np.ones(len(rows), np.int64)])
    median, highest = groups.percentiles(delay, once, [0.5, 0.99])
    stats = stats.append_column("delay_p50_us", median).append_column("delay_p99_us", highest)
    stats = stats.sort_by("window_start")
    # A replica may have written nothing in the last minute, so compare with the highest sequence so far.
    minutes, last = stats["window_start"].to_numpy(), stats["last_seq"].to_numpy()
    ahead = np.maximum.accumulate(last)[np.searchsorted(minutes, minutes, side="right") - 1]
    stats = stats.append_column("behind", pa.array(ahead - last))
    for name, value in log.items():
        stats = stats.append_column(name, pa.array([value] * len(stats)))
    return stats


_TITLE = "Which replicas were behind, and by how long?"


def _draw(rows: Rows, _: Scans) -> Drawn:
    levels: dict[str, dict[float, float]] = defaultdict(dict)
    worst: dict[str, charts.Percentiles] = {}
    for row in rows:
        name = f"{row['channel']} at {label(row['recorder'])}"
        levels[name][row["window_start"].timestamp()] = row["behind"]
        p50, p99 = row["delay_p50_us"] / 1000, row["delay_p99_us"] / 1000
        if name not in worst or p99 > (worst[name].p99 or 0.0):
            worst[name] = charts.Percentiles(name, p50, None, p99)
    drawn = [
        charts.percentiles(worst.values(), title=_TITLE, unit="milliseconds behind the first replica, worst minute")
    ]
    # In a single minute a line is a point.
    if len({row["window_start"] for row in rows}) > 1:
        title = "How many events had each replica still to get?"
        drawn.append(charts.levels(levels, WINDOW_S, title=title, unit="events behind", what="replica"))
    shown = [
        {"channel": row["channel"], "replica": row["recorder"], "minute": row["window_start"], "events": row["events"],
         "behind": row["behind"], "delay_p50_us": row["delay_p50_us"], "delay_p99_us": row["delay_p99_us"]}
        for row in sorted(rows, key=lambda row: (-row["behind"], -row["delay_p99_us"]))
    ]  # fmt: skip
    return Drawn(tuple(drawn), rows=shown)


TABLE = GoldTable(
    name="replication_lag",
    doc="Delay of each replica of a log behind the first replica that has an event, per minute; only replicated logs.",
    columns=(
        WINDOW_START,
        CHANNEL,
        Column("log_id", ColumnType.BINARY_16, "Id of the log, shared by its replicas."),
        Column("recorder", ColumnType.BIGINT, "Node that holds the replica.", bit_cast=True),
        Column("events", ColumnType.BIGINT, "Events that it wrote."),
        Column("last_seq", ColumnType.BIGINT, "Its highest sequence."),
        Column(
            "behind",
            ColumnType.BIGINT,
            "Sequences by which the most advanced replica was ahead at the end of the minute.",
        ),
        Column("delay_p50_us", ColumnType.DOUBLE, "Median delay behind the first replica, in microseconds."),
        Column("delay_p99_us", ColumnType.DOUBLE, "99th percentile of the same."),
    ),
    sources=("silver.receipt_counts", "bronze.events"),
    filtered=("bronze.events",),
    compute=replication_lag,
    by_arrow=True,
    question="Which replicas are behind?",
    query="""\
SELECT channel, hex(recorder) AS recorder, max(behind) AS behind, max(delay_p99_us) AS delay_p99_us
FROM gold_replication_lag GROUP BY channel, recorder ORDER BY behind DESC LIMIT 10""",
    section=Section(_TITLE, "No log with replicas has been read.", _draw),
)
