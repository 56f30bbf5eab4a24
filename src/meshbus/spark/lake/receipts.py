"""Receipts: rows of bronze.events about events that a node received, and the time that each took to arrive.

Silver keeps each event once, usually the row of its publisher, which was there first. So latency is measured in bronze,
at every node that logged the arrival. What a node logged of its own events has no latency, and neither has an event
whose time of publication is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PERCENTILES = (50, 95, 99)


def received(events: DataFrame) -> DataFrame:
    """Return the rows of received events, with their latency in microseconds as `_latency`; null if unknown."""
    from pyspark.sql import functions as F

    # Only what arrived in a session was received; a node writes its own events without one.
    rows = events.where(F.col("session_id").isNotNull())
    return rows.withColumn("_latency", (F.col("recv_ts_ns") - F.col("ts_ns")) / 1000)


def percentiles(value: Column, name: str = "_percentiles") -> Column:
    """Aggregate a column to its PERCENTILES, as an array; null without values."""
    from pyspark.sql import functions as F

    return F.percentile(value, [share / 100 for share in PERCENTILES]).alias(name)


def named_percentiles(what: str, name: str = "_percentiles") -> dict[str, Column]:
    """Return columns such as `latency_p50_us` for the elements of the array that `percentiles` made."""
    from pyspark.sql import functions as F

    return {f"{what}_p{share}_us": F.get(name, F.lit(place)) for place, share in enumerate(PERCENTILES)}
