"""Stretches of numbers: which a batch holds, and what they say about events that are there twice.

Looking up every key of every batch in all of silver would cost more each day. `silver.runs` holds the stretches that are
there already: only a batch whose stretches overlap one of them is compared, and only with the channels concerned. A batch
that repeats no number of its own, as almost all do, needs no look for copies in itself either.

A batch is bounded, so its numbers are sorted here, in one process, in the time that Spark takes to plan it.
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

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

Run: TypeAlias = Mapping[str, Any]
"""A row of silver.runs."""

BY_LOG, BY_PUBLISHER = "log", "publisher"
COLUMNS = ("channel", "log_id", "origin", "seq", "pub_seq")
"""What `runs_of` reads of bronze.events."""

_NOTHING = np.iinfo(np.int64).min


def runs_of(rows: Any, earlier: Sequence[Run]) -> Any:
    """Give the stretches of numbers of a batch, an Arrow table with COLUMNS, as a table of silver.runs.

    `earlier` are those of the batches before: a number below one that they have came late.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    highest: dict[tuple[object, ...], int] = {}
    for run in earlier:
        if run["kind"] == BY_PUBLISHER:
            whose = run["channel"], run["log_id"], run["origin"]
            highest[whose] = max(run["last"], highest.get(whose, _NOTHING))
    numbered = rows.filter(pc.is_valid(rows["pub_seq"]))
    parts = [
        _stretches(rows, BY_LOG, ["channel", "log_id"], "seq", {}),
        _stretches(numbered, BY_PUBLISHER, ["channel", "log_id", "origin"], "pub_seq", highest),
    ]
    return pa.concat_tables(parts)


def _stretches(rows: Any, kind: str, whose: list[str], number: str, highest: Mapping[tuple[object, ...], int]) -> Any:
    import pyarrow as pa

    schema = arrow_schema(RUNS, dictionaries=False)
    if not len(rows):
        return schema.empty_table()
    codes, owners = _groups(rows, whose)
    numbers, seq = (rows[name].to_numpy() for name in (number, "seq"))
    known = np.array([highest.get(tuple(owner.values()), _NOTHING) for owner in owners.to_pylist()], np.int64)
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
    """Give equal numbers to rows that are equal in some columns, and for each number a row."""
    codes, first = np.zeros(len(rows), np.int64), np.zeros(0, np.int64)
    for name in names:
        encoded = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        parts = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, first, codes = np.unique(parts, return_index=True, return_inverse=True)
    return codes, rows.select(names).take(first)


def _late(codes: NDArray[np.int64], numbers: NDArray[np.int64], seq: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say which rows stand behind a higher number of the same owner."""
    order = np.lexsort((seq, codes))
    _, rank = np.unique(numbers[order], return_inverse=True)
    place = codes[order] * len(order) + rank  # numbers of the owners before are all lower
    late = np.zeros(len(order), np.bool_)
    late[order[1:]] = np.maximum.accumulate(place)[:-1] > place[1:]
    return late


def merge_runs(runs: DataFrame) -> DataFrame:
    """Put stretches together that touch or overlap: the same numbers seen as often, in fewer rows."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    whose = ["kind", "channel", "log_id", "origin"]
    ordered = Window.partitionBy(*whose).orderBy("first", "last")
    before = F.max("last").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce(F.col("first") > before + 1, F.lit(True)).cast("bigint")
    numbered = runs.withColumn("_begins", begins).withColumn("_stretch", F.sum("_begins").over(ordered))
    return numbered.groupBy(*whose, "_stretch").agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("events").alias("events"),
        F.sum("reordered").alias("reordered"),
    )


def channels_to_compare(runs: Sequence[Run], earlier: Sequence[Run]) -> list[str]:
    """Give the channels of a batch some of whose events silver may have already, by the stretches of both.

    Channels with rows that carry no publish number are among them: only a look at silver tells about those.
    """
    known: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for run in earlier:
        known.setdefault(_whose(run), []).append((run["first"], run["last"]))
    # Reaching how far, stretch by stretch: then one look finds whether any begins before an end and reaches its start.
    reach = {}
    for whose, stretches in known.items():
        stretches.sort()
        reach[whose] = ([first for first, _ in stretches], list(accumulate((last for _, last in stretches), max)))
    found = _without_numbers(runs)
    for run in runs:
        firsts, lasts = reach.get(_whose(run), ([], []))
        place = bisect_right(firsts, run["last"])
        if place and lasts[place - 1] >= run["first"]:
            found.add(run["channel"])
    return sorted(found)


def may_repeat(runs: Sequence[Run]) -> bool:
    """Say whether a batch may hold an event more than once, by its stretches."""
    if _without_numbers(runs):
        return True
    reached: dict[tuple[object, ...], int] = {}
    for run in sorted(runs, key=lambda run: int(run["first"])):
        whose = _whose(run)
        if run["events"] > run["last"] - run["first"] + 1 or run["first"] <= reached.get(whose, run["first"] - 1):
            return True
        reached[whose] = run["last"]
    return False


def _without_numbers(runs: Sequence[Run]) -> set[str]:
    """Give the channels with rows that carry no publish number."""
    numbered: Counter[tuple[str, object]] = Counter()
    logged: Counter[tuple[str, object]] = Counter()
    for run in runs:
        (logged if run["kind"] == BY_LOG else numbered)[run["channel"], run["log_id"]] += run["events"]
    return {channel for (channel, log), rows in logged.items() if rows > numbered[channel, log]}


def _whose(run: Run) -> tuple[object, ...]:
    """Say what the numbers of a stretch count: a log, or a publisher's events wherever they were seen."""
    return (run["kind"], run["channel"], run["log_id"] if run["kind"] == BY_LOG else run["origin"])
