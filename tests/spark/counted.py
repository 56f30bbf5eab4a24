"""Counts of given rows, for tests of what is computed from counts."""

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.counts import COUNTS

BY_NAME = {counts.name: counts for counts in COUNTS}


def counted(names: Iterable[str], rows: DataFrame) -> list[DataFrame]:
    """Count rows for each of some count tables."""
    collected = rows.toArrow()
    return [frame_of(rows.sparkSession, name, BY_NAME[name].compute(collected)) for name in names]


def frame_of(spark: SparkSession, name: str, counts: pa.Table) -> DataFrame:
    """Counts as Spark reads them from a table."""
    return spark.createDataFrame(counts.to_pylist(), CATALOG[name].struct())


def unreadable(rows: DataFrame) -> DataFrame:
    """The same table, but whoever reads it fails."""
    return rows.withColumns({name: F.raise_error(F.lit("read")).cast(kind) for name, kind in rows.dtypes})
