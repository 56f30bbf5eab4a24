"""Divide decoded rows into events (silver.events) and what could not be decoded (silver.quarantine).

spark/lake/decode.py decodes; spark/lake/duplicates.py tells before which events are new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.spark.lake.tableschema import QUARANTINE, SILVER_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def accepted(decoded: DataFrame) -> DataFrame:
    """Return the decoded rows that belong to silver.events."""
    from pyspark.sql import functions as F

    return decoded.where(F.col("problem").isNull()).select(*(column.name for column in SILVER_EVENTS))


def refused(decoded: DataFrame) -> DataFrame:
    """Return the decoded rows that belong to silver.quarantine."""
    from pyspark.sql import functions as F

    return decoded.where(F.col("problem").isNotNull()).select(*(column.name for column in QUARANTINE))
