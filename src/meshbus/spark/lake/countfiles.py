"""Count the rows of Parquet files, for all count tables of a file in one reading, with little memory.

A file is divided into shares of some row groups. A share is counted by one thread, batch by batch, wherever it is sent:
by threads of this process, or by Spark's executors, which open the files themselves, so that no row passes Java. What is
counted is in spark/lake/counts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from meshbus.spark.lake.counts import COUNTS, CountTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHARE_ROWS = 2_000_000
"""Rows of a share: about half a second of work."""
_BATCH_ROWS, _BATCH_BYTES = 1 << 17, 32 << 20
"""What a thread holds in memory of a file."""
_MERGE_ROWS = 1 << 18
"""Rows of counts that are held before they are added up."""


class Share(NamedTuple):
    """Some row groups of a file, and the names of the count tables that they are counted for."""

    path: str
    names: tuple[str, ...]
    first: int
    end: int


def shares_of(path: str, names: Iterable[str]) -> list[Share]:
    """Divide a file."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    found, first, rows = [], 0, 0
    for group in range(footer.num_row_groups):
        rows += footer.row_group(group).num_rows
        if rows >= _SHARE_ROWS or group == footer.num_row_groups - 1:
            found.append(Share(path, tuple(names), first, group + 1))
            first, rows = group + 1, 0
    return found


def count_share(share: Share) -> dict[str, Any]:
    """Return the counts of a share as Arrow tables, by the name of the count table.

    Raises OSError if the file cannot be read, or if its content does not match its checksums.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sums = {count.name: Sum(count) for count in COUNTS if count.name in share.names}
    read = {name for one in sums.values() for name in one.count.reads}
    with pq.ParquetFile(share.path, page_checksum_verification=True) as file:
        columns = [name for name in file.schema_arrow.names if name in read]
        groups = range(share.first, share.end)
        size = _batch_rows(file.metadata, groups)
        for batch in file.iter_batches(size, row_groups=groups, columns=columns, use_threads=False):
            rows = pa.Table.from_batches([batch])
            for one in sums.values():
                one.add(one.count.compute(rows))
    return {name: one.total() for name, one in sums.items()}


class Sum:
    """Adds up counts that come in parts."""

    def __init__(self, count: CountTable) -> None:
        self.count = count
        self._parts: list[Any] = []
        self._rows = 0
        self._limit = _MERGE_ROWS

    def add(self, counts: Any) -> None:
        """Add some counts."""
        self._parts.append(counts)
        self._rows += len(counts)
        if self._rows >= self._limit:
            self._parts = [self.total()]
            self._rows = len(self._parts[0])
            self._limit = _MERGE_ROWS + 2 * self._rows  # where few keys are equal, adding up often would not help

    def total(self) -> Any:
        """Return the counts of all that was added, one row for each combination of keys."""
        import pyarrow as pa

        if len(self._parts) == 1:
            return self._parts[0]
        return self.count.merge(pa.concat_tables([self.count.schema.empty_table(), *self._parts]))


def count_here(shares: Sequence[Share], threads: int) -> list[dict[str, Any]]:
    """Return the counts of each share, counted by threads of this process."""
    if len(shares) <= 1:
        return [count_share(share) for share in shares]
    with ThreadPoolExecutor(threads, "meshbus-count") as pool:  # Arrow does not hold the lock of the interpreter
        return list(pool.map(count_share, shares))


def count_there(spark: SparkSession, shares: Sequence[Share]) -> list[dict[str, Any]]:
    """Return the counts of each share, counted by the executors of Spark, which must find the files under their paths."""
    rows = [(place, share.path, list(share.names), share.first, share.end) for place, share in enumerate(shares)]
    given = spark.createDataFrame(rows, "place INT, path STRING, names ARRAY<STRING>, first INT, end INT")
    made = given.repartition(len(shares), "place").mapInArrow(_count_batches, "place INT, name STRING, counts BINARY")
    found: list[dict[str, Any]] = [{} for _ in shares]
    for row in made.toArrow().to_pylist():
        found[row["place"]][row["name"]] = _unpacked(row["counts"])
    return found


def _count_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Count the shares in batches of `count_there`, in a worker of Spark."""
    import pyarrow as pa

    schema = pa.schema([("place", pa.int32()), ("name", pa.string()), ("counts", pa.binary())])
    for batch in batches:
        for row in batch.to_pylist():
            share = Share(row["path"], tuple(row["names"]), row["first"], row["end"])
            made = [
                {"place": row["place"], "name": name, "counts": _packed(counts)}
                for name, counts in count_share(share).items()
            ]
            yield pa.RecordBatch.from_pylist(made, schema)


def _packed(counts: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, counts.schema) as writer:
        writer.write_table(counts)
    return bytes(sink.getvalue())


def _unpacked(packed: bytes) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(packed).read_all()


def _batch_rows(footer: Any, groups: Iterable[int]) -> int:
    """Return how many rows of some row groups are read at once."""
    held = [footer.row_group(group) for group in groups]
    rows, size = (sum(int(getattr(group, name)) for group in held) for name in ("num_rows", "total_byte_size"))
    return max(1, min(_BATCH_ROWS, rows * _BATCH_BYTES // max(size, 1)))
