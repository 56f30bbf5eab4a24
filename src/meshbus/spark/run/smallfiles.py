"""Files of small tables: which hours their rows are in, and the rows themselves.

A file never changes, and opening each takes a millisecond, so that is remembered as long as the file is part of its table.
Compaction bounds the number of files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshbus.spark.lake.formats.parquetfile import fit, row_schema
from meshbus.spark.lake.minutes import HOUR_FORMAT

if TYPE_CHECKING:
    from meshbus.spark.lake.tablestore import Store

HELD_BYTES: Final = 32 << 10
"""Size of files whose rows are remembered: those of a batch, not those that compaction has made of many."""


class _Held(NamedTuple):
    hours: tuple[str, ...]
    rows: Any
    """An Arrow table, or None if they are read whenever they are needed."""


class SmallFiles:
    """What is known about files, by table; safe for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[str, dict[str, _Held]] = {}

    def __len__(self) -> int:
        """Return how many files are remembered."""
        return sum(map(len, self._held.values()))

    def hours(self, table: str, path: str) -> tuple[str, ...]:
        """Return the hours that a file of a table has rows of, in order."""
        return self._known(table, path).hours

    def rows(self, table: str, path: str) -> Any:
        """Return the rows of a file as an Arrow table, with the columns of the table and, if it has hours, the hour."""
        known = self._known(table, path)
        return self._read(table, path) if known.rows is None else known.rows

    def prune(self, table: str, paths: Iterable[str]) -> None:
        """Remove what is remembered of files that are no longer part of a table; `paths` are those that are."""
        held = self._held.get(table, {})
        self._held[table] = {path: held[path] for path in paths if path in held}

    def _known(self, table: str, path: str) -> _Held:
        held = self._held.setdefault(table, {})
        if path not in held:
            rows = self._read(table, path)
            hours = sorted(set(rows["hour"].unique().to_pylist())) if "hour" in rows.column_names else []
            held[path] = _Held(tuple(hours), rows if Path(path).stat().st_size <= HELD_BYTES else None)
        return held[path]

    def _read(self, table: str, path: str) -> Any:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        spec = self._store.catalog.spec(table)
        with pq.ParquetFile(path) as file:
            rows = fit(file.read(), row_schema(spec))
        if spec.hourly and "hour" not in rows.column_names:
            rows = rows.append_column("hour", pc.strftime(rows[str(spec.time)], HOUR_FORMAT))
        return rows
