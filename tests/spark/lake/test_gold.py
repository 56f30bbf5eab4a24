"""Gold that the shared world does not have: replicas that lag behind. The rest is in test_tables.py."""

from datetime import UTC, datetime, timedelta
from itertools import product

from pyspark.sql import SparkSession

from meshbus.spark.lake.gold import PrefixSubscription, channel_stats, gaps, match_channels, replication_lag
from meshbus.spark.lake.stretches import COLUMNS, runs_of
from meshbus.spark.lake.tableschema import TABLES

START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)


def test_replicas_are_compared_with_the_first(spark: SparkSession) -> None:
    blank = {field.name: None for field in TABLES["bronze.events"].struct()}
    rows = []
    for recorder, log, delay_us, count in ((1, b"A" * 16, 0, 30), (2, b"A" * 16, 500, 20), (1, b"B" * 16, 0, 5)):
        for seq in range(count):
            at = START + timedelta(seconds=4 * seq, microseconds=delay_us)
            rows.append(
                {**blank, "channel": "a", "log_id": log, "seq": seq, "recorder": recorder, "recv_ts": at,
                 "recv_ts_ns": int(at.timestamp()) * 10**9 + delay_us * 1000, "hour": "2026-11-15T23"}
            )  # fmt: skip
    found = replication_lag(spark.createDataFrame(rows, TABLES["bronze.events"].struct())).collect()
    assert sorted(
        (
            row["window_start"].minute,
            row["recorder"],
            row["events"],
            row["last_seq"],
            row["behind"],
            row["delay_p50_us"],
        )
        for row in found
    ) == [(0, 1, 15, 14, 0, 0.0), (0, 2, 15, 14, 0, 500.0), (1, 1, 15, 29, 0, 0.0), (1, 2, 5, 19, 10, 500.0)]


def test_stretches_of_any_order_and_overlap_are_put_together(spark: SparkSession) -> None:
    def run_of(first: int, last: int, events: int) -> tuple[object, ...]:
        return ("publisher", "a", b"L" * 16, 5, first, last, events, 1)

    runs = [run_of(20, 29, 10), run_of(0, 9, 12), run_of(5, 12, 8), run_of(13, 13, 1), run_of(40, 40, 1)]
    (row,) = gaps(spark.createDataFrame(runs, TABLES["silver.runs"].struct())).collect()
    assert (row["first"], row["last"], row["events"]) == (0, 40, 25)
    assert (row["missing"], row["holes"], row["first_missing"], row["last_missing"]) == (16, 2, 14, 39)
    assert (row["duplicates"], row["reordered"]) == (7, 5)


def test_numbers_at_their_limits_fail_no_query(spark: SparkSession) -> None:
    blank = {field.name: None for field in TABLES["bronze.events"].struct()}
    extremes = [-(2**63), -1, 0, 2**63 - 1]
    rows = [
        {**blank, "channel": "a", "log_id": b"L" * 16, "seq": place, "origin": number, "pub_seq": other, "ts_ns": number,
         "recv_ts_ns": other, "recv_ts": START, "payload": b"", "hour": "2026-11-15T23"}
        for place, (number, other) in enumerate(product([-(2**63), 5], extremes))
    ]  # fmt: skip
    bronze = spark.createDataFrame(rows, TABLES["bronze.events"].struct())
    runs = runs_of(bronze.select(*COLUMNS).toArrow(), [])
    assert gaps(spark.createDataFrame(runs, TABLES["silver.runs"].struct())).count() == 3
    assert channel_stats(bronze).collect()[0]["events"] == 8


def test_channels_are_matched_by_prefix_each_peer_once() -> None:
    wanted = [PrefixSubscription(1, ""), PrefixSubscription(1, "a"), PrefixSubscription(2, "a/b")]
    assert match_channels(["a/b/c", "a", "z"], wanted) == {"a/b/c": 2, "a": 1, "z": 1}
