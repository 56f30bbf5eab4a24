"""gold.top_talkers: the publishers with the most payload bytes, per hour."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import GoldTable, Rows, Section
from meshbus.spark.lake.tableschema import ORIGIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TALKERS = 50
"""Rows per hour: enough for a report, and a bound on the table however many publishers there are."""


def top_talkers(events: DataFrame) -> DataFrame:
    """Rank the publishers of each hour by payload bytes."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    summed = events.groupBy("hour", "origin").agg(
        F.countDistinct("channel").alias("channels"),
        F.sum("events").alias("events"),
        F.sum("bytes").alias("bytes"),
    )
    # The origin breaks ties, so that recomputing an hour gives the same ranks.
    order = Window.partitionBy("hour").orderBy(F.desc("bytes"), F.desc("events"), "origin")
    return summed.withColumn("rank", F.row_number().over(order)).where(f"rank <= {TALKERS}")


def _draw(rows: Rows) -> str:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row["origin"]][0] += row["events"]
        sums[row["origin"]][1] += row["bytes"]
    ranked = sorted(sums.items(), key=lambda item: -item[1][1])
    return charts.table_of([{"origin": origin, "events": events, "bytes": size} for origin, (events, size) in ranked])


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
    question="Which publishers sent the most?",
    query="""\
SELECT hex(origin) AS origin, sum(events) AS events, sum(bytes) AS bytes
FROM gold_top_talkers GROUP BY origin ORDER BY bytes DESC LIMIT 10""",
    section=Section("Top talkers", "No events have been read.", _draw),
)
