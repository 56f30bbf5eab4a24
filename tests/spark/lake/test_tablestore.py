"""A batch is in a table once, whatever happens between; old batches become one; gold is replaced in one step."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from meshbus.errors import PipelineError
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.tablestore import Store, open_store

NAME = "silver.runs"
HOURLY = "gold.fan_out"


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    made = [("log", "a", b"x" * 16, None, None, number, number, 1, 0) for number in numbers]
    return spark.createDataFrame(made, CATALOG[NAME].struct())


def numbers(store: Store, spark: SparkSession) -> list[int]:
    return sorted(row["first"] for row in store.read(spark, NAME).collect())


def test_a_batch_that_is_there_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.add(NAME, "events", 0, lambda: rows(spark, 1, 2))
    assert not store.add(NAME, "events", 0, lambda: pytest.fail("it was asked for"))
    assert store.add(NAME, "other", 0, lambda: rows(spark, 3))
    assert numbers(store, spark) == [1, 2, 3]
    assert [row["first"] for row in store.rows(NAME, only=("other", 0))] == [3]
    assert sorted(row["first"] for row in store.rows(NAME, but=("other", 0))) == [1, 2]


def test_a_batch_whose_write_died_is_written_anew(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store._stage(rows(spark, 1), NAME)  # as far as a driver came that was killed before the rename
    assert numbers(store, spark) == []
    store.add(NAME, "events", 0, lambda: rows(spark, 1))
    store.sweep(NAME)
    assert numbers(store, spark) == [1]
    assert not (store.folder(NAME) / "_aside").exists()


def test_two_who_write_the_same_batch_leave_one(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)

    def overtaken() -> DataFrame:
        Store(tmp_path).add(NAME, "events", 0, lambda: rows(spark, 1))
        return rows(spark, 1)

    store.add(NAME, "events", 0, overtaken)
    assert numbers(store, spark) == [1]


def test_batches_become_one_and_stay_known(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for batch in range(6):
        store.add(NAME, "events", batch, partial(rows, spark, batch))
    assert store.compact(spark, NAME, "events", fewest=9) == 0
    assert store.compact(spark, NAME, "events", fewest=2) == 2
    assert store.compact(spark, NAME, "events", fewest=2) == 2
    assert store.compact(spark, NAME, "events", fewest=2) == 2
    assert store.compact(spark, NAME, "events", fewest=2) == 0
    assert [(part.first, part.last) for part in store.parts(NAME)] == [(0, 3), (4, 4), (5, 5)]
    assert numbers(store, spark) == list(range(6))
    assert store.has(NAME, "events", 2)
    assert not store.has(NAME, "events", 6)


def test_what_is_being_read_stays_until_the_next_time(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for batch in range(3):
        store.add(NAME, "events", batch, partial(rows, spark, batch))
    with store.reading():
        before = store.read(spark, NAME)
        assert store.compact(spark, NAME, "events", fewest=2, keep=0) == 2
        assert len(list(store.folder(NAME).glob("batch=*"))) == 4
        assert before.count() == 3
        assert numbers(store, spark) == [0, 1, 2]
    assert store.compact(spark, NAME, "events", fewest=9) == 0
    assert len(list(store.folder(NAME).glob("batch=*"))) == 2
    assert numbers(store, spark) == [0, 1, 2]


def test_a_compaction_that_died_after_its_rename_shows_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for batch in range(3):
        store.add(NAME, "events", batch, partial(rows, spark, batch))
    whole = rows(spark, 0, 1, 2)
    store._stage(whole, NAME).rename(store.folder(NAME) / "batch=events-000000000000-000000000002")
    assert numbers(store, spark) == [0, 1, 2]
    store.sweep(NAME)
    assert len(list(store.folder(NAME).glob("batch=*"))) == 1
    assert numbers(store, spark) == [0, 1, 2]


def test_gold_is_replaced_and_says_what_it_was_made_of(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    counts = {"events": [2], "deliveries": [2], "unknown": [0], "receivers": [1], "receipts": [2]}
    table = pa.table({"channel": ["a"], "subscribers": [1], **counts})
    assert store.gold_sources(HOURLY, "2026-01-01T00") == ""
    store.put_gold(HOURLY, "2026-01-01T00", table, "first")
    store.put_gold(HOURLY, "2026-01-01T00", table, "second")
    store.put_gold(HOURLY, "2026-01-01T01", table.slice(0, 0), "third")
    assert store.gold_sources(HOURLY, "2026-01-01T00") == "second"
    (row,) = store.read(spark, HOURLY).collect()
    assert (row["channel"], row["hour"]) == ("a", "2026-01-01T00")
    assert store.expire(HOURLY, "2026-01-01T01") == 1
    assert store.read(spark, HOURLY).count() == 0


def test_old_hours_of_batches_can_go(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = "bronze.events"
    columns = CATALOG[name].struct()
    row = dict.fromkeys(columns.fieldNames())
    made = [{**row, "channel": "a", "hour": f"2026-01-01T0{hour}"} for hour in range(3)]
    store.add(name, "events", 0, lambda: spark.createDataFrame(made, columns))
    assert store.parts(name)[0].hours() == ["2026-01-01T00", "2026-01-01T01", "2026-01-01T02"]
    assert store.expire(name, "2026-01-01T02") == 2
    assert [row["hour"] for row in store.read(spark, name).collect()] == ["2026-01-01T02"]
    assert store.read(spark, name, ["2026-01-01T00"]).count() == 0
    assert store.has(name, "events", 0)


def test_only_a_directory_is_opened(tmp_path: Path) -> None:
    assert open_store(tmp_path).root == tmp_path
    with pytest.raises(PipelineError, match="none is not a table directory; run 'meshbus pipeline run' first"):
        open_store(tmp_path / "none")


def test_arrow_rows_of_an_hourly_table_go_to_their_hours(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    table = pa.table({"recorder": [1, 2, 3], "hour": ["2026-11-15T01", "2026-11-15T02", "2026-11-15T01"]})
    store.put("bronze.census", "census", 0, table)
    (part,) = store.parts("bronze.census")
    assert part.hours() == ["2026-11-15T01", "2026-11-15T02"]
    rows = store.read(spark, "bronze.census", ["2026-11-15T01"]).collect()
    assert sorted((row["recorder"], row["hour"]) for row in rows) == [(1, "2026-11-15T01"), (3, "2026-11-15T01")]
