"""Latency is null where it is unknown, and the delay is without the difference of the clocks."""

from typing import Any

from pyspark.sql import SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.gold.latency import TABLE
from tests.spark import oracle
from tests.spark.oracle import as_set

HOUR = "2026-11-15T23"


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]]) -> None:
    expected = oracle.latency(read["bronze.events"])
    assert as_set(read["gold.latency"]) == as_set(expected)
    assert expected


def frame(spark: SparkSession, table: str, rows: list[dict[str, Any]]) -> Any:
    struct = CATALOG[table].struct()
    blank = {field.name: None for field in struct} | {"hour": HOUR, "recorder": 9, "origin": 5}
    return spark.createDataFrame([{**blank, **row} for row in rows], struct)


def test_the_delay_takes_the_offset_that_was_known_at_the_time(spark: SparkSession) -> None:
    # The publisher's clock is 60 µs ahead, then 80 µs, and each event is on the way for 10 µs.
    known = [(200_000, 60_000, 1_000), (400_000, 80_000, 2_000)]
    clocks = [
        {"kind": "node", "ts_ns": at, "clock_offset_ns": offset, "clock_error_ns": error} for at, offset, error in known
    ]
    others = [
        {"kind": "node", "origin": 6, "ts_ns": 300_000, "clock_offset_ns": 1, "clock_error_ns": 1},
        {"kind": "node", "recorder": 8, "ts_ns": 300_000, "clock_offset_ns": 1, "clock_error_ns": 1},
        {"kind": "node", "ts_ns": 310_000},
    ]
    events = [
        {"channel": "a", "session_id": 1, "recv_ts_ns": at, "ts_ns": at + ahead - 10_000}
        for at, ahead in ((100_000, 60_000), (300_000, 60_000), (500_000, 80_000))
    ]
    (row,) = TABLE.rows(
        [frame(spark, "bronze.events", events), frame(spark, "bronze.census", clocks + others)]
    ).collect()
    assert (row["events"], row["timed"]) == (3, 3)
    assert (row["latency_p50_us"], row["latency_p99_us"]) == (-50.0, -50.0)
    assert {row[f"delay_p{share}_us"] for share in (50, 95, 99)} == {10.0}
    assert (row["clock_offset_us"], row["clock_error_us"]) == (60.0, 2.0)


def test_without_times_or_clocks_nothing_is_claimed(spark: SparkSession) -> None:
    events = [
        {"channel": "plain", "session_id": 1, "recv_ts_ns": 1_000},
        {"channel": "timed", "session_id": 1, "recv_ts_ns": 1_000, "ts_ns": 1_000},
        {"channel": "own", "recv_ts_ns": 1_000, "ts_ns": 1_000},
    ]
    found = TABLE.rows([frame(spark, "bronze.events", events), frame(spark, "bronze.census", [])]).collect()
    rows = {row["channel"]: row.asDict() for row in found}
    assert rows.keys() == {"plain", "timed"}
    assert {value for name, value in rows["plain"].items() if name.endswith("_us")} == {None}
    assert (rows["timed"]["latency_p50_us"], rows["timed"]["delay_p50_us"]) == (0.0, None)
