"""The start of a minute, of any time."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from meshbus.spark.lake.minutes import MINUTE_NS, start_of_minute

TIMES = [-60_000_001, -60_000_000, -1, 0, 59_999_999, 60_000_000, 1_794_787_238_901_150]


def test_a_time_is_rounded_down_to_its_minute_also_before_1970(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(time,) for time in TIMES], "us BIGINT")
    found = rows.select(
        start_of_minute(F.col("us")).alias("us"), start_of_minute(F.col("us") * 1000, MINUTE_NS)
    ).collect()
    assert [tuple(row) for row in found] == [
        (us // 60_000_000 * 60_000_000, us // 60_000_000 * MINUTE_NS) for us in TIMES
    ]
