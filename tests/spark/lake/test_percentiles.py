"""Values count as often as there are rows that have them."""

from pyspark.sql import SparkSession

from meshbus.spark.lake.percentiles import named_percentiles, percentiles


def test_values_count_as_often_as_their_rows(spark: SparkSession) -> None:
    rows = [("a", 1.0, 98), ("a", 5.0, 1), ("a", 9.0, 2), ("b", None, 4)]
    frame = spark.createDataFrame(rows, "channel STRING, took DOUBLE, rows BIGINT")
    found = frame.groupBy("channel").agg(percentiles(frame["took"], frame["rows"]))
    named = {row["channel"]: row.asDict() for row in found.withColumns(named_percentiles("latency")).collect()}
    assert [named["a"][f"latency_p{share}_us"] for share in (50, 95, 99)] == [1.0, 1.0, 9.0]
    assert [named["b"][f"latency_p{share}_us"] for share in (50, 95, 99)] == [None] * 3
