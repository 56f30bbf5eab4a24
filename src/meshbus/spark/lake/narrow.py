"""Filters for reading a few rows of a large table: ranges and lists that Parquet's statistics can leave row groups out by.

They are written into the query, so their size is bounded: beyond it, a filter lets more rows through than asked for. The
caller must still compare exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

MOST_NAMES = 1_000
"""Names in a filter; a query with many more takes longer to plan than to run."""
MOST_RANGES = 64
"""Ranges in a filter, for the same reason."""


def near_names(column: Column, names: Sequence[str]) -> Column:
    """Match some names; all if there are too many, and nothing if there are none."""
    from pyspark.sql import functions as F

    if not names:
        return F.lit(False)  # known while the query is planned: nothing is read
    return column.isin(*names) if len(names) <= MOST_NAMES else F.lit(True)


def near_steps(column: Column, starts: Iterable[int], width: int) -> Column:
    """Match the numbers in [start, start + width) for each start; also those in between if there are too many ranges."""
    from pyspark.sql import functions as F

    ranges = _joined(starts, width)
    if len(ranges) > MOST_RANGES:
        ranges = [(ranges[0][0], ranges[-1][1])]
    return reduce(or_, ((column >= first) & (column < end) for first, end in ranges), F.lit(False))


def _joined(starts: Iterable[int], width: int) -> list[tuple[int, int]]:
    """Return ranges in order, with those that touch made one."""
    found: list[tuple[int, int]] = []
    for start in sorted(starts):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], start + width)
        else:
            found.append((start, start + width))
    return found
