"""gold.gaps: what is missing, repeated or out of order: in logs, of publishers' events, and in best-effort streams.

Numbers are compared only with those that continue them (`session_id` in silver.runs): a publisher that does not log a
channel starts at its clock in each run, and the packets of a stream are numbered in each session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import Groups, numbered
from meshbus.spark.lake.named import label
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


_TITLE = "What is missing, and when was it lost?"
_UNITS = {"log": "expired from a log", BY_PUBLISHER: "events", BY_STREAM: "packets"}
_NUMBERS = {"log": "seq", BY_PUBLISHER: "pub_seq", BY_STREAM: "packet_seq"}
"""The column of bronze.events with the numbers of each kind."""
_PLACED = 20
"""Rows of the table whose gaps are placed in time: those with the most missing numbers."""
_READ = 1_000_000
"""Most events of a row of the table that are read to place its gaps."""
_SPANS = 200
"""Gaps that are drawn for each row: more would overlap."""


def _draw(rows: Rows, scans: Scans) -> Drawn:
    wrong = [row for row in rows if row["missing"] or row["duplicates"] or row["reordered"]]
    measured = sum(row["missing"] is not None for row in rows)
    notes = []
    if measured and not wrong:
        notes.append(
            f"No gaps: {measured} logs, publishers and streams are complete and in order between the first and the last"
            " number that was seen."
        )
    if unmeasured := sum(row["events"] for row in rows if row["missing"] is None):
        notes.append(f"Not measured: {unmeasured:,} events have no numbers that show whether others are missing.")
    wrong.sort(key=lambda row: (-row["missing"], -row["duplicates"], row["channel"]))
    holes = [row for row in wrong if row["missing"]]
    spans = [span for row in holes[:_PLACED] for span in _spans(row, scans)]
    if holes and not spans:
        notes.append("When they were lost is not known: the events around them are not in the tables.")
    if any(row["holes"] > _SPANS for row in holes):
        notes.append(f"Of each row of the table, the {_SPANS} longest gaps are drawn.")
    drawn = (charts.timeline(spans, title=_TITLE, what="missing"),) if spans else ()
    return Drawn(drawn, tuple(notes), [_shown(row) for row in wrong])


def _spans(row: Mapping[str, Any], scans: Scans) -> Iterator[charts.Span]:
    """Yield when each range of missing numbers was lost: between the events before and after it."""
    bronze = scans("bronze.events")
    if bronze is None or row["events"] > _READ:
        return
    column = _NUMBERS[row["kind"]]
    found = bronze.rows([column, "recv_ts"], _condition(row, column)).sort_by(column)
    numbers, times = found[column].to_numpy(), found["recv_ts"].to_pylist()
    before, after = numbers[:-1], numbers[1:]
    # Compared and not subtracted: the difference of two extreme numbers exceeds 64 bits.
    places = np.flatnonzero((after > before) & (after - 1 != before))
    longest = np.argsort(before[places].astype(float) - after[places].astype(float), kind="stable")[:_SPANS]
    for place in sorted(places[longest].tolist()):
        count = int(after[place]) - int(before[place]) - 1
        # Numbers may have arrived out of order.
        begin, end = sorted((times[place], times[place + 1]))
        name = f"{row['channel']} of {label(row['origin'])}" if row["origin"] is not None else row["channel"]
        yield charts.Span(
            name, begin, end, _UNITS[row["kind"]], f"{count:,} missing from number {int(before[place]) + 1:,}"
        )


def _condition(row: Mapping[str, Any], column: str) -> Any:
    """Return which events have the numbers of a row of the table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    where = pc.field("channel") == row["channel"]
    where &= pc.field("log_id") == pa.scalar(row["log_id"], pa.binary(16))
    where &= pc.field(column).is_valid()
    for name in ("origin", "session_id"):
        if row[name] is not None:
            where &= pc.field(name) == int(row[name])
    return where


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("events", "missing", "holes", "first_missing", "last_missing", "duplicates", "reordered")
    return {
        "what": _UNITS[row["kind"]], "channel": row["channel"],
        "publisher": "all" if row["kind"] == "log" else row["origin"], **{name: row[name] for name in kept}
    }  # fmt: skip


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
    section=Section(_TITLE, "No events have been read.", _draw, _facts),
    hourly=False,
)
