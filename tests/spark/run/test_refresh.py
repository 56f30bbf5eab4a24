"""Gold is made anew where something changed, and nowhere else."""

import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from meshbus.log.schema import arrow_schema
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.gold.top_talkers import TABLE as TOP_TALKERS
from meshbus.spark.lake.goldtable import GoldTable
from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import refresh
from meshbus.spark.run.goldinputs import GoldInputs
from meshbus.spark.run.refresh import Refresher
from tests.spark.counted import BY_NAME
from tests.spark.world import SUBSCRIPTIONS, World

START = datetime(2026, 11, 15, tzinfo=UTC)


def test_only_what_changed_is_made_anew(spark: SparkSession, world: World, tmp_path: Path) -> None:
    root = tmp_path / "tables"
    shutil.copytree(world.tables, root, copy_function=shutil.copy2)
    store = Store(root)
    refresher = Refresher(spark, store, SUBSCRIPTIONS)
    refresher.refresh()  # the files have other paths now
    assert set(refresher.refresh().values()) == {0}
    gone = Path(store.paths("gold.top_talkers")[0])
    before = gone.read_bytes()
    gone.unlink()
    made = refresher.refresh()
    assert {name: hours for name, hours in made.items() if hours} == {"gold.top_talkers": 1}
    assert gone.stat().st_size == len(before)
    made = Refresher(spark, store, [PrefixSubscription(9, "raw/")]).refresh()
    assert {name for name, hours in made.items() if hours} == {"gold.fan_out"}
    assert {
        row["deliveries"] > 0 for row in store.read(spark, "gold.fan_out").where("channel = 'raw/blob'").collect()
    } == {True}


def add(store: Store, name: str, query: str, hours: list[int], **more: Any) -> None:
    """Commit a batch with a row in each of some hours."""
    spec = store.catalog.spec(name)
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema(spec.table, dictionaries=False)])
    rows = [
        {"channel": "a", "origin": 5, "recorder": 9, spec.time: START + timedelta(hours=hour), **more} for hour in hours
    ]
    table = store.table(name)
    staged = table.stage()
    pq.write_table(pa.Table.from_pylist(rows, schema), staged / "rows.parquet")
    batch = table.last(query) + 1
    table.commit(query, batch, batch, staged)


def test_an_hour_is_made_anew_if_what_was_known_around_it_changed(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    refresher = Refresher(spark, store)
    for name in ("silver.events", "bronze.events"):
        add(store, name, "events", [1, 10, 12], payload=b"", log_id=b"L" * 16)
    assert refresher.refresh()["gold.fan_out"] == 3
    add(store, "bronze.census", "census", [8, 20], kind="roster")
    assert refresher.refresh()["gold.fan_out"] == 1
    assert refresher.refresh()["gold.fan_out"] == 0
    assert store.table("gold.fan_out").hours() == [f"2026-11-15T{hour:02}" for hour in (1, 10, 12)]


def test_each_batch_is_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        add(store, "silver.events", "events", [1, 2], payload=b"12345", log_id=b"L" * 16)
    Refresher(spark, store).refresh()
    add(store, "silver.events", "events", [2], payload=b"12345", log_id=b"L" * 16)
    add(store, "silver.events", "events_1", [2], payload=b"12345", log_id=b"M" * 16)
    Refresher(spark, store).refresh()
    counted = [(row["hour"][-2:], row["events"], row["bytes"]) for row in store.rows("silver.event_counts")]
    assert sorted(counted) == [("01", 2, 10), ("02", 1, 5), ("02", 1, 5), ("02", 2, 10)]
    assert store.table("silver.event_counts").last("events") == 2
    (hour,) = store.read(spark, "gold.channel_stats", ["2026-11-15T02"]).collect()
    assert (hour["events"], hour["bytes"]) == (4, 20)


def test_a_table_that_takes_long_delays_no_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, released = Refresher._replace, threading.Event()

    def slowly(self: Refresher, table: GoldTable, due: Mapping[str, str], inputs: GoldInputs) -> None:
        if table.name == "top_talkers":
            released.wait(300)
        replace(self, table, due, inputs)

    monkeypatch.setattr(Refresher, "_replace", slowly)
    store = Store(tmp_path)
    add(store, "silver.events", "events", [1], payload=b"12345", log_id=b"L" * 16)
    with closing(Refresher(spark, store)) as refresher:
        made: dict[str, int] = {}
        while "gold.channel_stats" not in made:
            made |= refresher.begin()
            time.sleep(0.05)
        assert "gold.top_talkers" not in made
        assert refresher.running
        released.set()
        assert refresher.refresh()["gold.top_talkers"] == 1
    assert store.table("gold.top_talkers").hours() == ["2026-11-15T01"]


def test_tables_that_take_long_have_a_thread_of_their_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, str]] = []

    def noted(self: Refresher, table: GoldTable, due: Mapping[str, str], inputs: GoldInputs) -> None:
        begun.append((table.name, threading.current_thread().name.rpartition("_")[0]))

    monkeypatch.setattr(Refresher, "_replace", noted)
    by_spark = msgspec.structs.replace(TOP_TALKERS, name="mine", by_arrow=False)
    store = Store(tmp_path, CATALOG.with_gold(by_spark))
    for name in ("silver.events", "bronze.events"):
        add(store, name, "events", [1], payload=b"12345", log_id=b"L" * 16)
    with closing(Refresher(spark, store)) as refresher:
        refresher.refresh()
        assert [name for name, thread in begun if thread == "meshbus-gold-slow"] == ["mine"], "Spark computes it"
        begun.clear()
        slow = {"gold.top_talkers": 7.0, "gold.channel_stats": 3.0}
        refresher._took_s = dict.fromkeys(store.catalog.gold, 0.1) | slow
        refresher.refresh()
    assert dict(begun)["mine"] == "meshbus-gold"
    assert [name for name, thread in begun if thread == "meshbus-gold-slow"] == ["channel_stats", "top_talkers"]


