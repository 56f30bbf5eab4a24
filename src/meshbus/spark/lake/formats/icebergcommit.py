"""Commits to Iceberg tables with PyIceberg, without a jar: shared by tables on disk and their copies elsewhere.

A file is named by its location, such as `file:///…` or `s3://…`, and described by its footer: rows, nulls and bounds. Which
files belong to a commit is decided by spark/lake/formats/iceberg.py and spark/lake/mirror/iceberg.py. Requires meshbus[iceberg].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.formats.parquetfile import BOUNDED, read_footer
from meshbus.spark.lake.tableschema import Layer, TableSpec

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from meshbus.spark.lake.formats.icebergfolder import VersionedCatalog

BATCH = "meshbus.batch."
"""Prefix of the properties that hold the last batch of each query."""
KEEP_METADATA_S = 3600
"""How long files of metadata stay that no snapshot needs: longer than a reader takes to plan its query."""
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
_NAMES = "schema.name-mapping.default"
"""Property that maps the columns of files to those of the table: files of logs have no ids of columns."""
_SNAPSHOTS = 10
"""Snapshots that are kept: there is a commit every few seconds, and each writes the list of all snapshots."""


def iceberg_catalogs() -> Any:
    """Import the catalogs of tables without a service; raises PipelineError if PyIceberg is not installed."""
    try:
        return import_module("meshbus.spark.lake.formats.icebergfolder")
    except ImportError:
        raise PipelineError(
            PipelineFault.FAILED, "the package pyiceberg is not installed; run: pip install 'meshbus[iceberg]'"
        ) from None


def writable_table(
    catalog: VersionedCatalog, table: Table | None, spec: TableSpec, properties: Mapping[str, str] | None = None
) -> Table:
    """Return a table that exists and has all columns; `properties` are for one that is created now."""
    schema = iceberg_schema(spec)
    if table is None:
        table = catalog.create(schema, _PROPERTIES | dict(properties or {}))
        with table.transaction() as transaction:
            transaction.set_properties({_NAMES: table.schema().name_mapping.model_dump_json()})
    if not set(schema.column_names) <= set(table.schema().column_names):
        with table.update_schema() as update:
            update.union_by_name(schema)
    return table


def files_of(table: Table, snapshot: Snapshot) -> list[DataFile]:
    """Return the files of a snapshot."""
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


def commit_files(
    table: Table, removed: Iterable[DataFile], added: Iterable[DataFile], properties: Mapping[str, str]
) -> None:
    """Remove and add files and set properties, in one commit; raises CommitFailedException if another was faster."""
    from meshbus.spark.lake.formats.icebergfolder import QuickTransaction

    gone, made = list(removed), list(added)
    with QuickTransaction(table) as transaction:
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


def _forget_snapshots(transaction: Transaction) -> None:
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    snapshots = transaction.table_metadata.snapshots
    old = sorted(snapshots, key=lambda snapshot: snapshot.sequence_number or 0)[:-_SNAPSHOTS]
    if old:
        ExpireSnapshots(transaction).by_ids([snapshot.snapshot_id for snapshot in old]).commit()


def data_file(location: str, path: Path, schema: Schema) -> DataFile:
    """Return the description of a file: where the table has it, and what the local file of the same content says."""
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
        file_path=location,
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


def needed_metadata(table: Table) -> Iterator[str]:
    """Return the locations of the files of metadata that the snapshots of a table need."""
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path


def iceberg_schema(spec: TableSpec) -> Schema:
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
