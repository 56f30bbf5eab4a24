"""gold.gaps: what is missing, repeated or out of order: in logs, of publishers' events, and in best-effort streams.

Numbers are compared only with those that continue them (`session_id` in silver.runs): a publisher that does not log a
channel starts at its clock in each run, and the packets of a stream are numbered in each session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import GoldTable, Rows, Section
from meshbus.spark.lake.stretches import BY_PUBLISHER, BY_STREAM, UNNUMBERED, WHOSE
from meshbus.spark.lake.tableschema import CHANNEL, NUMBERED_BY, NUMBERED_IN, SEEN_IN_LOG
from meshbus.wire.messages.reliable import CLOCK_NUMBERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def gaps(runs: DataFrame) -> DataFrame:
    """Combine the ranges of all batches; whatever lies between them is missing."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    ordered = Window.partitionBy(*WHOSE).orderBy("first", "last")
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
    summed = rows.groupBy(*WHOSE).agg(
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
    summed = summed.withColumns({"events": seen, "duplicates": F.col("_rows") - seen})
    # Ranges of earlier versions have no session: the numbers of several runs cannot be told apart in them.
    mixed = (F.col("kind") == BY_PUBLISHER) & F.col("session_id").isNull() & (F.col("last") >= CLOCK_NUMBERS)
    known = ~((F.col("kind") == UNNUMBERED) | mixed)
    measured = ("first", "last", "missing", "holes", "first_missing", "last_missing", "duplicates", "reordered")
    return summed.withColumns(
        {"events": F.when(known, F.col("events")).otherwise(F.col("_rows"))}
        | {name: F.when(known, F.col(name)) for name in measured}
    )


def _draw(rows: Rows) -> str:
    wrong = [row for row in rows if row["missing"] or row["duplicates"] or row["reordered"]]
    unmeasured = sum(row["events"] for row in rows if row["missing"] is None)
    notes = ""
    if unmeasured:
        notes = charts.note(
            f"Not measured: {unmeasured:,} events have no numbers that show whether others are missing."
        )
    measured = sum(row["missing"] is not None for row in rows)
    if not wrong:
        complete = charts.note(
            f"No gaps: {measured} logs, publishers and streams are complete and in order between the first and the last"
            " number that was seen."
        )
        return (complete if measured else "") + notes
    wrong.sort(key=lambda row: (-row["missing"], -row["duplicates"], row["channel"]))
    missing = [
        (f"{row['channel']} ({_UNITS.get(row['kind'], 'events')})", row["missing"]) for row in wrong if row["missing"]
    ]
    return charts.bars(missing) + charts.table_of(wrong) + notes


_UNITS = {"log": "expired from a log", BY_PUBLISHER: "events", BY_STREAM: "packets"}


def _facts(rows: Rows) -> dict[str, int]:
    def missing(kind: str) -> int:
        return sum(row["missing"] or 0 for row in rows if row["kind"] == kind)

    return {"events missing": missing(BY_PUBLISHER), "best-effort packets missing": missing(BY_STREAM)}


TABLE = GoldTable(
    name="gaps",
    doc="Numbers that are missing, repeated or out of order, per log, publisher and best-effort stream.",
    columns=(
        Column(
            "kind",
            ColumnType.STRING,
            "`log`: positions that expired before they were read. `publisher`: events that did not arrive, by publish"
            " number. `stream`: packets of a best-effort stream that did not arrive. `unnumbered`: events without either"
            " number; what is missing was not measured.",
        ),
        CHANNEL,
        SEEN_IN_LOG,
        NUMBERED_BY,
        NUMBERED_IN,
        Column("first", ColumnType.BIGINT, "Lowest number seen; null if not measured.", nullable=True),
        Column("last", ColumnType.BIGINT, "Highest number seen.", nullable=True),
        Column("events", ColumnType.BIGINT, "Number of distinct numbers seen; for kind `unnumbered`, of events."),
        Column(
            "missing",
            ColumnType.BIGINT,
            "Number of numbers in between that were not seen: lost, or published while the recorder was not subscribed.",
            nullable=True,
        ),
        Column("holes", ColumnType.BIGINT, "Number of ranges that the missing numbers form.", nullable=True),
        Column("first_missing", ColumnType.BIGINT, "Lowest missing number.", nullable=True),
        Column("last_missing", ColumnType.BIGINT, "Highest missing number.", nullable=True),
        Column("duplicates", ColumnType.BIGINT, "Rows that repeat a number.", nullable=True),
        Column("reordered", ColumnType.BIGINT, "Rows that follow a higher number in their log.", nullable=True),
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