def test_fewer_hours_are_computed_together_where_their_counts_are_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, together = Refresher._replace, []

    def noted(self: Refresher, table: GoldTable, due: Mapping[str, str], inputs: GoldInputs) -> None:
        if table.name == "top_talkers":
            together.append([hour[-2:] for hour in due])
        replace(self, table, due, inputs)

    monkeypatch.setattr(Refresher, "_replace", noted)
    monkeypatch.setattr(refresh, "HOURS_AT_ONCE", 4)
    store = Store(tmp_path)
    add(store, "silver.events", "events", list(range(6)), payload=b"12345", log_id=b"L" * 16)
    with closing(Refresher(spark, store)) as refresher:
        refresher.refresh()
    monkeypatch.setattr(refresh, "BYTES_AT_ONCE", 1)
    add(store, "silver.events", "events", [0, 1], payload=b"12345", log_id=b"L" * 16)
    with closing(Refresher(spark, store)) as refresher:
        refresher.refresh()
    assert together == [["00", "01", "02", "03"], ["04", "05"], ["00"], ["01"]]
    assert len(store.rows("gold.top_talkers")) == 6


def test_files_that_were_compacted_are_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with closing(Refresher(spark, store)) as refresher:
        for _ in range(4):
            add(store, "silver.events", "events", [1], payload=b"12345", log_id=b"L" * 16)
            refresher.refresh()
        counts = store.table("silver.event_counts")
        assert counts.compact("events", fewest=4, merge=BY_NAME["silver.event_counts"].merge, keep=0) == 4
        refresher.refresh()
        assert len(refresher._files) == len(counts.files()) == 1
    (row,) = store.rows("silver.event_counts")
    assert (row["events"], row["bytes"]) == (4, 20)


def test_counting_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    store = Store(tmp_path)
    add(store, "silver.events", "events", [1], payload=b"12345", log_id=b"L" * 16)
    with closing(Refresher(spark, store, (), lambda *counted: told.append(counted))) as refresher:
        refresher.refresh()
        refresher.refresh()
    assert [files for files, _ in told] == [1]


def test_a_table_rests_after_it_was_computed(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    add(store, "silver.events", "events", [1], payload=b"12345", log_id=b"L" * 16)
    with closing(Refresher(spark, store)) as refresher:
        refresher.refresh()
        refresher._rest_until = dict.fromkeys(refresher._rest_until, float("inf"))
        add(store, "silver.events", "events", [1], payload=b"12345", log_id=b"L" * 16)
        assert refresher.begin() == {}
        assert set(refresher._running) == set()
        assert refresher.busy, "what rests may be out of date"
        refresher._rest_until = dict.fromkeys(refresher._rest_until, 0.0)
        assert refresher.busy, "and still may when its rest has ended, until it was looked at"
        refresher.begin()
        assert refresher.running
        assert refresher.refresh()["gold.top_talkers"] == 1


def test_a_table_that_fails_hides_no_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, troubles = Refresher._replace, [RuntimeError("a file went away")]

    def troubled(self: Refresher, table: GoldTable, due: Mapping[str, str], inputs: GoldInputs) -> None:
        if table.name == "top_talkers" and troubles:
            raise troubles.pop()
        replace(self, table, due, inputs)

    monkeypatch.setattr(Refresher, "_replace", troubled)
    store = Store(tmp_path)
    add(store, "silver.events", "events", [1], payload=b"12345", log_id=b"L" * 16)
    with closing(Refresher(spark, store)) as refresher:
        with pytest.raises(RuntimeError, match="a file went away"):
            refresher.refresh()
        assert refresher.failing == {"gold.top_talkers"}
        made = refresher.refresh()
    assert made["gold.channel_stats"] == made["gold.top_talkers"] == 1, "one is reported late, the other made again"
    assert refresher.failing == set()
