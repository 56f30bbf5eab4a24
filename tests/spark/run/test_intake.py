"""What nodes knew comes into its table once, whoever reads it and however often."""

from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from meshbus.log.census import FOLDER, Fact, FactKind, channel_of
from meshbus.log.log import Redex
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.intake import TABLE, CensusIntake

HOUR_NS = 3_600 * 10**9


def write(log_dir: Path, node_id: int, *hours: int) -> None:
    with Redex(log_dir / FOLDER, recorder=node_id, background=False) as redex:
        facts = [Fact(FactKind.ROSTER, channel="a", subscribers=hour, copies=hour) for hour in hours]
        payloads = [msgspec.json.encode(fact) for fact in facts]
        redex.open(channel_of(node_id)).append_batch(payloads, ts_ns=[hour * HOUR_NS for hour in hours])


def test_every_row_is_taken_once(spark: SparkSession, tmp_path: Path) -> None:
    logs = [tmp_path / "a", tmp_path / "b", tmp_path / "empty"]
    for path in logs:
        path.mkdir()
    store = Store(tmp_path / "tables")
    intake = CensusIntake(store, [str(path) for path in logs])
    assert intake.take() == 0
    assert store.paths(TABLE) == []
    write(logs[0], 2**63 + 1, 1, 1, 2)
    write(logs[0], 7, 2)
    assert intake.take() == 4
    assert intake.take() == 0
    write(logs[0], 7, 3)
    write(logs[1], 9, 1)
    assert CensusIntake(store, [str(path) for path in logs]).take() == 2, "another run continues"
    rows = store.read(spark, TABLE).collect()
    assert sorted((row["recorder"], row["seq"], row["subscribers"], row["hour"]) for row in rows) == [
        (1 - 2**63, 0, 1, "1970-01-01T01"),
        (1 - 2**63, 1, 1, "1970-01-01T01"),
        (1 - 2**63, 2, 2, "1970-01-01T02"),
        (7, 0, 2, "1970-01-01T02"),
        (7, 1, 3, "1970-01-01T03"),
        (9, 0, 1, "1970-01-01T01"),
    ]


def test_small_parts_are_combined_and_nothing_is_taken_again(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "tables")
    intake = CensusIntake(store, [str(tmp_path)])
    for hour in range(6):
        write(tmp_path, 7, hour)
        assert intake.take() == 1
    store.table(TABLE).compact("census", fewest=4)
    assert len(store.paths(TABLE)) == 3
    assert store.read(spark, TABLE).count() == 6
    assert CensusIntake(store, [str(tmp_path)]).take() == 0
