"""Gold is made anew where something changed, and nowhere else."""

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.refresh import refresh
from tests.spark.world import SUBSCRIPTIONS, World


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
