"""A gold table is one object: defining it is enough to have it computed, documented and reported."""

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.goldtable import GoldTable, Section
from meshbus.spark.lake.guide import render_table
from meshbus.spark.lake.tables import Tables
from meshbus.spark.lake.tableschema import CHANNEL, Layer
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.refresh import Refresher
from meshbus.spark.run.report import write_report
from tests.spark.world import SUBSCRIPTIONS, World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def empty_payloads(events: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    empty = F.count_if(F.octet_length("payload") == 0)
    return events.groupBy("hour", "channel").agg(empty.alias("empty"), F.count("*").alias("events"))


MINE = GoldTable(
    name="empty_payloads",
    doc="Events without a payload, per channel and hour.",
    columns=(
        CHANNEL,
        Column("empty", ColumnType.BIGINT, "Events without a payload."),
        Column("events", ColumnType.BIGINT, "Number of events."),
    ),
    sources=("silver.events",),
    compute=empty_payloads,
    question="Which channels carry empty payloads?",
    query="SELECT channel, sum(empty) AS empty FROM gold_empty_payloads GROUP BY channel HAVING sum(empty) > 0",
    section=Section(
        "Empty payloads", "No events have been read.", facts=lambda rows: {"empty": sum(row["empty"] for row in rows)}
    ),
)


def test_a_new_table_is_computed_documented_and_reported(spark: SparkSession, world: World, tmp_path: Path) -> None:
    for layer in ("bronze", "silver"):
        (tmp_path / layer).symlink_to(world.tables / layer)
    catalog = CATALOG.with_gold(MINE)
    store = Store(tmp_path, catalog)

    refresher = Refresher(spark, store, SUBSCRIPTIONS)
    assert refresher.refresh()["gold.empty_payloads"] > 0
    assert refresher.refresh()["gold.empty_payloads"] == 0
    tables = Tables(spark, store)
    expected = {
        (row["hour"], row["channel"], row["empty"], row["events"])
        for row in tables["silver.events"].selectExpr("hour", "channel", "payload").transform(empty_payloads).collect()
    }
    found = {
        (row["hour"], row["channel"], row["empty"], row["events"]) for row in tables["gold.empty_payloads"].collect()
    }
    assert found == expected
    assert sum(empty for *_, empty, _ in found) > 0
    assert "gold_empty_payloads" in tables.create_views()
    assert {row["channel"] for row in spark.sql(MINE.query).collect()} <= {"raw/blob", "raw/other"}

    text = render_table(catalog, "gold.empty_payloads")
    assert "Events without a payload, per channel and hour." in text
    assert "Computed from `silver.events`." in text
    assert "| `empty` | bigint |  | Events without a payload. |" in text
    assert MINE.query in text

    report = write_report(store)
    assert "<h2>Empty payloads</h2>" in report
    assert f"<dt>empty</dt><dd>{sum(empty for *_, empty, _ in found):,}</dd>" in report


def test_a_table_knows_its_columns_and_layer() -> None:
    assert MINE.spec.name == "gold.empty_payloads"
    assert MINE.spec.layer is Layer.GOLD
    assert MINE.spec.hourly
    assert [column.name for column in MINE.spec] == ["channel", "empty", "events"]
