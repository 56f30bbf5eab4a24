"""Only what arrived from elsewhere has a latency, and only if the time of its publication is known."""

from pyspark.sql import SparkSession

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.receipts import named_percentiles, percentiles, received


def test_latency_is_that_of_received_events(spark: SparkSession) -> None:
    struct = CATALOG["bronze.events"].struct()
    blank = {field.name: None for field in struct}
    rows = [
        {**blank, "channel": "own", "ts_ns": 5_000, "recv_ts_ns": 5_000},
        {**blank, "channel": "timed", "session_id": 1, "ts_ns": 2_000, "recv_ts_ns": 5_000},
        {**blank, "channel": "untimed", "session_id": 1, "recv_ts_ns": 5_000},
    ]
    found = received(spark.createDataFrame(rows, struct))
    assert {row["channel"]: row["_latency"] for row in found.collect()} == {"timed": 3.0, "untimed": None}
    summed = found.groupBy("channel").agg(percentiles(found["_latency"])).withColumns(named_percentiles("latency"))
    assert {row["channel"]: row["latency_p99_us"] for row in summed.collect()} == {"timed": 3.0, "untimed": None}
