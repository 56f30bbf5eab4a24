"""What gold tables are computed from: read once for all tables of a refresh, and given to Spark as it is if it is small.

Nearly always a refresh is about one hour, whose counts are a few thousand rows in some dozens of small files. Read here,
added up and handed over in one partition, they spare Spark the listing of files and every exchange between tasks, which
would take most of the time. Larger inputs are scanned by Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from meshbus.spark.lake.counts import COUNTS
from meshbus.spark.lake.formats.parquetfile import row_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.run.smallfiles import SmallFiles

SMALL_BYTES: Final = 2 << 20
"""Size of files that are read here: up to some hundred thousand rows, which one task of Spark adds up in less than a second."""
_COUNTS = {count.name: count for count in COUNTS}
_FEW_ROWS = {*_COUNTS, "silver.runs", "bronze.census"}
"""Tables that may be small. Others have a row for each event, of which only a few are read."""


class GoldInputs:
    """The inputs of one refresh; safe for threads."""

    def __init__(self, spark: SparkSession, store: Store, files: SmallFiles) -> None:
        self._spark, self._store, self._files = spark, store, files
        self._frames: dict[tuple[str, tuple[str, ...] | None], DataFrame] = {}
        self._lock = threading.Lock()

    def frame(self, source: str, hours: Sequence[str] | None) -> DataFrame:
        """Return some hours of a table, or all; the caller keeps the files in place until the result is computed."""
        if source not in _FEW_ROWS:
            return self._store.read(self._spark, source, hours)
        key = source, None if hours is None else tuple(hours)
        with self._lock:
            if key not in self._frames:
                self._frames[key] = self._read(*key)
            return self._frames[key]

    def _read(self, source: str, hours: tuple[str, ...] | None) -> DataFrame:
        wanted = None if hours is None else set(hours)
        files = [
            file
            for file in self._store.table(source).files()
            if wanted is None or not wanted.isdisjoint(self._files.hours(source, file.path))
        ]
        if sum(file.bytes for file in files) > SMALL_BYTES:
            return self._store.read(self._spark, source, hours)
        rows = self._rows(source, [file.path for file in files])
        if hours is not None:
            import pyarrow as pa
            import pyarrow.compute as pc

            rows = rows.filter(pc.is_in(rows["hour"], pa.array(hours, pa.string())))
        # With a schema, because Spark Connect infers none from a table without rows. In one partition, because whatever is
        # grouped, sorted or joined is in it already.
        return self._spark.createDataFrame(rows, self._store.catalog.spec(source).struct()).coalesce(1)

    def _rows(self, source: str, paths: Sequence[str]) -> Any:
        """Return the rows of files as one Arrow table, with the types that Spark has."""
        import pyarrow as pa

        rows = pa.concat_tables([self._empty(source), *(self._files.rows(source, path) for path in paths)])
        if source in _COUNTS:
            rows = _COUNTS[source].merge(rows)
        types = [pa.binary() if pa.types.is_fixed_size_binary(field.type) else field.type for field in rows.schema]
        return rows.cast(pa.schema(list(zip(rows.schema.names, types, strict=True))))

    def _empty(self, source: str) -> Any:
        import pyarrow as pa

        spec = self._store.catalog.spec(source)
        schema = row_schema(spec)
        return (schema.append(pa.field("hour", pa.string())) if spec.hourly else schema).empty_table()
