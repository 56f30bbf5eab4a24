"""The copy in Delta holds what the tables hold, follows them, and is made again wherever it died."""

from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from meshbus.errors import PipelineError
from meshbus.spark.lake import delta
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.delta import COPIED, copy_to_delta
from meshbus.spark.lake.tablestore import Store
from tests.spark.lake.test_tablestore import HOURLY, NAME, rows
from tests.spark.world import World


def held(target: Path, name: str) -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(str(target / name.replace(".", "/")))
    found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return found


def same(spark: SparkSession, store: Store, target: Path, name: str) -> bool:
    ours = store.read(spark, name).toArrow().to_pylist()
    theirs = held(target, name) if (target / name.replace(".", "/")).exists() else []
    return sorted(map(repr, ours)) == sorted(map(repr, theirs))


def test_every_table_of_a_world_is_copied_and_only_once(spark: SparkSession, world: World, tmp_path: Path) -> None:
    store, target = Store(world.config.tables), tmp_path / "delta"
    changed = copy_to_delta(store, target)
    assert changed["silver.events"] > 0
    for name in CATALOG:
        assert same(spark, store, target, name), name
    assert not any(copy_to_delta(store, target).values())


def test_a_copy_follows_its_table(spark: SparkSession, tmp_path: Path) -> None:
    store, target = Store(tmp_path / "tables"), tmp_path / "delta"
    for batch in range(4):
        store.add(NAME, "events", batch, partial(rows, spark, batch))
        assert copy_to_delta(store, target)[NAME] == 1
        assert same(spark, store, target, NAME)
    store.compact(spark, NAME, "events", fewest=2, keep=0)
    copy_to_delta(store, target)
    assert sorted(row["first"] for row in held(target, NAME)) == [0, 1, 2, 3]


def test_hours_are_replaced_and_go_with_their_table(tmp_path: Path) -> None:
    store, target = Store(tmp_path / "tables"), tmp_path / "delta"
    for hour, topic in (("2026-11-15T01", "a"), ("2026-11-15T02", "b"), ("2026-11-15T02", "c")):
        counts = {"events": [2], "deliveries": [2], "unknown": [0], "receivers": [1], "receipts": [2]}
        table = pa.table({"channel": [topic], "subscribers": [1], **counts})
        store.put_gold(HOURLY, hour, table, topic)
        copy_to_delta(store, target)
    assert sorted((row["hour"], row["channel"]) for row in held(target, HOURLY)) == [
        ("2026-11-15T01", "a"),
        ("2026-11-15T02", "c"),
    ]
    store.expire(HOURLY, "2026-11-15T02")
    assert copy_to_delta(store, target)[HOURLY] == 1
    assert [row["channel"] for row in held(target, HOURLY)] == ["c"]


def test_a_copy_that_died_after_its_commit_is_made_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = Store(tmp_path / "tables"), tmp_path / "delta"
    store.add(NAME, "events", 0, lambda: rows(spark, 1, 2))
    write, calls = delta._write_copied, []

    def dying(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(*given)

    monkeypatch.setattr(delta, "_write_copied", dying)
    with pytest.raises(KeyboardInterrupt):
        copy_to_delta(store, target)
    monkeypatch.setattr(delta, "_write_copied", write)
    copy_to_delta(store, target)
    assert sorted(row["first"] for row in held(target, NAME)) == [1, 2]


def test_a_folder_that_is_no_copy_is_left_alone(tmp_path: Path) -> None:
    store, target = Store(tmp_path / "tables"), tmp_path / "delta"
    target.mkdir()
    (target / "precious").write_bytes(b"")
    with pytest.raises(PipelineError, match="not a copy of tables; choose another directory"):
        copy_to_delta(store, target)
    (target / COPIED).write_bytes(b"{")
    with pytest.raises(PipelineError, match="is damaged; remove"):
        copy_to_delta(store, target)
