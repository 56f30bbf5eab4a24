"""Filters match at least what is asked for, and are short whatever is asked for."""

import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from meshbus.spark.lake.narrow import MOST_NAMES, MOST_RANGES, near_names, near_steps


def test_ranges_match_their_numbers_and_join_where_they_touch(spark: SparkSession) -> None:
    numbers = spark.range(-5, 100)
    for starts in ([20], [20, 30], [30, 20, 60], [0, 10, 25]):
        asked = {number for start in starts for number in range(start, start + 10)}
        found = numbers.where(near_steps(F.col("id"), starts, 10))
        assert {row["id"] for row in found.collect()} == asked
    assert numbers.where(near_steps(F.col("id"), [], 10)).count() == 0
    assert str(near_steps(F.col("id"), range(0, 600, 60), 60)).count(">=") == 1


def test_too_many_ranges_become_one_that_has_all(spark: SparkSession) -> None:
    starts = [number * 100 for number in range(MOST_RANGES + 1)]
    random.Random(1).shuffle(starts)
    column = near_steps(F.col("id"), starts, 10)
    assert str(column).count(">=") == 1
    assert spark.range(-5, 100 * len(starts)).where(column).count() == 100 * MOST_RANGES + 10


def test_names_are_matched_as_long_as_they_are_few(spark: SparkSession) -> None:
    channels = spark.createDataFrame([("a",), ("b",), (None,)], "channel STRING")
    name = F.col("channel")
    assert [row["channel"] for row in channels.where(near_names(name, ["b", "c"])).collect()] == ["b"]
    assert channels.where(near_names(name, [])).count() == 0
    assert channels.where(near_names(name, [str(n) for n in range(MOST_NAMES + 1)])).count() == 3
