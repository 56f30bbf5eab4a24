"""What no format does by itself: rows that Spark reduces. What all formats promise is in test_contract.py."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tests.spark.lake.formats.made import FORMATS, RUNS, open_table, read


def sums(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    keys = ("kind", "channel", "log_id", "origin", "session_id")
    return rows.groupBy(*keys).agg(
        *(function(name).alias(name) for function, name in
          ((F.min, "first"), (F.max, "last"), (F.sum, "events"), (F.sum, "reordered")))
    )  # fmt: skip


def test_rows_that_can_be_reduced_are_reduced_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    for kind in FORMATS:
        table = open_table(RUNS, tmp_path / kind, kind)
        for batch in range(3):
            rows = {"kind": ["log"], "channel": ["a"], "log_id": [b"x" * 16], "origin": [None], "session_id": [None]}
            numbered = {"first": [batch * 10], "last": [batch * 10 + 9], "events": [10], "reordered": [batch]}
            staged = table.stage()
            pq.write_table(pa.table({**rows, **numbered}), staged / "part.parquet")
            table.commit("events", batch, batch, staged)
        assert table.compact(spark, "events", fewest=3, merge=sums, keep=0) == 3
        (row,) = read(table)
        assert (row["first"], row["last"], row["events"], row["reordered"]) == (0, 29, 30, 3)
        assert row["log_id"] == b"x" * 16
