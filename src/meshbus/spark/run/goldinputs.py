"""What gold tables are computed from by Arrow: read once for all tables of a refresh if it is small.

Nearly always a refresh is about one hour, whose counts are a few thousand rows in some dozens of small files.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from meshbus.spark.lake.counts import COUNTS
from meshbus.spark.lake.formats.parquetfile import row_schema
from meshbus.spark.lake.narrow import Scan

if TYPE_CHECKING:
    from meshbus.spark.lake.goldtable import GoldTable
    from meshbus.spark.lake.tableformat import TableFile
    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.run.smallfiles import SmallFiles

HELD_BYTES: Final = 4 << 20
"""Size of files whose rows are kept for the other tables of a refresh; larger ones are read for each."""
_COUNTS = {count.name: count for count in COUNTS}


class GoldInputs:
    """The inputs of one refresh; safe for threads."""

    def __init__(self, store: Store, files: SmallFiles) -> None:
        self._store, self._files = store, files
        self._held: dict[tuple[str, tuple[str, ...] | None], Any] = {}
        self._lock = threading.Lock()

    def rows(self, table: GoldTable, source: str, hours: Sequence[str] | None) -> Any:
        """Return some hours of a source of a table, or all, as an Arrow table; a `Scan` if the table reads a few rows of it.

        The caller keeps the files in place until it has used them.
        """
        if source in table.filtered:
            return Scan(self._store.catalog.spec(source), self._store.paths(source))
        key = source, None if hours is None else tuple(hours)
        with self._lock:
            if key in self._held:
                return self._held[key]
            found = self._files_of(*key)
            rows = self._read(*key, [file.path for file in found])
            if sum(file.bytes for file in found) <= HELD_BYTES:
                self._held[key] = rows
            return rows

    def bytes(self, source: str, hours: Sequence[str] | None) -> int:
        """Return the size of the files that have rows of some hours."""
        return sum(file.bytes for file in self._files_of(source, hours))

    def _files_of(self, source: str, hours: Sequence[str] | None) -> list[TableFile]:
        wanted = None if hours is None else set(hours)
        return [
            file
            for file in self._store.table(source).files()
            if wanted is None or not wanted.isdisjoint(self._files.hours(source, file.path))
        ]

    def _read(self, source: str, hours: Sequence[str] | None, paths: Sequence[str]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        spec = self._store.catalog.spec(source)
        parts = [row_schema(spec, hour=spec.hourly).empty_table(), *(self._files.rows(source, path) for path in paths)]
        if hours is not None:
            wanted = pa.array(hours, pa.string())
            parts = [part.filter(pc.is_in(part["hour"], wanted)) for part in parts]
        rows = pa.concat_tables(parts)
        return _COUNTS[source].merge(rows) if source in _COUNTS else rows
