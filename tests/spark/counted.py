"""Counts of given rows, for tests of what is computed from counts."""

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from meshbus.spark.lake.counts import COUNTS

BY_NAME = {counts.name: counts for counts in COUNTS}


def counted(names: Iterable[str], rows: DataFrame) -> list[DataFrame]:
    """Count rows for each of some count tables."""
    return [BY_NAME[name].compute(rows) for name in names]


def unreadable(rows: DataFrame) -> DataFrame:
    """The same table, but whoever reads it fails."""
    return rows.withColumns({name: F.raise_error(F.lit("read")).cast(kind) for name, kind in rows.dtypes})
