"""Replicas are compared with the first replica that has an event."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.gold.replication_lag import TABLE
from tests.spark.counted import counted, unreadable

START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)


def test_no_row_is_read_if_no_log_has_replicas(spark: SparkSession) -> None:
    struct = CATALOG["bronze.events"].struct()
    row = {field.name: None for field in struct} | {
        "channel": "a",
        "log_id": b"A" * 16,
        "recorder": 1,
        "recv_ts": START,
    }
    bronze = spark.createDataFrame([row], struct)
    assert TABLE.rows([*counted(TABLE.sources[:1], bronze), unreadable(bronze)]).collect() == []
    with pytest.raises(SparkRuntimeException, match="read"):
        unreadable(bronze).collect()


def test_replicas_are_compared_with_the_first(spark: SparkSession) -> None:
    struct = CATALOG["bronze.events"].struct()
    blank = {field.name: None for field in struct}
    rows = []
    for recorder, log, delay_us, count in ((1, b"A" * 16, 0, 30), (2, b"A" * 16, 500, 20), (1, b"B" * 16, 0, 5)):
        for seq in range(count):
            at = START + timedelta(seconds=4 * seq, microseconds=delay_us)
            rows.append(
                {**blank, "channel": "a", "log_id": log, "seq": seq, "recorder": recorder, "recv_ts": at,
                 "recv_ts_ns": int(at.timestamp()) * 10**9 + delay_us * 1000, "hour": "2026-11-15T23"}
            )  # fmt: skip
    bronze = spark.createDataFrame(rows, struct)
    found = TABLE.rows([*counted(TABLE.sources[:1], bronze), bronze]).collect()
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
