"""What a format of tables has to do: the files of one table, and its commits.

A format is a class that is constructed with the directory of a table and its `TableSpec`. The rows of a batch are Parquet
files that somebody else wrote or hard-linked into a staging directory; a commit makes them part of the table in one step.
Data files are never modified: they may be links to segments of a log. Times in them are microseconds in UTC; Spark writes
those only with `spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS`.

    table.commit("events", 12, 12, staged)      batch 12 of the query `events`; a repeat does nothing
    [file.path for file in table.files()]       what a reader reads

There is one writer at a time (the runner holds the lock of the tables), and any number of readers. The formats are in
spark/lake/formats/; spark/lake/tablestore.py chooses one and reads the files with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec


class TableFile(msgspec.Struct, frozen=True):
    """One Parquet file of a table."""

    path: str
    """Absolute path."""
    query: str
    """The query whose batches the rows are from; an empty string in a gold table."""
    first: int
    """The first of these batches; a compacted file has rows of several. 0 in a gold table."""
    last: int
    bytes: int


class TableFormat(Protocol):
    """The files of one table, and its commits."""

    def files(self) -> list[TableFile]:
        """Return the present files, ordered by query and batch; those of a gold table by hour."""
        ...

    def last(self, query: str) -> int:
        """Return the highest committed batch of a query, or -1."""
        ...

    def stage(self) -> Path:
        """Create an empty directory on the file system of the table, for the files of a commit."""
        ...

    def commit(self, query: str, first: int, last: int, staged: Path) -> bool:
        """Add all Parquet files below `staged` as batches `first` to `last` of a query, and return whether that was needed.

        Does nothing if the query has committed `last` already. A batch without files is committed too. `staged` is
        removed in any case.
        """
        ...

    def compact(self, query: str, *, fewest: int, merge: Callable[[Any], Any] | None = None, keep: int = 2) -> int:
        """Combine the small files of `fewest` consecutive parts of a query, and return how many parts were combined.

        The newest `keep` parts stay as they are, and so do large files. `merge` takes the rows of some files as an Arrow
        table, and returns fewer that mean the same.
        """
        ...

    def replace(self, start: datetime, end: datetime, staged: Path) -> None:
        """Replace all rows whose time is in [start, end) by the Parquet files below `staged`, which is removed."""
        ...

    def older(self, before: datetime) -> dict[str, datetime]:
        """Return the paths of the files whose rows are all older, each with the time of its last row."""
        ...

    def expire(self, before: datetime, only: Container[str] | None = None) -> int:
        """Remove the files whose rows are all older, or some of these, and return how many there were."""
        ...

    def sweep(self) -> None:
        """Remove leftovers of crashes, and files that no reader needs."""
        ...

    def put_hour(self, hour: str | None, rows: Any, sources: str) -> None:
        """Replace an hour of a gold table by an Arrow table; the hour is None if the table is not hourly.

        `sources` is a fingerprint of what the rows were computed from.
        """
        ...

    def sources(self, hour: str | None) -> str:
        """Return the fingerprint that `put_hour` stored, or an empty string, which means: compute the hour again."""
        ...

    def hours(self) -> list[str]:
        """Return the hours that a gold table has, in order."""
        ...
