"""Gold is made anew where something changed, and nowhere else."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.refresh import refresh
from tests.spark.world import SUBSCRIPTIONS, World

START = datetime(2026, 11, 15, tzinfo=UTC)


def test_only_what_changed_is_made_anew(spark: SparkSession, world: World, tmp_path: Path) -> None:
    root = tmp_path / "tables"
    shutil.copytree(world.tables, root, copy_function=shutil.copy2)
    store = Store(root)
    refresh(spark, store, SUBSCRIPTIONS)  # folders have other times now
    assert set(refresh(spark, store, SUBSCRIPTIONS).values()) == {0}
    gone, *_ = store.gold_files("gold.top_talkers").values()
    before = gone.read_bytes()
    gone.unlink()
    made = refresh(spark, store, SUBSCRIPTIONS)
    assert {name: hours for name, hours in made.items() if hours} == {"gold.top_talkers": 1}
    assert gone.stat().st_size == len(before)
    made = refresh(spark, store, [PrefixSubscription(9, "raw/")])
    assert {name for name, hours in made.items() if hours} == {"gold.fan_out"}
    assert {
        row["deliveries"] > 0 for row in store.read(spark, "gold.fan_out").where("channel = 'raw/blob'").collect()
    } == {True}


def test_an_hour_is_made_anew_if_what_was_known_around_it_changed(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    hours = [f"2026-11-15T{hour:02}" for hour in (1, 10, 12)]

    def add(table: str, query: str, chosen: list[str]) -> None:
        struct = store.catalog[table].struct()
        blank = {field.name: None for field in struct}
        known = {"channel": "a", "origin": 5, "recorder": 9, "kind": "roster", "payload": b"", "recv_ts": START}
        row = blank | {name: value for name, value in known.items() if name in blank}
        rows = [{**row, "hour": hour} for hour in chosen]
        store.add(table, query, 0, lambda: spark.createDataFrame(rows, struct))

    add("silver.events", "events", hours)
    add("bronze.events", "events", hours)
    assert refresh(spark, store)["gold.fan_out"] == 3
    add("bronze.census", "census", ["2026-11-15T08", "2026-11-15T20"])
    assert refresh(spark, store)["gold.fan_out"] == 1
    assert refresh(spark, store)["gold.fan_out"] == 0
    assert sorted(store.gold_files("gold.fan_out")) == hours
