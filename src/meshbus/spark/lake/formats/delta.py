"""The format `delta`: a Delta Lake table, committed with delta-rs and without a jar.

    <root>/silver/events/_delta_log/…                                the commits
    <root>/silver/events/batch=events-000000000012/part-….parquet    the rows of a batch
    <root>/gold/channel_stats/hour=2026-11-15T23-….parquet           one hour

Files are put into place first, under names that no commit knows, and one commit adds them. It carries the query and the
batch as application transaction, so a batch that is there is known, and a second writer of the same batch fails. Every
change of parts is one commit, so no reader sees rows twice or misses some, also if the writer is killed.

Delta has no fixed-size binary, so log ids are declared as plain binary; delta-rs, polars and DuckDB read files with
either. Tables are not partitioned: a file may span hours, and readers skip files by their bounds. Files that are no
longer part of the table stay for a day, for readers that found them before. Requires meshbus[delta].
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.lake.formats.parquetfile import BOUNDED, read_footer, row_schema
from meshbus.spark.lake.formats.parts import Part, hour_name, hours_of, parts_of
from meshbus.spark.lake.formats.parttable import KEEP_HOURS, PartTable, Swap
from meshbus.spark.lake.tableschema import Layer, TableSpec

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log

_CONFIGURATION = {
    "delta.deletedFileRetentionDuration": f"interval {KEEP_HOURS} hours",
    # There is a commit every few seconds; a month of them, which is the default, would be a million files.
    "delta.logRetentionDuration": f"interval {KEEP_HOURS} hours",
}


class DeltaTable(PartTable):
    """A table in the format `delta`."""

    format = "delta"
    unfit = "%"

    def __init__(self, folder: Path, spec: TableSpec) -> None:
        """Raise PipelineError if delta-rs is not installed."""
        super().__init__(folder, spec)
        self._log: Log | None = None
        self._paths: tuple[int, list[Path]] = (-1, [])
        """Cache of the present files, with the version of the table."""
        self._checkpoint = 0
        """When the pointer to the last checkpoint was written that was seen."""
        _deltalake()

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def _present(self) -> Log | None:
        """Return the newest version of the log; None if the table does not exist."""
        if self._log is not None:
            if self._outdated(self._log):
                self._log.update_incremental()
        elif (self.folder / "_delta_log").is_dir() and _deltalake().DeltaTable.is_deltatable(self.folder.as_uri()):
            self._log = _deltalake().DeltaTable(self.folder.as_uri())
        return self._log

    def _outdated(self, log: Log) -> bool:
        """Return whether there is a newer version; the library would take milliseconds to list the log.

        A commit that a clean-up removed is in a checkpoint, and each checkpoint replaces a file that points to it.
        """
        folder = self.folder / "_delta_log"
        pointer = folder / "_last_checkpoint"
        seen, self._checkpoint = self._checkpoint, pointer.stat().st_mtime_ns if pointer.exists() else 0
        return seen != self._checkpoint or (folder / f"{log.version() + 1:020d}.json").exists()

    def _files(self) -> list[Path]:
        log = self._present()
        if log is not None and log.version() != self._paths[0]:
            # Not file_uris: those are encoded, and a path may have any character.
            paths = log.get_add_actions().column("path").to_pylist()
            self._paths = log.version(), [self.folder / path for path in paths]
        return self._paths[1]

    def parts(self) -> list[Part]:
        """Return the parts of the newest version."""
        return parts_of(self.folder, self._files())

    def gold_files(self) -> dict[str, Path]:
        """Return the files of the newest version by hour."""
        return hours_of(self._files())

    def last(self, query: str) -> int:
        """Return the application transaction of a query."""
        log = self._present()
        version = None if log is None else log.transaction_version(query)
        return -1 if version is None else version

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    def _add(self, part: Part, staged: Path) -> None:
        log, transaction = self._writable(), _deltalake().Transaction(part.query, part.last)
        self._commit(log, self._adding(self._place(part, staged)), transaction)

    def _swap(self, swaps: Sequence[Swap]) -> None:
        log = self._writable()
        actions: list[Any] = []
        for swap in swaps:
            actions += self._removing((file for part in swap.old for file in part.files), rows=not swap.rearranged)
            actions += self._adding(self._place(swap.new, swap.staged), rows=not swap.rearranged)
        self._commit(log, actions)

    def _put_hour(self, hour: str, file: Path) -> None:
        old = [path for path in [self.gold_files().get(hour)] if path is not None]
        log, place = self._writable(), file.rename(self.folder / hour_name(hour))
        self._commit(log, [*self._removing(old), *self._adding([place])])

    def _drop_hours(self, hours: Sequence[str]) -> None:
        files = self.gold_files()
        self._commit(self._writable(), self._removing(files[hour] for hour in hours))

    def _commit(self, log: Log, actions: list[Any], *transactions: Any) -> None:
        properties = _deltalake().CommitProperties(app_transactions=list(transactions))
        log.create_write_transaction(actions, mode="append", schema=log.schema(), commit_properties=properties)

    def _writable(self) -> Log:
        """Return the log of a table that exists and has all columns, at the version that was read last.

        To be called before files are placed: directories without a log are a table of another format. If another writer
        has made a new version with the same batch or the same files, the commit fails.
        """
        log = self._log or self._present()
        if log is None:
            log = self._log = _deltalake().DeltaTable.create(
                self.folder.as_uri(), _schema(self.spec), name=self.spec.name, configuration=_CONFIGURATION
            )
        present = {field.name for field in log.schema().fields}
        missing = [field for field in _schema(self.spec).fields if field.name not in present]
        if missing:
            log.alter.add_columns(missing)
            log.update_incremental()
        return log

    def _adding(self, files: Iterable[Path], *, rows: bool = True) -> list[Any]:
        from deltalake.transaction import AddAction

        return [
            AddAction(
                path=str(file.relative_to(self.folder)),
                size=file.stat().st_size,
                partition_values={},
                modification_time=_now_ms(),
                data_change=rows,
                stats=self._statistics(file),
            )
            for file in files
        ]

    def _removing(self, files: Iterable[Path], *, rows: bool = True) -> list[Any]:
        from deltalake.transaction import RemoveAction

        return [RemoveAction(str(file.relative_to(self.folder)), rows, _now_ms()) for file in files]

    def _statistics(self, file: Path) -> str:
        names = {field.name for field in _schema(self.spec).fields}
        footer = read_footer(file, [name for name in BOUNDED if name in names])
        stats = {
            "numRecords": footer.rows,
            "minValues": {name: _json_of(low) for name, (low, _) in footer.bounds.items()},
            "maxValues": {name: _json_of(high) for name, (_, high) in footer.bounds.items()},
            "nullCount": footer.nulls,
        }
        return msgspec.json.encode(stats).decode()

    def sweep(self) -> None:
        """Remove leftovers of crashes, and files that left the table a day ago if no reader is active."""
        super().sweep()
        log = self._present()
        if log is not None and self._unread():
            log.vacuum(KEEP_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
            for folder in self.folder.glob("batch=*"):
                if not any(folder.rglob("*.parquet")):
                    shutil.rmtree(folder)


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError:
        raise PipelineError(
            PipelineFault.FAILED, "the package deltalake is not installed; run: pip install 'meshbus[delta]'"
        ) from None
    return deltalake


def _schema(spec: TableSpec) -> Any:
    """Return the columns of a table as Delta has them."""
    import pyarrow as pa

    fields = [
        pa.field(field.name, pa.binary() if pa.types.is_fixed_size_binary(field.type) else field.type)
        for field in row_schema(spec)
    ]
    if spec.layer is Layer.GOLD and spec.hourly:
        fields.append(pa.field("hour", pa.string()))
    return _deltalake().Schema.from_arrow(pa.schema(fields))


def _json_of(bound: Any) -> Any:
    return f"{bound:%Y-%m-%dT%H:%M:%S.%f}Z" if isinstance(bound, datetime) else bound


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
