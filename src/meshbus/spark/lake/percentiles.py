"""Percentiles of values that are stored with the number of rows that have them, as in silver.latency_counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

PERCENTILES = (50, 95, 99)
ROUNDED = "computed from latencies that are rounded to three significant digits, so within half a percent"
"""For the description of columns whose values come from silver.latency_counts."""


def percentiles(value: Column, rows: Column, name: str = "_percentiles") -> Column:
    """Aggregate a column, each value counted `rows` times, to its PERCENTILES, as an array; null without values."""
    from pyspark.sql import functions as F

    return F.percentile(value, [share / 100 for share in PERCENTILES], rows).alias(name)


def named_percentiles(what: str, name: str = "_percentiles") -> dict[str, Column]:
    """Return columns such as `latency_p50_us` for the elements of the array that `percentiles` made."""
    from pyspark.sql import functions as F

    return {f"{what}_p{share}_us": F.get(name, F.lit(place)) for place, share in enumerate(PERCENTILES)}
