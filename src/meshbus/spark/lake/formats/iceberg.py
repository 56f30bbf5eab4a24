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

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.schema import CENSUS, EVENTS, PACKETS, Column, ColumnType
from meshbus.spark.lake.formats.parquetfile import BOUNDED, conform, read_footer
from meshbus.spark.lake.formats.parts import Part, hour_name, hours_of, parts_of
from meshbus.spark.lake.formats.parttable import KEEP_HOURS, PartTable, Swap
from meshbus.spark.lake.tableschema import Layer, TableSpec

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction

    from meshbus.spark.lake.formats.icebergfolder import FolderCatalog

_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
_BATCH = "meshbus.batch."
"""Prefix of the properties that hold the last batch of each query."""
_NAMES = "schema.name-mapping.default"
"""Property that maps the columns of files to those of the table: files of logs have no ids of columns."""
_SNAPSHOTS = 10
"""Snapshots that are kept: there is a commit every few seconds, and each writes the list of all snapshots."""
_LINKING = {"bronze.events": EVENTS, "bronze.packets": PACKETS, "bronze.census": CENSUS, "silver.events": EVENTS}
"""Tables that take files of logs as they are, and the columns of those."""
_KEEP_METADATA_S = 3600
"""How long files of metadata stay that no snapshot needs: longer than a reader takes to plan its query."""


class IcebergTable(PartTable):
    """A table in the format `iceberg`."""

    format = "iceberg"
    unfit = "#?"

    def __init__(self, folder: Path, spec: TableSpec) -> None:
        """Raise PipelineError if PyIceberg is not installed."""
        super().__init__(folder, spec)
        self._catalog = _catalog(self.folder)
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
            found = [
                entry.data_file
                for manifest in snapshot.manifests(table.io)
                for entry in manifest.fetch_manifest_entry(table.io)
            ]
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
        return -1 if table is None else int(table.properties.get(f"{_BATCH}{query}", -1))

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    def _add(self, part: Part, staged: Path) -> None:
        table, files = self._writable(), self._conforming(part, staged)
        self._commit(table, added=files, properties={f"{_BATCH}{part.query}": str(part.last)})

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
        made = [held.setdefault(path, self._data_file(path, table.schema())) for path in added]
        with _transaction(table) as transaction:
            if properties:
                transaction.set_properties(dict(properties))
            if gone or made:
                update = transaction.update_snapshot()
                with update.overwrite() if gone else update.merge_append() as files:
                    for file in gone:
                        files.delete_data_file(file)
                    for file in made:
                        files.append_data_file(file)
                _forget_snapshots(transaction)
        snapshot = table.current_snapshot()
        self._held = None if snapshot is None else snapshot.snapshot_id, held

    def _writable(self) -> Table:
        """Return the table, which exists and has all columns; to be called before files are placed."""
        table, schema = self._present(), _schema(self.spec)
        if table is None:
            table = self._table = self._catalog.create(schema, _PROPERTIES)
            with table.transaction() as transaction:
                transaction.set_properties({_NAMES: table.schema().name_mapping.model_dump_json()})
        if not set(schema.column_names) <= set(table.schema().column_names):
            with table.update_schema() as update:
                update.union_by_name(schema)
        return table

    def _data_file(self, path: Path, schema: Schema) -> DataFile:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        ids = {field.name: field.field_id for field in schema.fields if field.name in BOUNDED}
        types: dict[str, Any] = {name: schema.find_type(name) for name in ids}
        footer = read_footer(path, ids)

        def bounds(which: int) -> dict[int, bytes]:
            return {ids[name]: to_bytes(types[name], both[which]) for name, both in footer.bounds.items()}

        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"file://{path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=footer.rows,
            file_size_in_bytes=path.stat().st_size,
            value_counts={ids[name]: footer.rows for name in footer.nulls},
            null_value_counts={ids[name]: count for name, count in footer.nulls.items()},
            lower_bounds=bounds(0),
            upper_bounds=bounds(1),
        )
        file.spec_id = 0  # as PyIceberg sets it when it reads a file from a manifest
        return file

    # ── files that nothing refers to ────────────────────────────────────────────────────────

    def sweep(self) -> None:
        """Remove leftovers of crashes, and files that left the table a day ago if no reader is active."""
        super().sweep()
        table = self._present()
        if table is not None and self._unread():
            present = {path.relative_to(self.folder).parts[0] for path in self._files()}
            dead = [path for path in self.folder.glob("*=*") if path.name not in present]
            _remove_older(dead, KEEP_HOURS * 3600)
            needed = {Path(name).name for snapshot in table.snapshots() for name in _names_of(snapshot, table)}
            avro = (self.folder / "metadata").glob("*.avro")
            _remove_older([path for path in avro if path.name not in needed], _KEEP_METADATA_S)
            _remove_older((self.folder / "metadata").glob("*.tmp"), _KEEP_METADATA_S)


