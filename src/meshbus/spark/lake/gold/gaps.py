"""gold.gaps: what is missing, repeated or out of order: in logs, of publishers' events, and in best-effort streams.

Numbers are compared only with those that continue them (`session_id` in silver.runs): a publisher that does not log a
channel starts at its clock in each run, and the packets of a stream are numbered in each session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import GoldTable, Rows, Section
from meshbus.spark.lake.grouping import Groups, numbered
from meshbus.spark.lake.stretches import BY_PUBLISHER, BY_STREAM, UNNUMBERED, WHOSE
from meshbus.spark.lake.tableschema import CHANNEL, NUMBERED_BY, NUMBERED_IN, SEEN_IN_LOG
from meshbus.wire.messages.reliable import CLOCK_NUMBERS

if TYPE_CHECKING:
    from numpy.typing import NDArray


def gaps(runs: Any) -> Any:
    """Combine the ranges of all batches; whatever lies between them is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    runs = runs.select([*WHOSE, "first", "last", "events", "reordered"])
    numbers = numbered(runs, WHOSE)
    runs = runs.take(np.lexsort((runs["last"].to_numpy(), runs["first"].to_numpy(), numbers)))
    groups = Groups(runs, WHOSE)
    first, last = (runs[name].to_numpy() for name in ("first", "last"))
    before = _reach_before(groups.numbers, last)
    # Compared and not subtracted: the difference of two extreme numbers exceeds 64 bits.
    hole = (groups.numbers == np.append(-1, groups.numbers[:-1])) & (first > before) & (first - 1 != before)

    def where_missing(values: NDArray[np.int64]) -> Any:
        return pa.array(values, mask=~hole)

    summed = groups.add_up(
        {
            "first": (runs["first"], "min"),
            "last": (runs["last"], "max"),
            "rows": (runs["events"], "sum"),
            "missing": (pa.array(np.where(hole, first - before - 1, 0)), "sum"),
            "holes": (where_missing(first), "count"),
            "first_missing": (where_missing(before + 1), "min"),
            "last_missing": (where_missing(first - 1), "max"),
            "reordered": (runs["reordered"], "sum"),
        }
    )
    seen = pc.subtract(pc.add(pc.subtract(summed["last"], summed["first"]), 1), summed["missing"])
    summed = summed.append_column("duplicates", pc.subtract(summed["rows"], seen))
    # Ranges of earlier versions have no session: the numbers of several runs cannot be told apart in them.
    mixed = pc.and_(
        pc.and_(pc.equal(summed["kind"], BY_PUBLISHER), pc.is_null(summed["session_id"])),
        pc.greater_equal(summed["last"], CLOCK_NUMBERS),
    )
    known = pc.invert(pc.or_(pc.equal(summed["kind"], UNNUMBERED), mixed))
    found = summed.select(list(WHOSE)).append_column("events", pc.if_else(known, seen, summed["rows"]))
    for name in ("first", "last", "missing", "holes", "first_missing", "last_missing", "duplicates", "reordered"):
        found = found.append_column(name, pc.if_else(known, summed[name], pa.scalar(None, pa.int64())))
    return found


def _reach_before(groups: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the highest number of all earlier ranges of the same group; of the first range of a group, any number.

    Ranges may overlap, so that is not always the last number of the range before.
    """
    if not len(last):
        return last
    # A running maximum of group and rank: the ranks of a later group are all higher than those of an earlier one.
    ordered = np.sort(last)
    ranks = groups * len(last) + np.searchsorted(ordered, last)
    reach = ordered[np.maximum.accumulate(ranks) % len(last)]
    return np.append(reach[:1], reach[:-1])


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
            "`log`: positions that expired before they were read, or, in a replicated log, that no log had that was read."
            " `publisher`: events that did not arrive, by publish number. `stream`: packets of a best-effort stream that did not arrive. `unnumbered`: events without either"
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
    by_arrow=True,
    question="Where are events missing?",
    query="""\
SELECT kind, channel, hex(origin) AS origin, missing, holes, duplicates, reordered
FROM gold_gaps WHERE missing > 0 ORDER BY missing DESC LIMIT 10""",
    section=Section("Gaps", "No events have been read.", _draw, _facts),
    hourly=False,
)
