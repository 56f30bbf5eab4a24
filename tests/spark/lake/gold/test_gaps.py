"""Ranges of any order and overlap are combined, and what lies between them is missing."""

from itertools import product
from typing import Any

from pyspark.sql import SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.gold.gaps import TABLE
from meshbus.spark.lake.stretches import COLUMNS, runs_of
from tests.spark import oracle
from tests.spark.oracle import as_set
from tests.spark.world import World

RUNS = CATALOG["silver.runs"]


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]], world: World) -> None:
    # Two nodes hold a replica of one log under one log id: together they are one log.
    expected = oracle.gaps(world.bronze())
    replica = {row["log_id"] for row in world.bronze() if row["channel"] == "json/state"}
    of_one_node = [row for row in expected if row["log_id"] not in replica]
    assert as_set(row for row in read["gold.gaps"] if row["log_id"] not in replica) == as_set(of_one_node)
    assert any(row["missing"] and row["duplicates"] and row["reordered"] for row in of_one_node)


def test_ranges_of_any_order_and_overlap_are_combined(spark: SparkSession) -> None:
    def run_of(first: int, last: int, events: int) -> tuple[object, ...]:
        return ("publisher", "a", b"L" * 16, 5, first, last, events, 1)

    runs = [run_of(20, 29, 10), run_of(0, 9, 12), run_of(5, 12, 8), run_of(13, 13, 1), run_of(40, 40, 1)]
    (row,) = TABLE.rows([spark.createDataFrame(runs, RUNS.struct())]).collect()
    assert (row["first"], row["last"], row["events"]) == (0, 40, 25)
    assert (row["missing"], row["holes"], row["first_missing"], row["last_missing"]) == (16, 2, 14, 39)
    assert (row["duplicates"], row["reordered"]) == (7, 5)


def test_numbers_at_their_limits_fail_no_query(spark: SparkSession) -> None:
    struct = CATALOG["bronze.events"].struct()
    blank = {field.name: None for field in struct}
    extremes = [-(2**63), -1, 0, 2**63 - 1]
    rows = [
        {**blank, "channel": "a", "log_id": b"L" * 16, "seq": place, "origin": number, "pub_seq": other}
        for place, (number, other) in enumerate(product([-(2**63), 5], extremes))
    ]
    runs = runs_of(spark.createDataFrame(rows, struct).select(*COLUMNS).toArrow(), [])
    assert TABLE.rows([spark.createDataFrame(runs, RUNS.struct())]).count() == 3


def test_the_section_lists_only_what_is_incomplete() -> None:
    whole = {"kind": "publisher", "channel": "whole", "missing": 0, "duplicates": 0, "reordered": 0}
    broken = {**whole, "channel": "broken", "missing": 7}
    expired = {**broken, "kind": "log"}
    assert "No gaps: 2 logs and publishers" in TABLE.section.draw([whole, whole])
    text = TABLE.section.draw([whole, broken])
    assert "broken (publisher)" in text
    assert "whole" not in text
    assert TABLE.section.facts([whole, broken, expired]) == {"events missing": 7}
