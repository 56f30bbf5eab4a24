"""What gold tables are computed from is what Spark reads of the same hours, and is read once."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from meshbus.spark.lake.gold.fan_out import TABLE as FAN_OUT
from meshbus.spark.lake.goldtable import GoldTable
from meshbus.spark.lake.narrow import Scan
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import goldinputs
from meshbus.spark.run.goldinputs import GoldInputs
from meshbus.spark.run.smallfiles import SmallFiles
from tests.spark.counted import BY_NAME
from tests.spark.world import World

TABLES = (*BY_NAME, "silver.runs", "bronze.census")
HOUR = "2026-11-15T23"


def inputs_of(root: Path) -> GoldInputs:
    store = Store(root)
    return GoldInputs(store, SmallFiles(store))


def bag(rows: Any, name: str) -> Counter[Any]:
    """Rows as a bag; measures of equal keys are added up."""
    measures = BY_NAME[name].measures if name in BY_NAME else ()
    found: Counter[Any] = Counter()
    for row in rows.to_pylist():
        key = tuple(sorted((column, repr(value)) for column, value in row.items() if column not in measures))
        for measure in measures or ("rows",):
            found[*key, measure] += row[measure] if measures else 1
    return found


@pytest.mark.parametrize("name", TABLES)
def test_what_is_read_is_what_spark_reads(spark: SparkSession, world: World, name: str) -> None:
    store = Store(world.tables)
    hours = sorted({row["hour"] for row in store.rows("silver.event_counts")})
    for wanted in (None, hours[:1], hours[1:]) if name != "silver.runs" else (None,):
        here = inputs_of(world.tables).rows(FAN_OUT, name, wanted)
        assert bag(here, name) == bag(store.read(spark, name, wanted).toArrow(), name)


def test_a_small_input_is_read_once_for_all_tables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of(world.tables)
    first = inputs.rows(FAN_OUT, "silver.event_counts", [HOUR])
    assert inputs.rows(FAN_OUT, "silver.event_counts", [HOUR]) is first
    assert inputs.rows(FAN_OUT, "silver.event_counts", ["2026-11-15T22"]) is not first
    monkeypatch.setattr(goldinputs, "HELD_BYTES", inputs.bytes("silver.receipt_counts", [HOUR]) - 1)
    large = inputs.rows(FAN_OUT, "silver.receipt_counts", [HOUR])
    assert inputs.rows(FAN_OUT, "silver.receipt_counts", [HOUR]) is not large


def test_of_a_table_with_a_row_for_each_event_a_few_are_read(world: World) -> None:
    assert isinstance(inputs_of(world.tables).rows(FAN_OUT, "silver.events", [HOUR]), Scan)


def test_a_table_without_files_has_no_rows(tmp_path: Path) -> None:
    table: GoldTable = msgspec.structs.replace(FAN_OUT, filtered=())
    for name in TABLES:
        assert len(inputs_of(tmp_path).rows(table, name, None)) == 0
        assert inputs_of(tmp_path).bytes(name, None) == 0
