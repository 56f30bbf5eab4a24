"""Percentiles of values that are stored with the number of rows that have them, as in silver.latency_counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshbus.spark.lake.grouping import Groups

PERCENTILES = (50, 95, 99)
ROUNDED = "computed from latencies that are rounded to three significant digits, so within half a percent"
"""For the description of columns whose values come from silver.latency_counts."""


def named_percentiles(what: str, groups: Groups, values: Any, rows: Any) -> dict[str, Any]:
    """Return columns such as `latency_p50_us` with the PERCENTILES of each group, each value counted `rows` times."""
    found = groups.percentiles(values, rows, [share / 100 for share in PERCENTILES])
    return {f"{what}_p{share}_us": column for share, column in zip(PERCENTILES, found, strict=True)}
