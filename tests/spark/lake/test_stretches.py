"""Stretches of numbers: they add up to what plain Python counts."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from meshbus.log.positions import Mark
from meshbus.log.schema import EVENTS, arrow_schema
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.duplicates import KnownEvents
from meshbus.spark.lake.gold.gaps import gaps
from meshbus.spark.lake.numbering import Numbering
from meshbus.spark.lake.stretches import COLUMNS, WHOSE, merge_runs, runs_of
from tests.spark import oracle

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "channel": st.sampled_from("ab"),
            "log_id": st.sampled_from([b"L" * 16, b"M" * 16]),
            "origin": st.sampled_from([None, -5, 5]),
            "pub_seq": st.one_of(st.none(), st.integers(0, 12), st.integers(2**60, 2**60 + 9)),
            "session_id": st.sampled_from([1, -1]),
            "packet_seq": st.one_of(st.none(), st.integers(0, 9), st.just(2**61)),
            "event_index": st.integers(0, 1),
        }
    ),
    max_size=40,
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    schema = arrow_schema(EVENTS, dictionaries=False)
    return pa.Table.from_pylist(rows, pa.schema([schema.field(name).with_nullable(True) for name in COLUMNS]))


@given(ROWS, st.lists(st.integers(0, 40), max_size=3))
def test_stretches_of_batches_add_up_to_what_plain_python_counts(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    for seq, row in enumerate(rows):
        row["seq"] = seq
    found: list[dict[str, Any]] = []
    for start, stop in pairwise([0, *sorted(cuts), len(rows)]):
        for channel, log in product("ab", (b"L" * 16, b"M" * 16)):
            piece = [row for row in rows[start:stop] if (row["channel"], row["log_id"]) == (channel, log)]
            made = runs_of(channel, Numbering(log), table_of(piece), KnownEvents(found).highest)
            assert made.schema == arrow_schema(CATALOG["silver.runs"].table, dictionaries=False)
            found += made.to_pylist()
    whose = WHOSE
    expected = {tuple(row[name] for name in whose): row for row in oracle.gaps(rows)}
    assert {tuple(run[name] for name in whose) for run in found} == set(expected)
    for owner, row in expected.items():
        own = [run for run in found if tuple(run[name] for name in whose) == owner]
        covered = {number for run in own for number in range(run["first"], run["last"] + 1)}
        assert len(covered) == row["events"]
        assert sum(run["events"] for run in own) == row["events"] + (row["duplicates"] or 0)
        assert sum(run["reordered"] for run in own) == (row["reordered"] or 0)


def test_merged_stretches_say_the_same_in_fewer_rows(spark: SparkSession) -> None:
    def run(first: int, last: int, events: int) -> tuple[object, ...]:
        return ("publisher", "a", b"L" * 16, 5, None, first, last, events, 1)

    names = [field.name for field in CATALOG["silver.runs"].struct()]
    schema = arrow_schema(CATALOG["silver.runs"].table, dictionaries=False)
    runs = [run(20, 29, 10), run(0, 9, 12), run(5, 12, 8), run(13, 13, 1), run(40, 40, 1)]
    table = pa.Table.from_pylist([dict(zip(names, values, strict=True)) for values in runs], schema)
    merged = merge_runs(table)
    assert merged.schema == schema
    assert sorted((row["first"], row["last"], row["events"], row["reordered"]) for row in merged.to_pylist()) == [
        (0, 13, 21, 3),
        (20, 29, 10, 1),
        (40, 40, 1, 1),
    ]
    assert gaps(merged).to_pylist() == gaps(table).to_pylist()


OWNERS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["log", "publisher"]), "channel": st.sampled_from("ab"), "log_id": st.just(b"L" * 16),
     "origin": st.sampled_from([None, 5]), "session_id": st.sampled_from([None, -1])}
)  # fmt: skip
EDGES = [-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1]


@given(st.lists(st.tuples(OWNERS, *[st.one_of(st.integers(-9, 9), st.sampled_from(EDGES))] * 2), max_size=20))
def test_merged_ranges_hold_the_same_numbers_and_never_touch(given: list[tuple[dict[str, Any], int, int]]) -> None:
    rows = [
        {**owner, "first": min(pair), "last": max(pair), "events": place, "reordered": 1}
        for place, (owner, *pair) in enumerate(given)
    ]
    schema = arrow_schema(CATALOG["silver.runs"].table, dictionaries=False)
    merged = merge_runs(pa.Table.from_pylist(rows, schema)).to_pylist()

    def of_owner(some: list[dict[str, Any]], owner: tuple[Any, ...]) -> list[dict[str, Any]]:
        return sorted(
            (row for row in some if tuple(row[name] for name in WHOSE) == owner), key=lambda row: row["first"]
        )

    for owner in {tuple(row[name] for name in WHOSE) for row in rows + merged}:
        before, after = of_owner(rows, owner), of_owner(merged, owner)
        assert all(one["last"] + 1 < other["first"] for one, other in pairwise(after))
        for row in before:
            assert any(one["first"] <= row["first"] and row["last"] <= one["last"] for one in after)
        for one in after:
            inside = [row for row in before if one["first"] <= row["first"] <= one["last"]]
            assert (one["first"], one["last"]) == (inside[0]["first"], max(row["last"] for row in inside))
            assert one["events"] == sum(row["events"] for row in inside)
            assert one["reordered"] == len(inside)


def test_positions_in_a_replicated_log_are_a_range_of_it_and_of_what_arrived() -> None:
    log = Numbering(b"L" * 16, marks=(Mark((b"R" * 16).hex(), f"{5:016x}"),))
    rows = [
        {**dict.fromkeys(COLUMNS), "seq": seq, "origin": 5, "pub_seq": number} for seq, number in enumerate((4, 5, 4))
    ]
    for new, counted in ((None, 3), (np.array([True, True, False]), 2)):
        runs = runs_of("a", log, table_of(rows), {}, new).to_pylist()
        found = [
            (run["kind"], run["log_id"][:1], run["origin"], run["first"], run["last"], run["events"]) for run in runs
        ]
        assert found == [
            ("log", b"L", None, 0, 2, 3),
            ("publisher", b"L", None, 4, 5, 3),
            ("log", b"R", None, 4, 5, counted),
        ]
