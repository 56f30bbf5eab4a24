"""gold.latency: how long events took from each publisher to each node that logged them, per hour, and the clocks of both.

    latency = receipt (recorder's clock) − publication (publisher's clock)
    delay   = latency + clock offset          offset = publisher's clock − recorder's clock, wrong by at most the error

Latency is what the rows say; it includes the difference of two clocks, and may be negative. The delay is without it, as
far as the recorder knew: nodes measure the clocks of their peers and write them into their census (log/census.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from meshbus.log.census import FactKind
from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import Groups, latest, numbered, stacked
from meshbus.spark.lake.minutes import MINUTE_NS
from meshbus.spark.lake.named import label
from meshbus.spark.lake.percentiles import ROUNDED, named_percentiles
from meshbus.spark.lake.tableschema import CHANNEL, ORIGIN


def latency(receipts: Any, latencies: Any, census: Any) -> Any:
    """Add up receipts by channel, publisher and recorder."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = ["hour", "channel", "origin", "recorder"]
    # A row is either of receipts, and has no latency, or of latencies.
    received = receipts.filter(receipts["received"]).select([*keys, "window_start", "rows", "timed"])
    counts = stacked(received, latencies.select([*keys, "window_start", "latency_us", "rows"]))
    offset, error = _clocks_of(counts, census)
    took, rows = counts["latency_us"], counts["rows"]
    is_receipt = pc.is_null(took)
    groups = Groups(counts, keys)
    (median,) = groups.percentiles(pc.if_else(is_receipt, offset, pa.scalar(None, offset.type)), rows, [0.5])
    stats = groups.add_up(
        {
            "events": (pc.if_else(is_receipt, rows, pa.scalar(None, rows.type)), "sum"),
            "timed": (counts["timed"], "sum"),
            "clock_error_us": (pc.divide(pc.cast(error, "double"), 1000.0), "max"),
        }
    ).append_column("clock_offset_us", pc.divide(median, 1000.0))
    delay = pc.add(took, pc.divide(pc.cast(offset, "double", safe=False), 1000.0))
    for what, values in (("latency", took), ("delay", delay)):
        for name, column in named_percentiles(what, groups, values, rows).items():
            stats = stats.append_column(name, column)
    return stats


def _clocks_of(counts: Any, census: Any) -> list[Any]:
    """Return the offset and the error of the publisher's clock for each row.

    They are what the recorder knew at the end of the minute of receipt, or if it knew none yet, the next.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    whose = ["recorder", "origin"]
    told = [pc.is_valid(census[name]) for name in (*whose, "clock_offset_ns")]
    known = census.filter(reduce(pc.and_, told, pc.equal(census["kind"], FactKind.NODE.value))).sort_by("ts_ns")
    minutes = Groups(counts, [*whose, "window_start"])
    asked = minutes.keys
    # Owners of facts and of questions are numbered together.
    owners = numbered(stacked(known.select(whose), asked.select(whose)), whose)
    facts = np.argsort(owners[: len(known)], kind="stable")
    known, of_facts = known.take(facts), owners[facts]
    end = asked["window_start"].cast(pa.int64()).to_numpy() * 1000 + (MINUTE_NS - 1)
    before, after = latest(of_facts, known["ts_ns"].to_numpy(), owners[len(facts) :], end)
    place = np.where(before >= 0, before, after)[minutes.numbers]
    return [known[name].take(pa.array(place, mask=place < 0)) for name in ("clock_offset_ns", "clock_error_ns")]


_TITLE = "How long were events on the way?"


def _draw(rows: Rows, _: Scans) -> Drawn:
    found = [_percentiles(row) for row in _longest_hours(rows)]
    notes = [
        "A difference of clocks that was measured is left out. Where it was not, the times include it, and are marked."
    ]
    if unmeasured := sum(row["events"] - (row["timed"] or 0) for row in rows):
        notes.append(f"Not measured: {unmeasured:,} events do not carry the time of their publication.")
    known = [one for one in found if one.p50 is not None]
    drawn = (charts.percentiles(known, title=_TITLE),) if known else ()
    shown = [
        {"channel": row["channel"], "publisher": row["origin"], "receiver": row["recorder"], "hour": row["hour"],
         "events": row["events"], "timed": row["timed"],
         **{name: row[name] for kind in ("delay_", "latency_", "clock_") for name in row if name.startswith(kind)}}
        for row in rows
    ]  # fmt: skip
    return Drawn(drawn, tuple(notes if known else notes[1:]), shown)


def _longest_hours(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the hour with the most measured events of each channel, publisher and receiver."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        key = row["channel"], row["origin"], row["recorder"]
        if key not in found or (row["timed"] or 0) > (found[key]["timed"] or 0):
            found[key] = row
    return list(found.values())


def _percentiles(row: Mapping[str, Any]) -> charts.Percentiles:
    measured = "delay" if row["delay_p50_us"] is not None else "latency"
    mark = "" if measured == "delay" else " (clocks not compared)"
    name = f"{row['channel']}: {label(row['origin'])} → {label(row['recorder'])}{mark}"
    p50, p95, p99 = (row[f"{measured}_{which}_us"] for which in ("p50", "p95", "p99"))
    return charts.Percentiles(name, *(None if value is None else value / 1000 for value in (p50, p95, p99)))


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
    by_arrow=True,
    question="How long are events on the way, and how far apart are the clocks?",
    query="""\
SELECT channel, publisher.name AS publisher, receiver.name AS receiver, delay_p50_us, clock_offset_us, clock_error_us
FROM gold_latency AS l LEFT JOIN gold_nodes AS publisher ON l.origin = publisher.origin
LEFT JOIN gold_nodes AS receiver ON l.recorder = receiver.node_id ORDER BY delay_p99_us DESC LIMIT 10""",
    section=Section(_TITLE, "No received events have been read.", _draw),
)