def _transaction(table: Table) -> Transaction:
    from meshbus.spark.lake.formats.icebergfolder import QuickTransaction

    return QuickTransaction(table)


def _forget_snapshots(transaction: Transaction) -> None:
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    snapshots = transaction.table_metadata.snapshots
    old = sorted(snapshots, key=lambda snapshot: snapshot.sequence_number or 0)[:-_SNAPSHOTS]
    if old:
        ExpireSnapshots(transaction).by_ids([snapshot.snapshot_id for snapshot in old]).commit()


def _path_of(location: str) -> Path:
    """Return the path of a file; Java writes `file:/` where others write `file:///`."""
    return Path(location.removeprefix("file:").removeprefix("//"))


def _names_of(snapshot: Any, table: Table) -> Iterable[str]:
    """Return the files of metadata that a snapshot needs."""
    yield snapshot.manifest_list
    for manifest in snapshot.manifests(table.io):
        yield manifest.manifest_path


def _remove_older(paths: Iterable[Path], seconds: float) -> None:
    before = time.time_ns() - int(seconds * 1e9)
    for path in paths:
        if path.stat().st_mtime_ns < before:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _catalog(folder: Path) -> FolderCatalog:
    try:
        from meshbus.spark.lake.formats.icebergfolder import FolderCatalog
    except ImportError:
        raise PipelineError(
            PipelineFault.FAILED, "the package pyiceberg is not installed; run: pip install 'meshbus[iceberg]'"
        ) from None
    return FolderCatalog(folder)


def _schema(spec: TableSpec) -> Schema:
    """Return the columns of a table as Iceberg has them."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    columns = list(spec)
    if spec.layer is Layer.GOLD and spec.hourly:
        columns.append(Column("hour", ColumnType.STRING, "Hour in UTC, such as 2026-11-15T23."))
    # The ids are provisional; a table gives its own to new columns. The map takes two more.
    return Schema(
        *(
            NestedField(at, column.name, _type_of(column.type, at), required=False, doc=column.doc)
            for at, column in enumerate(columns, 1)
        )
    )


def _type_of(kind: ColumnType, at: int) -> Any:
    from pyiceberg import types

    plain = {
        ColumnType.STRING: types.StringType(),
        ColumnType.BIGINT: types.LongType(),
        ColumnType.INT: types.IntegerType(),
        ColumnType.SMALLINT: types.IntegerType(),
        ColumnType.DOUBLE: types.DoubleType(),
        ColumnType.BOOLEAN: types.BooleanType(),
        ColumnType.TIMESTAMP: types.TimestamptzType(),
        ColumnType.BINARY: types.BinaryType(),
        ColumnType.BINARY_16: types.FixedType(16),
        ColumnType.MAP: types.MapType(
            1000 + 2 * at, types.StringType(), 1001 + 2 * at, types.BinaryType(), value_required=False
        ),
    }
    return plain[kind]
