"""Reading a few rows of a table that has one for each event.

Filters on times and channels leave out row groups and files by the statistics of Parquet. Content is compared with its
checksums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from meshbus.spark.lake.formats.parquetfile import row_schema

if TYPE_CHECKING:
    from meshbus.spark.lake.tableschema import TableSpec

MOST_RANGES = 64
"""Ranges in a filter: it is compared with the statistics of every row group."""


class Scan:
    """Some files of a table, to be read in part."""

    def __init__(self, spec: TableSpec, paths: Sequence[str]) -> None:
        self._spec, self._paths = spec, paths

    def rows(self, columns: Sequence[str], where: Any) -> Any:
        """Return columns of the rows that meet an expression of Arrow; a column that a file does not have is null.

        Raises OSError if a file cannot be read, or if its content does not match its checksums.
        """
        from pyarrow import dataset

        options = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        kind = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        files = dataset.dataset(list(self._paths), schema=row_schema(self._spec), format=kind)
        return files.to_table(columns=list(columns), filter=where)


def near_steps(column: Any, starts: Iterable[int], width: int) -> Any:
    """Match the numbers in [start, start + width) for each start; also those in between if there are too many ranges."""
    import pyarrow.compute as pc

    ranges = _joined(starts, width)
    if len(ranges) > MOST_RANGES:
        ranges = [(ranges[0][0], ranges[-1][1])]
    return reduce(or_, ((column >= first) & (column < end) for first, end in ranges), pc.scalar(False))


def _joined(starts: Iterable[int], width: int) -> list[tuple[int, int]]:
    """Return ranges in order, with those that touch made one."""
    found: list[tuple[int, int]] = []
    for start in sorted(starts):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], start + width)
        else:
            found.append((start, start + width))
    return found
