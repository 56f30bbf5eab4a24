"""Ranges of consecutive numbers in a batch (rows of silver.runs), and what they tell about duplicate events.

Looking up every key of every batch in all of silver would become slower every day. Instead, silver.runs keeps the ranges
that are already there: a batch is compared with silver only if one of its ranges overlaps, and only for the channels
concerned. A batch that repeats no number, as almost all do, is not searched for duplicates within itself either.

A batch is bounded, so its numbers are sorted here, in one process, in the time that Spark takes to plan a query.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from meshbus.log.schema import arrow_schema
from meshbus.spark.lake.tableschema import RUNS
from meshbus.wire.messages.reliable import CLOCK_NUMBERS, FIRST_SEQUENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

Run: TypeAlias = Mapping[str, Any]
"""A row of silver.runs."""

BY_LOG, BY_PUBLISHER, BY_STREAM, UNNUMBERED = "log", "publisher", "stream", "unnumbered"
"""Kinds of ranges: positions in a log, numbers that publishers assign to their events, packets of a best-effort stream,
and positions of events that have neither a number nor a packet, so that nothing tells whether others are missing."""
COLUMNS = ("channel", "log_id", "origin", "seq", "pub_seq", "session_id", "packet_seq", "event_index")
"""The columns of bronze.events that `runs_of` needs."""
WHOSE = ("kind", "channel", "log_id", "origin", "session_id")
"""The columns of silver.runs that say whose numbers those of a range are: only such are compared with each other."""

_NOTHING = np.iinfo(np.int64).min
"""Lower than any number: the highest number of an owner that has none."""


def runs_of(rows: Any, earlier: Sequence[Run]) -> Any:
    """Return the ranges of a batch, given as an Arrow table with COLUMNS, as an Arrow table of silver.runs.

    `earlier` are the ranges of earlier batches: a number below their highest one counts as reordered.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    highest: dict[tuple[object, ...], int] = {}
    for run in earlier:
        # Positions in a log are never late: their order is the log's order.
        if run["kind"] in {BY_PUBLISHER, BY_STREAM}:
            whose = tuple(run.get(name) for name in WHOSE)  # a file of an earlier version has no session
            highest[whose] = max(run["last"], highest.get(whose, _NOTHING))
    is_numbered = pc.is_valid(rows["pub_seq"])
    # A reliable stream without numbers loses nothing, but its sequences count more than packets of events.
    packet = rows["packet_seq"]
    plain = pc.and_(pc.greater_equal(packet, 0), pc.less(packet, FIRST_SEQUENCE))
    placed = pc.and_(pc.is_valid(rows["session_id"]), pc.is_valid(rows["event_index"]))
    in_stream = pc.fill_null(pc.and_(pc.and_(placed, plain), pc.invert(is_numbered)), False)
    numbered, streamed = rows.filter(is_numbered), rows.filter(in_stream)
    clocked = pc.greater_equal(numbered["pub_seq"], CLOCK_NUMBERS)
    session = pc.if_else(clocked, numbered["session_id"], pa.scalar(None, pa.int64()))
    numbered = numbered.set_column(numbered.schema.get_field_index("session_id"), "session_id", session)
    packets = streamed.filter(pc.equal(streamed["event_index"], 0))
    unnumbered = rows.filter(pc.invert(pc.or_(is_numbered, in_stream)))
    of_session = ["channel", "log_id", "origin", "session_id"]
    parts = [
        _ranges(rows, BY_LOG, ["channel", "log_id"], "seq", {}),
        _ranges(numbered, BY_PUBLISHER, of_session, "pub_seq", highest),
        _ranges(packets, BY_STREAM, of_session, "packet_seq", highest),
        _ranges(unnumbered, UNNUMBERED, ["channel", "log_id", "origin"], "seq", {}),
    ]
    return pa.concat_tables(parts)


def _ranges(rows: Any, kind: str, whose: list[str], number: str, highest: Mapping[tuple[object, ...], int]) -> Any:
    import pyarrow as pa

    schema = arrow_schema(RUNS, dictionaries=False)
    if not len(rows):
        return schema.empty_table()
    codes, owners = _groups(rows, whose)
    numbers, seq = (rows[name].to_numpy() for name in (number, "seq"))
    known = np.array([highest.get((kind, *owner.values()), _NOTHING) for owner in owners.to_pylist()], np.int64)
    late = _late(codes, numbers, seq) | (known[codes] > numbers)
    order = np.lexsort((numbers, codes))
    code, value = codes[order], numbers[order]
    goes_on = (code[1:] == code[:-1]) & ((value[1:] == value[:-1]) | (value[1:] == value[:-1] + 1))
    starts = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    ends = np.append(starts[1:], len(order))
    columns = {name: owners[name].take(pa.array(code[starts])) for name in whose}
    columns |= {
        "kind": pa.array([kind] * len(starts)),
        "first": pa.array(value[starts]),
        "last": pa.array(value[ends - 1]),
        "events": pa.array(ends - starts),
        "reordered": pa.array(np.add.reduceat(late[order].astype(np.int64), starts)),
    }
    empty = pa.nulls(len(starts))
    return pa.table([columns.get(field.name, empty).cast(field.type) for field in schema], schema=schema)


