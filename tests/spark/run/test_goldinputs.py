"""What gold tables are computed from is the same, whether it is small and read here or large and scanned by Spark."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import goldinputs
from meshbus.spark.run.goldinputs import GoldInputs
from meshbus.spark.run.smallfiles import SmallFiles
from tests.spark.counted import BY_NAME
from tests.spark.world import World

TABLES = (*BY_NAME, "silver.runs", "bronze.census")


def rows_of(frame: Any, name: str) -> Counter[Any]:
    """Rows as a bag; measures of equal keys are added up."""
    measures = BY_NAME[name].measures if name in BY_NAME else ()
    found: Counter[Any] = Counter()
    for row in frame.toArrow().to_pylist():
        key = tuple(sorted((column, repr(value)) for column, value in row.items() if column not in measures))
        for measure in measures or ("rows",):
            found[*key, measure] += row[measure] if measures else 1
    return found


@pytest.mark.parametrize("name", TABLES)
def test_what_is_read_here_is_what_spark_scans(spark: SparkSession, world: World, name: str) -> None:
    store = Store(world.tables)
    inputs = GoldInputs(spark, store, SmallFiles(store))
    hours = sorted({row["hour"] for row in store.rows("silver.event_counts")})
    for wanted in (None, hours[:1], hours[1:]) if name != "silver.runs" else (None,):
        here, there = inputs.frame(name, wanted), store.read(spark, name, wanted)
        assert dict(here.dtypes) == dict(there.dtypes)
        assert rows_of(here, name) == rows_of(there, name)
        assert here.rdd.getNumPartitions() == 1


def test_an_input_is_read_once_for_all_tables(spark: SparkSession, world: World) -> None:
    store = Store(world.tables)
    inputs = GoldInputs(spark, store, SmallFiles(store))
    first = inputs.frame("silver.event_counts", ["2026-11-15T23"])
    assert inputs.frame("silver.event_counts", ["2026-11-15T23"]) is first
    assert inputs.frame("silver.event_counts", ["2026-11-15T22"]) is not first


def test_spark_scans_what_is_large_and_what_has_a_row_for_each_event(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(world.tables)
    assert GoldInputs(spark, store, SmallFiles(store)).frame("bronze.events", None).inputFiles()
    assert not GoldInputs(spark, store, SmallFiles(store)).frame("silver.event_counts", None).inputFiles()
    monkeypatch.setattr(goldinputs, "SMALL_BYTES", 1)
    assert GoldInputs(spark, store, SmallFiles(store)).frame("silver.event_counts", None).inputFiles()


def test_a_table_without_files_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    inputs = GoldInputs(spark, store, SmallFiles(store))
    for name in TABLES:
        frame = inputs.frame(name, None)
        assert frame.isEmpty()
        assert dict(frame.dtypes) == dict(store.read(spark, name).dtypes)
