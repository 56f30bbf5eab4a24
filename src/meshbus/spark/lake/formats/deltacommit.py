"""Actions of a Delta log, made from Parquet files without a jar: shared by tables on disk and their copies elsewhere.

    <table>/_delta_log/…     the commits, each with files that are added and removed, and the batches that are in

A file is named by its path below the table, and described by its footer: rows, nulls and bounds. Which files belong to a
commit is decided by spark/lake/formats/delta.py and spark/lake/mirror/delta.py. Requires meshbus[delta].
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.lake.formats.parquetfile import BOUNDED, read_footer, row_schema
from meshbus.spark.lake.formats.parttable import KEEP_HOURS
from meshbus.spark.lake.tableschema import Layer, TableSpec

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log

_CONFIGURATION = {
    "delta.deletedFileRetentionDuration": f"interval {KEEP_HOURS} hours",
    # There is a commit every few seconds; a month of them, which is the default, would be a million files.
    "delta.logRetentionDuration": f"interval {KEEP_HOURS} hours",
}


def delta_library() -> Any:
    """Import delta-rs; raises PipelineError if it is not installed."""
    try:
        import deltalake
    except ImportError:
        raise PipelineError(
            PipelineFault.FAILED, "the package deltalake is not installed; run: pip install 'meshbus[delta]'"
        ) from None
    return deltalake


def create_log(
    uri: str, spec: TableSpec, *, description: str | None = None, options: Mapping[str, str] | None = None
) -> Log:
    """Create a table without rows; `options` are those of delta-rs for the storage."""
    log: Log = delta_library().DeltaTable.create(
        uri,
        delta_schema(spec),
        name=spec.name,
        description=description,
        configuration=_CONFIGURATION,
        storage_options=None if options is None else dict(options),
    )
    return log


def add_columns(log: Log, spec: TableSpec) -> None:
    """Add the columns that a table of an earlier version does not have."""
    present = {field.name for field in log.schema().fields}
    missing = [field for field in delta_schema(spec).fields if field.name not in present]
    if missing:
        log.alter.add_columns(missing)
        log.update_incremental()


def commit_actions(log: Log, actions: list[Any], batches: Mapping[str, int]) -> None:
    """Commit actions, with the last batch of some queries as application transactions; fails if another was faster."""
    library = delta_library()
    transactions = [library.Transaction(query, last) for query, last in batches.items()]
    properties = library.CommitProperties(app_transactions=transactions)
    log.create_write_transaction(actions, mode="append", schema=log.schema(), commit_properties=properties)


def paths_of(log: Log) -> list[str]:
    """Return the paths of all files, below the table."""
    # Not file_uris: those are encoded, and a path may have any character.
    return list(log.get_add_actions().column("path").to_pylist())


def add_action(path: str, file: Path, spec: TableSpec, *, rows: bool = True) -> Any:
    """Return the action that adds a file; `rows` says whether its rows are new."""
    from deltalake.transaction import AddAction

    return AddAction(
        path=path,
        size=file.stat().st_size,
        partition_values={},
        modification_time=_now_ms(),
        data_change=rows,
        stats=_statistics(file, spec),
    )


def remove_action(path: str, *, rows: bool = True) -> Any:
    """Return the action that removes a file; `rows` says whether its rows are gone."""
    from deltalake.transaction import RemoveAction

    return RemoveAction(path, rows, _now_ms())


def delta_schema(spec: TableSpec) -> Any:
    """Return the columns of a table as Delta has them."""
    import pyarrow as pa

    fields = [
        pa.field(field.name, pa.binary() if pa.types.is_fixed_size_binary(field.type) else field.type)
        for field in row_schema(spec)
    ]
    if spec.layer is Layer.GOLD and spec.hourly:
        fields.append(pa.field("hour", pa.string()))
    return delta_library().Schema.from_arrow(pa.schema(fields))


def _statistics(file: Path, spec: TableSpec) -> str:
    names = [field.name for field in delta_schema(spec).fields]
    footer = read_footer(file, [name for name in BOUNDED if name in names])
    stats = {
        "numRecords": footer.rows,
        "minValues": {name: _json_of(low) for name, (low, _) in footer.bounds.items()},
        "maxValues": {name: _json_of(high) for name, (_, high) in footer.bounds.items()},
        "nullCount": footer.nulls,
    }
    return msgspec.json.encode(stats).decode()


def _json_of(bound: Any) -> Any:
    return f"{bound:%Y-%m-%dT%H:%M:%S.%f}Z" if isinstance(bound, datetime) else bound


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
