"""Count the batches that are not counted: each file once, for all count tables that its rows belong in.

A sealed file is in bronze and in silver under two names, and is read once for both. How rows are counted is in
spark/lake/countfiles.py; they are counted in this process, or by the executors if there is much to count and Spark runs on
a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from meshbus.spark.lake.countfiles import Share, Sum, count_here, count_there, shares_of
from meshbus.spark.lake.counts import COUNTS, CountTable
from meshbus.spark.lake.formats.parquetfile import time_bounds
from meshbus.spark.run.rowsfile import RowsFile

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

    from meshbus.spark.lake.tableformat import TableFile
    from meshbus.spark.lake.tablestore import Store

_STEP_BYTES = 256 << 20
"""Bytes of files that are counted for one commit, per query. Bounds the counts that are held in memory: in the worst case
each row has a latency of its own."""
_FAR_BYTES = 64 << 20
"""Bytes from which executors count: less takes this process less time than a query takes."""

_Identity: TypeAlias = tuple[int, int]
"""Device and inode: hard links of one file have the same."""


class _Task(NamedTuple):
    """Batches of one query that one count table does not have."""

    table: CountTable
    query: str
    first: int
    last: int
    paths: tuple[str, ...]
    more: bool
    """Whether batches remain for the next time."""


def count_new(spark: SparkSession, store: Store) -> int:
    """Count all batches that are not counted, some at a time, commit the counts, and return how many files were read."""
    files, more = 0, True
    while more:
        tasks = _next_tasks(store)
        found = count_files(spark, ((path, task.table) for task in tasks for path in task.paths))
        for task in tasks:
            target = store.table(task.table.name)
            staged = target.stage()
            write_counts(_total(task.table, task.paths, found), staged)
            target.commit(task.query, task.first, task.last, staged)
        files += len(found)
        more = any(task.more for task in tasks)
    return files


def count_span(spark: SparkSession, store: Store, count: CountTable, start: datetime, end: datetime, to: Path) -> None:
    """Write the counts of all rows of a source that are in some whole hours into a directory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    time = str(store.catalog.spec(count.source).time)
    bounds = {path: time_bounds(Path(path), time) for path in store.paths(count.source)}
    near = [path for path, both in bounds.items() if both is not None and both[0] < end and both[1] >= start]
    counts = _total(count, near, count_files(spark, ((path, count) for path in near)))
    minute = counts["window_start"]
    low, high = (pa.scalar(bound, minute.type) for bound in (start, end))
    write_counts(counts.filter(pc.and_(pc.greater_equal(minute, low), pc.less(minute, high))), to)


def write_counts(counts: Any, folder: Path) -> None:
    """Write counts, if there are any, to a file in a directory."""
    with RowsFile(folder / "counts.parquet") as file:
        file.write(counts)


def count_files(spark: SparkSession, wanted: Iterable[tuple[str, CountTable]]) -> dict[_Identity, list[dict[str, Any]]]:
    """Count files, each for some count tables, and return the counts of the shares of each file."""
    names: dict[_Identity, set[str]] = {}
    paths: dict[_Identity, str] = {}
    for path, count in wanted:
        which = _identity(path)
        paths[which] = path
        names.setdefault(which, set()).add(count.name)
    shares = {which: shares_of(path, sorted(names[which])) for which, path in paths.items()}
    flat = [share for some in shares.values() for share in some]
    made = iter(_counted(spark, flat, sum(Path(path).stat().st_size for path in paths.values())))
    return {which: [next(made) for _ in some] for which, some in shares.items()}


def _counted(spark: SparkSession, shares: Sequence[Share], size: int) -> list[dict[str, Any]]:
    if size >= _FAR_BYTES and _on_cluster(spark):
        return count_there(spark, shares)
    return count_here(shares, os.cpu_count() or 1)


def _on_cluster(spark: SparkSession) -> bool:
    master = spark.conf.get("spark.master", "")
    return not (master or "").startswith("local") or str(master).startswith("local-cluster")


def _total(count: CountTable, paths: Iterable[str], found: dict[_Identity, list[dict[str, Any]]]) -> Any:
    total = Sum(count)
    for path in paths:
        for part in found[_identity(path)]:
            total.add(part[count.name])
    return total.total()


def _next_tasks(store: Store) -> list[_Task]:
    """Return what is to be counted next: for each count table and query, the batches of some files."""
    files = {source: store.table(source).files() for source in sorted({count.source for count in COUNTS})}
    return [
        task
        for count in COUNTS
        for query in sorted({file.query for file in files[count.source]})
        if (task := _task(store, count, query, [file for file in files[count.source] if file.query == query]))
    ]


def _task(store: Store, count: CountTable, query: str, files: Sequence[TableFile]) -> _Task | None:
    done, last = store.table(count.name).last(query), store.table(count.source).last(query)
    if last <= done:
        return None
    taken: list[TableFile] = []
    end = last
    for _, batch in groupby((file for file in files if file.first > done), key=lambda file: file.last):
        held = list(batch)
        if taken and sum(file.bytes for file in (*taken, *held)) > _STEP_BYTES:
            end = taken[-1].last
            break
        taken += held
    return _Task(count, query, done + 1, end, tuple(file.path for file in taken), end < last)


def _identity(path: str) -> _Identity:
    found = Path(path).stat()
    return found.st_dev, found.st_ino