def _groups(rows: Any, names: list[str]) -> tuple[NDArray[np.int64], Any]:
    """Return a group number for each row, equal where the named columns are equal, and one row per group."""
    codes, first = np.zeros(len(rows), np.int64), np.zeros(0, np.int64)
    for name in names:
        encoded = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        parts = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, first, codes = np.unique(parts, return_index=True, return_inverse=True)
    return codes, rows.select(names).take(first)


def _late(codes: NDArray[np.int64], numbers: NDArray[np.int64], seq: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows follow a higher number of the same owner."""
    order = np.lexsort((seq, codes))
    _, rank = np.unique(numbers[order], return_inverse=True)
    place = codes[order] * len(order) + rank  # owner-major, so that a running maximum never crosses owners
    late = np.zeros(len(order), np.bool_)
    late[order[1:]] = np.maximum.accumulate(place)[:-1] > place[1:]
    return late


def merge_runs(runs: DataFrame) -> DataFrame:
    """Merge ranges that touch or overlap; the counts stay the same, in fewer rows."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    ordered = Window.partitionBy(*WHOSE).orderBy("first", "last")
    before = F.max("last").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce(F.col("first") > before + 1, F.lit(True)).cast("bigint")
    numbered = runs.withColumn("_begins", begins).withColumn("_stretch", F.sum("_begins").over(ordered))
    return numbered.groupBy(*WHOSE, "_stretch").agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("events").alias("events"),
        F.sum("reordered").alias("reordered"),
    )


def channels_to_compare(runs: Sequence[Run], earlier: Sequence[Run]) -> list[str]:
    """Return the channels of a batch with events that silver may already have, judged by their ranges.

    Includes channels with rows that have no publish number, because ranges say nothing about those.
    """
    known: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for run in _identifying(earlier):
        known.setdefault(_whose(run), []).append((run["first"], run["last"]))
    # Sorted starts and the running maximum of ends: one binary search finds whether any range overlaps.
    reach = {}
    for whose, ranges in known.items():
        ranges.sort()
        reach[whose] = ([first for first, _ in ranges], list(accumulate((last for _, last in ranges), max)))
    found = _without_numbers(runs)
    for run in _identifying(runs):
        firsts, lasts = reach.get(_whose(run), ([], []))
        place = bisect_right(firsts, run["last"])
        if place and lasts[place - 1] >= run["first"]:
            found.add(run["channel"])
    return sorted(found)


def may_repeat(runs: Sequence[Run]) -> bool:
    """Return whether a batch may have an event more than once, judged by its ranges."""
    if _without_numbers(runs):
        return True
    reached: dict[tuple[object, ...], int] = {}
    for run in sorted(_identifying(runs), key=lambda run: int(run["first"])):
        whose = _whose(run)
        # More rows than numbers: a number is repeated. A range that starts inside an earlier one: the same, across logs.
        if run["events"] > run["last"] - run["first"] + 1 or run["first"] <= reached.get(whose, run["first"] - 1):
            return True
        reached[whose] = run["last"]
    return False


def _without_numbers(runs: Sequence[Run]) -> set[str]:
    """Return the channels with rows that have no publish number."""
    numbered: Counter[tuple[str, object]] = Counter()
    logged: Counter[tuple[str, object]] = Counter()
    for run in _identifying(runs):
        (logged if run["kind"] == BY_LOG else numbered)[run["channel"], run["log_id"]] += run["events"]
    return {channel for (channel, log), rows in logged.items() if rows > numbered[channel, log]}


def _identifying(runs: Sequence[Run]) -> list[Run]:
    """Return the ranges whose numbers identify events; events without such a number are always compared."""
    return [run for run in runs if run["kind"] in {BY_LOG, BY_PUBLISHER}]


def _whose(run: Run) -> tuple[object, ...]:
    """Return the key of the numbering: a log, or a publisher's events in whichever log they are."""
    return (run["kind"], run["channel"], run["log_id"] if run["kind"] == BY_LOG else run["origin"])
