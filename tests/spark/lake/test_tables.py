"""The tables that one run made equal what plain Python makes of the same logs and packets, row for row."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from meshbus.errors import ConfigError, PipelineError
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.tables import tables
from tests.spark import oracle
from tests.spark.oracle import as_set, plain
from tests.spark.packets import said
from tests.spark.world import World

Row = dict[str, Any]


def test_bronze_is_what_the_logs_hold(read: dict[str, list[Row]], world: World) -> None:
    assert as_set(map(plain, read["bronze.events"])) == as_set(world.bronze())
    assert all(row["hour"] == oracle.hour_of(row["recv_ts_ns"]) for row in read["bronze.events"])


def test_bronze_packets_are_what_was_recorded(read: dict[str, list[Row]], world: World) -> None:
    assert as_set(map(plain, read["bronze.packets"])) == as_set(world.packets.to_pylist())


def test_silver_holds_each_event_once_decoded_and_quarantine_the_rest(read: dict[str, list[Row]], world: World) -> None:
    events = oracle.events_of(world.bronze())
    assert sum(map(len, events)) == len(world.bronze())
    assert len(events) < len(world.bronze())
    kept = {(row["log_id"], row["seq"], row["recorder"]): row for row in read["silver.events"]}
    refused = {(row["log_id"], row["seq"], row["recorder"]): row for row in read["silver.quarantine"]}
    assert len(kept) == len(read["silver.events"])
    good = bad = 0
    for rows in events:
        names = {(row["log_id"], row["seq"], row["recorder"]) for row in rows}
        found = [key for key in names if key in kept]
        codec, value, is_good = oracle.decoded(rows[0]["channel"], rows[0]["payload"])
        if len({row["payload"] for row in rows}) > 1:
            assert len(found) + sum(key in refused for key in names) >= 1  # a number given twice, to two payloads
            continue
        assert len(found) == is_good, rows
        assert any(key in refused for key in names) is not is_good
        good, bad = good + is_good, bad + (not is_good)
        if is_good:
            row = kept[found[0]]
            assert row["codec"] == codec
            told = row["value"] if codec in {"utf8", None} else json.loads(row["value"])
            assert told == value
    assert good > 1_000
    assert bad > 100


def test_silver_rows_are_bronze_rows(read: dict[str, list[Row]]) -> None:
    added = {"codec", "value", "problem"}
    bronze = {tuple(map(repr, sorted(plain(row).items(), key=lambda item: item[0]))) for row in read["bronze.events"]}
    for row in [*read["silver.events"], *read["silver.quarantine"]]:
        own = {key: value for key, value in plain(row).items() if key not in added}
        assert tuple(map(repr, sorted(own.items(), key=lambda item: item[0]))) in bronze
    assert all(row["problem"] for row in read["silver.quarantine"])


def test_recorded_and_recomputed_verdicts_agree(read: dict[str, list[Row]], world: World) -> None:
    decisions = read["silver.decisions"]
    assert len(decisions) == len(world.packets)
    for row in decisions:
        assert row["recomputed"] == said(row)
        assert row["agrees"] is (None if said(row) is None else True)
    assert {row["recomputed"] for row in decisions} == {None, 0, 1, 2, 3, 4, 5, 6}


def test_channels_with_columns_are_parsed(spark: SparkSession, world: World) -> None:
    found = tables(spark, world.tables).channel("json/state", "a INT, b STRING")
    assert {row["data"]["b"] for row in found.select("data").collect()} == {"ü", None}
    assert found.where("problem IS NOT NULL").count() == 0
    # Events of another type are there, with a sentence.
    other = tables(spark, world.tables).channel("json/state", "a STRING")
    assert other.where("data IS NOT NULL").count() == 0
    assert {row["problem"] for row in other.collect()} == {"a: expected STRING, got BIGINT"}


def test_rows_of_arrow_events_are_an_array(spark: SparkSession, world: World) -> None:
    found = tables(spark, world.tables).channel("arrow/rows", "n BIGINT", codec="arrow")
    assert dict(found.dtypes)["data"] == "array<struct<n:bigint>>"
    assert found.where("problem IS NULL").count() == found.where("data IS NOT NULL").count() == found.count() > 0


def test_a_channel_is_asked_for_with_its_fields(spark: SparkSession, world: World) -> None:
    for given, problem in (
        ({"codec": "utf8"}, "unknown codec 'utf8'"),
        ({"codec": "msgpack"}, "is required for codec"),
    ):
        with pytest.raises(ConfigError, match=problem):
            tables(spark, world.tables).channel("json/state", **given)


def test_sql_sees_views(spark: SparkSession, world: World) -> None:
    views = tables(spark, world.tables).create_views()
    assert "gold_channel_stats" in views
    (row,) = spark.sql("SELECT count(*) AS n FROM silver_events").collect()
    assert row["n"] > 0


def test_the_examples_answer(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.gold_tables import main

    monkeypatch.setattr("meshbus.spark.session", lambda: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    main(str(world.tables))
    shown = capsys.readouterr().out
    answers = {name: spark.sql(table.query).count() for name, table in CATALOG.gold.items()}
    assert [name for name, rows in answers.items() if not rows] == ["gold.moves", "gold.nodes", "gold.replication_lag"]
    assert all(table.question in shown for table in CATALOG.gold.values())


def test_other_readers_see_the_same(world: World) -> None:
    import duckdb

    def count(pattern: str) -> int:
        query = f"SELECT count(*) FROM read_parquet('{world.tables}/{pattern}', union_by_name = true)"
        found = duckdb.connect().execute(query).fetchone()
        assert found is not None
        return int(found[0])

    assert count("bronze/events/batch=*/*.parquet") == len(world.bronze())
    assert count("gold/gaps/*.parquet") > 0


def test_names_that_are_none_and_folders_that_are_none(spark: SparkSession, world: World) -> None:
    with pytest.raises(PipelineError, match=r"unknown table 'events'; choose from bronze\.events"):
        tables(spark, world.tables)["events"]
    with pytest.raises(PipelineError, match="meshbus pipeline run"):
        tables(spark, world.tables / "none")
