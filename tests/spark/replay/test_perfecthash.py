"""Every number of a set has a slot of its own, and Spark finds it where Python does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from meshbus.spark.replay.perfecthash import PerfectHash, array_sql, build_hash

INT64 = st.integers(-(2**63), 2**63 - 1)
SUBNETS = st.builds(
    lambda levels: int.from_bytes(bytes([*levels, 0, 0, 0][:4])), st.lists(st.integers(0, 255), max_size=4)
)


@given(st.sets(INT64, max_size=200) | st.sets(SUBNETS, max_size=200))
def test_every_number_has_its_own_slot(numbers: set[int]) -> None:
    places = build_hash(numbers)
    assert {number: places.table[places.where(number)] for number in numbers} == {number: number for number in numbers}
    assert sum(number is not None for number in places.table) == len(numbers)


@given(st.sets(INT64, max_size=50), INT64)
def test_a_number_outside_is_looked_for_at_one_place(numbers: set[int], other: int) -> None:
    places = build_hash(numbers)
    assert (places.table[places.where(other)] == other) == (other in numbers)


def test_numbers_that_fold_to_one_word_have_different_slots() -> None:
    numbers = [word << 32 | word for word in range(1, 40)]
    assert len({build_hash(numbers).where(number) for number in numbers}) == len(numbers)


def test_a_large_set_takes_little_more_room_than_it_needs() -> None:
    numbers = {(number * 0x9E3779B97F4A7C15) % 2**63 for number in range(3_000)}
    assert len(build_hash(numbers).table) <= 8 * len(numbers)


@pytest.mark.parametrize("count", [0, 8, 700])
def test_spark_looks_where_python_looks_and_nothing_overflows(spark: SparkSession, count: int) -> None:
    inside = [(number * 0x9E3779B97F4A7C15 + 2**63) % 2**64 - 2**63 for number in range(count)]
    others = [0, -1, 2**63 - 1, -(2**63), *(number ^ 1 for number in inside)]
    places = build_hash(inside)
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    try:
        rows = spark.createDataFrame([(number,) for number in inside + others], "n BIGINT")
        placed = rows.selectExpr("n", f"{places.where_sql('n')} AS place")
        found = placed.selectExpr("n", "place", f"{places.holds_sql('n', 'place')} AS held").collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before or "false")
    assert [(row["place"], row["held"]) for row in found] == [
        (places.where(number), number in inside) for number in inside + others
    ]


def test_an_array_has_nulls_where_there_is_no_number(spark: SparkSession) -> None:
    numbers = [-(2**63), None, 0, None]
    assert spark.range(1).selectExpr(f"{array_sql(numbers)} AS found").first() == (numbers,)


def test_places_are_a_value() -> None:
    assert build_hash([3, 1, 2]) == build_hash([1, 2, 3])
    assert isinstance(build_hash([]), PerfectHash)
