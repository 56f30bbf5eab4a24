"""gold.top_talkers: the publishers with the most payload bytes, per hour."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import Groups, added
from meshbus.spark.lake.tableschema import ORIGIN

TALKERS = 50
"""Rows per hour: enough for a report, and a bound on the table however many publishers there are."""


def top_talkers(events: Any) -> Any:
    """Rank the publishers of each hour by payload bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    measures = {
        "channels": (events["channel"], "count_distinct"),
        "events": (events["events"], "sum"),
        "bytes": (events["bytes"], "sum"),
    }
    summed = added({name: events[name] for name in ("hour", "origin")}, measures)
    # The origin breaks ties, so that recomputing an hour gives the same ranks.
    order = [("hour", "ascending"), ("bytes", "descending"), ("events", "descending"), ("origin", "ascending")]
    ranked = summed.sort_by(order)
    hours = Groups(ranked, ["hour"])
    ranks = pa.array(np.arange(len(ranked)) - hours.firsts[hours.numbers] + 1)
    return ranked.append_column("rank", ranks).filter(pc.less_equal(ranks, TALKERS))


_TITLE = "Who published the most?"


def _draw(rows: Rows, _: Scans) -> Drawn:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row["origin"]][0] += row["events"]
        sums[row["origin"]][1] += row["bytes"]
    ranked = sorted(sums.items(), key=lambda item: -item[1][1])
    return Drawn(rows=[{"publisher": origin, "events": events, "bytes": size} for origin, (events, size) in ranked])


TABLE = GoldTable(
    name="top_talkers",
    doc=f"The {TALKERS} publishers with the most payload bytes, per hour.",
    columns=(
        Column("rank", ColumnType.INT, "Rank in the hour; 1 has the most bytes."),
        ORIGIN,
        Column("channels", ColumnType.BIGINT, "Number of distinct channels."),
        Column("events", ColumnType.BIGINT, "Number of events."),
        Column("bytes", ColumnType.BIGINT, "Payload bytes."),
    ),
    sources=("silver.event_counts",),
    compute=top_talkers,
    by_arrow=True,
    question="Which publishers sent the most?",
    query="""\
SELECT hex(origin) AS origin, sum(events) AS events, sum(bytes) AS bytes
FROM gold_top_talkers GROUP BY origin ORDER BY bytes DESC LIMIT 10""",
    section=Section(_TITLE, "No events have been read.", _draw),
)
