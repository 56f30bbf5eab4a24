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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbus.spark.lake.formats.deltacommit import (
    add_action,
    add_columns,
    commit_actions,
    create_log,
    delta_library,
    paths_of,
    remove_action,
)
from meshbus.spark.lake.formats.parts import Part, hour_name, hours_of, parts_of
from meshbus.spark.lake.formats.parttable import KEEP_HOURS, PartTable, Swap
from meshbus.spark.lake.tableschema import TableSpec

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log


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
        delta_library()

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def _present(self) -> Log | None:
        """Return the newest version of the log; None if the table does not exist."""
        if self._log is not None:
            if self._outdated(self._log):
                self._log.update_incremental()
        elif (self.folder / "_delta_log").is_dir() and delta_library().DeltaTable.is_deltatable(self.folder.as_uri()):
            self._log = delta_library().DeltaTable(self.folder.as_uri())
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
            self._paths = log.version(), [self.folder / path for path in paths_of(log)]
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
        log = self._writable()
        self._commit(log, self._adding(self._place(part, staged)), {part.query: part.last})

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

    def _commit(self, log: Log, actions: list[Any], batches: Mapping[str, int] | None = None) -> None:
        commit_actions(log, actions, batches or {})

    def _writable(self) -> Log:
        """Return the log of a table that exists and has all columns, at the version that was read last.

        To be called before files are placed: directories without a log are a table of another format. If another writer
        has made a new version with the same batch or the same files, the commit fails.
        """
        log = self._log or self._present()
        if log is None:
            log = self._log = create_log(self.folder.as_uri(), self.spec)
        add_columns(log, self.spec)
        return log

    def _adding(self, files: Iterable[Path], *, rows: bool = True) -> list[Any]:
        return [add_action(self._path_of(file), file, self.spec, rows=rows) for file in files]

    def _removing(self, files: Iterable[Path], *, rows: bool = True) -> list[Any]:
        return [remove_action(self._path_of(file), rows=rows) for file in files]

    def _path_of(self, file: Path) -> str:
        return str(file.relative_to(self.folder))

    def sweep(self) -> None:
        """Remove leftovers of crashes, and files that left the table a day ago if no reader is active."""
        super().sweep()
        log = self._present()
        if log is not None and self._unread():
            log.vacuum(KEEP_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
            for folder in self.folder.glob("batch=*"):
                if not any(folder.rglob("*.parquet")):
                    shutil.rmtree(folder)
