"""The format `iceberg`: an Apache Iceberg table, committed with PyIceberg and without a jar or a catalog service.

    <root>/silver/events/metadata/…                                  the commits (spark/lake/formats/icebergfolder.py)
    <root>/silver/events/batch=events-000000000012/part-….parquet    the rows of a batch
    <root>/gold/channel_stats/hour=2026-11-15T23-….parquet           one hour

Files are put into place first, and one commit adds them and sets the property `meshbus.batch.<query>` to the number of the
batch, so a batch that is there is known. Every change of parts is one commit, so no reader sees rows twice or misses some,
also if the writer is killed.

Readers of Iceberg are strict about types: log ids are `fixed[16]` and some text is dictionary-encoded, as in segments of
logs. Files with other types, such as those of Spark, are written once more when they are committed. Tables are not partitioned: a file may span hours,
and readers skip files by their bounds. Files that are no longer part of the table stay for a day, for readers that found
them before. Requires meshbus[iceberg].
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbus.log.schema import CENSUS, EVENTS, PACKETS, ColumnType
from meshbus.spark.lake.formats.icebergcommit import (
    BATCH,
    KEEP_METADATA_S,
    commit_files,
    data_file,
    files_of,
    iceberg_catalogs,
    needed_metadata,
    writable_table,
)
from meshbus.spark.lake.formats.parquetfile import conform
from meshbus.spark.lake.formats.parts import Part, hour_name, hours_of, parts_of
from meshbus.spark.lake.formats.parttable import KEEP_HOURS, PartTable, Swap
from meshbus.spark.lake.tableschema import TableSpec

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_LINKING = {"bronze.events": EVENTS, "bronze.packets": PACKETS, "bronze.census": CENSUS, "silver.events": EVENTS}
"""Tables that take files of logs as they are, and the columns of those."""


class IcebergTable(PartTable):
    """A table in the format `iceberg`."""

    format = "iceberg"
    unfit = "#?"

    def __init__(self, folder: Path, spec: TableSpec) -> None:
        """Raise PipelineError if PyIceberg is not installed."""
        super().__init__(folder, spec)
        self._catalog = iceberg_catalogs().FolderCatalog(self.folder)
        self._table: Table | None = None
        self._held: tuple[int | None, dict[Path, DataFile]] = (None, {})
        """Cache of the present files, with the snapshot."""

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def _present(self) -> Table | None:
        """Return the table as it is now; None if it does not exist."""
        if not self._catalog.exists():
            return None
        self._table = self._catalog.current(self._table)
        return self._table

    def _files(self) -> dict[Path, DataFile]:
        table = self._present()
        snapshot = None if table is None else table.current_snapshot()
        if table is not None and snapshot is not None and snapshot.snapshot_id != self._held[0]:
            found = files_of(table, snapshot)
            self._held = snapshot.snapshot_id, {_path_of(file.file_path): file for file in found}
        return self._held[1]

    def parts(self) -> list[Part]:
        """Return the parts of the newest snapshot."""
        return parts_of(self.folder, self._files())

    def gold_files(self) -> dict[str, Path]:
        """Return the files of the newest snapshot by hour."""
        return hours_of(self._files())

    def last(self, query: str) -> int:
        """Return the property of a query."""
        table = self._present()
        return -1 if table is None else int(table.properties.get(f"{BATCH}{query}", -1))

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    def _add(self, part: Part, staged: Path) -> None:
        table, files = self._writable(), self._conforming(part, staged)
        self._commit(table, added=files, properties={f"{BATCH}{part.query}": str(part.last)})

    def _swap(self, swaps: Sequence[Swap]) -> None:
        table = self._writable()
        old = [file for swap in swaps for part in swap.old for file in part.files]
        new = [file for swap in swaps for file in self._conforming(swap.new, swap.staged)]
        # The day that replaced files stay begins now.
        for name in {file.relative_to(self.folder).parts[0] for file in old}:
            os.utime(self.folder / name)
        self._commit(table, removed=old, added=new)

    def _conforming(self, part: Part, staged: Path) -> list[Path]:
        for file in list(staged.rglob("*.parquet")):
            conform(file, self._file_schema())
        return self._place(part, staged)

    def _file_schema(self) -> Any:
        """Return the schema that all files have: PyIceberg cannot read dictionaries and plain text from one column."""
        import pyarrow as pa

        schema = super()._file_schema()
        if self.spec.name in _LINKING:
            for field in _LINKING[self.spec.name]:
                at = schema.get_field_index(field.name)
                if field.type is ColumnType.STRING:
                    text = schema.field(at).with_type(pa.dictionary(pa.int32(), pa.string()))
                    schema = schema.set(at, text)
        return schema

    def _put_hour(self, hour: str, file: Path) -> None:
        table, place = self._writable(), file.rename(self.folder / hour_name(hour))
        self._exchange(table, [path for path in [self.gold_files().get(hour)] if path is not None], [place])

    def _drop_hours(self, hours: Sequence[str]) -> None:
        files = self.gold_files()
        self._exchange(self._writable(), [files[hour] for hour in hours], [])

    def _exchange(self, table: Table, old: list[Path], new: list[Path]) -> None:
        for file in old:
            os.utime(file)
        self._commit(table, removed=old, added=new)

    def _commit(
        self,
        table: Table,
        *,
        removed: Sequence[Path] = (),
        added: Sequence[Path] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        held = dict(self._files())
        gone = [held.pop(path) for path in removed]
        made = [held.setdefault(path, data_file(f"file://{path}", path, table.schema())) for path in added]
        commit_files(table, gone, made, properties or {})
        snapshot = table.current_snapshot()
        self._held = None if snapshot is None else snapshot.snapshot_id, held

    def _writable(self) -> Table:
        """Return the table, which exists and has all columns; to be called before files are placed."""
        self._table = writable_table(self._catalog, self._present(), self.spec)
        return self._table

    # ── files that nothing refers to ────────────────────────────────────────────────────────

    def sweep(self) -> None:
        """Remove leftovers of crashes, and files that left the table a day ago if no reader is active."""
        super().sweep()
        table = self._present()
        if table is not None and self._unread():
            present = {path.relative_to(self.folder).parts[0] for path in self._files()}
            dead = [path for path in self.folder.glob("*=*") if path.name not in present]
            _remove_older(dead, KEEP_HOURS * 3600)
            needed = {Path(name).name for name in needed_metadata(table)}
            avro = (self.folder / "metadata").glob("*.avro")
            _remove_older([path for path in avro if path.name not in needed], KEEP_METADATA_S)
            _remove_older((self.folder / "metadata").glob("*.tmp"), KEEP_METADATA_S)


def _path_of(location: str) -> Path:
    """Return the path of a file; Java writes `file:/` where others write `file:///`."""
    return Path(location.removeprefix("file:").removeprefix("//"))


def _remove_older(paths: Iterable[Path], seconds: float) -> None:
    before = time.time_ns() - int(seconds * 1e9)
    for path in paths:
        if path.stat().st_mtime_ns < before:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
