"""gold.gaps: numbers that are missing, repeated or out of order, per log and per publisher, over all time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import GoldTable, Rows, Section
from meshbus.spark.lake.tableschema import CHANNEL, NUMBERED_BY, SEEN_IN_LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def gaps(runs: DataFrame) -> DataFrame:
    """Combine the ranges of all batches; whatever lies between them is missing."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    keys = ["kind", "channel", "log_id", "origin"]
    ordered = Window.partitionBy(*keys).orderBy("first", "last")
    # Ranges may overlap, so a gap begins after the highest number of all earlier ranges, not of the previous one.
    before = F.max("last").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    rows = runs.withColumn("_before", before)
    hole = F.col("first") > F.col("_before") + 1
    rows = rows.withColumns(
        {
            "_missing": F.when(hole, F.col("first") - F.col("_before") - 1),
            "_from": F.when(hole, F.col("_before") + 1),
            "_to": F.when(hole, F.col("first") - 1),
        }
    )
    summed = rows.groupBy(*keys).agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("events").alias("_rows"),
        F.coalesce(F.sum("_missing"), F.lit(0)).cast("bigint").alias("missing"),
        F.count("_missing").alias("holes"),
        F.min("_from").alias("first_missing"),
        F.max("_to").alias("last_missing"),
        F.sum("reordered").alias("reordered"),
    )
    seen = F.col("last") - F.col("first") + 1 - F.col("missing")
    return summed.withColumns({"events": seen, "duplicates": F.col("_rows") - seen})


def _draw(rows: Rows) -> str:
    wrong = [row for row in rows if row["missing"] or row["duplicates"] or row["reordered"]]
    if not wrong:
        return charts.note(f"No gaps: {len(rows)} logs and publishers are complete and in order.")
    wrong.sort(key=lambda row: (-row["missing"], -row["duplicates"], row["channel"]))
    missing = [(f"{row['channel']} ({row['kind']})", row["missing"]) for row in wrong if row["missing"]]
    return charts.bars(missing) + charts.table_of(wrong)


def _facts(rows: Rows) -> dict[str, int]:
    return {"events missing": sum(row["missing"] for row in rows if row["kind"] == "publisher")}


TABLE = GoldTable(
    name="gaps",
    doc="Numbers that are missing, repeated or out of order, per log and per publisher.",
    columns=(
        Column(
            "kind",
            ColumnType.STRING,
            "`log`: positions that expired before they were read. `publisher`: events that did not arrive.",
        ),
        CHANNEL,
        SEEN_IN_LOG,
        NUMBERED_BY,
        Column("first", ColumnType.BIGINT, "Lowest number seen."),
        Column("last", ColumnType.BIGINT, "Highest number seen."),
        Column("events", ColumnType.BIGINT, "Number of distinct numbers seen."),
        Column("missing", ColumnType.BIGINT, "Number of numbers in between that were not seen."),
        Column("holes", ColumnType.BIGINT, "Number of ranges that the missing numbers form."),
        Column("first_missing", ColumnType.BIGINT, "Lowest missing number.", nullable=True),
        Column("last_missing", ColumnType.BIGINT, "Highest missing number.", nullable=True),
        Column("duplicates", ColumnType.BIGINT, "Rows that repeat a number."),
        Column("reordered", ColumnType.BIGINT, "Rows that follow a higher number in their log."),
    ),
    sources=("silver.runs",),
    compute=gaps,
    question="Where are events missing?",
    query="""\
SELECT kind, channel, hex(origin) AS origin, missing, holes, duplicates, reordered
FROM gold_gaps WHERE missing > 0 ORDER BY missing DESC LIMIT 10""",
    section=Section("Gaps", "No events have been read.", _draw, _facts),
    hourly=False,
)
