"""The work that is the same in all formats: commits, compaction, replacement, expiry, and hours of gold.

A table changes only by swapping whole parts: a commit adds one, and compaction, replacement and expiry exchange some for
others that link the files they keep. How a swap is made atomic is what formats differ in (`PartTable._swap`).
"""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.lake.formats import parquetfile
from meshbus.spark.lake.formats.parts import Part, format_of, run_of_equals, successor
from meshbus.spark.lake.minutes import start_of_hour
from meshbus.spark.lake.readers import idle
from meshbus.spark.lake.tableformat import TableFile
from meshbus.spark.lake.tableschema import Layer, TableSpec

KEEP_HOURS = 24
"""How long replaced files stay in formats that any program can read: longer than a query takes that has listed them."""
ASIDE = "_aside"
"""Directory of unfinished and discarded files, inside the directory of a table."""
WHOLE = "all"
"""The hour in file names of gold tables that are not hourly."""
_REBUILT = "rebuild"
"""Query of rows that replace nothing, in a table without rows."""


class Swap(NamedTuple):
    """Parts that are exchanged for one other: its name, and a directory with its files."""

    old: Sequence[Part]
    new: Part
    staged: Path
    rearranged: bool = False
    """Whether the rows stay the same."""


class PartTable(ABC):
    """A table made of parts; subclasses implement what is particular to a format."""

    format: ClassVar[str]
    unfit: ClassVar[str] = ""
    """Characters that the path of a table must not contain, because the library takes them for parts of a URL."""

    def __init__(self, folder: Path, spec: TableSpec) -> None:
        """`folder` is `<root>/<layer>/<table>`; it is created by the first write.

        Raises PipelineError if the table was written in another format, in which other directories count, or if the
        library of the format cannot handle the path.
        """
        if (found := format_of(folder)) not in {None, self.format}:
            raise PipelineError(
                PipelineFault.BAD_TABLE,
                f"{folder} has the format {found!r}, not {self.format!r}; choose {found!r} or another directory",
            )
        if bad := sorted(set(self.unfit) & set(str(folder.absolute()))):
            raise PipelineError(
                PipelineFault.BAD_TABLE,
                f"{folder.absolute()} contains {bad[0]!r}, which tables of the format {self.format!r} must not have in"
                " their path; choose another directory",
            )
        self.folder = folder.absolute()
        self.spec = spec
        self._bounds: dict[Path, tuple[datetime, datetime] | None] = {}
        """Cache of time bounds: files are never modified, and opening each takes time."""
        self._sources: dict[Path, tuple[int, str]] = {}
        """Cache of the fingerprints in gold files, with the time of writing: there may be thousands of files."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the parts that are in effect, ordered by query and batch."""

    @abstractmethod
    def last(self, query: str) -> int:
        """Return the highest committed batch of a query, or -1."""

    @abstractmethod
    def _swap(self, swaps: Sequence[Swap]) -> None:
        """Exchange parts, if possible in one step."""

    @abstractmethod
    def _add(self, part: Part, staged: Path) -> None:
        """Add a part, and record that the query has committed its last batch, in one step."""

    @abstractmethod
    def gold_files(self) -> dict[str, Path]:
        """Return the files of a gold table by hour; the hour is `all` if the table is not hourly."""

    @abstractmethod
    def _put_hour(self, hour: str, file: Path) -> None:
        """Make a file that is staged the only one of its hour."""

    @abstractmethod
    def _drop_hours(self, hours: Sequence[str]) -> None:
        """Remove hours of a gold table."""

    def files(self) -> list[TableFile]:
        """Return the present files."""
        if self.spec.layer is Layer.GOLD:
            return [TableFile(str(path), "", 0, 0, path.stat().st_size) for path in self.gold_files().values()]
        return [
            TableFile(str(file), part.query, part.first, part.last, file.stat().st_size)
            for part in self.parts()
            for file in part.files
        ]

    # ── batches ─────────────────────────────────────────────────────────────────────────────

    def stage(self) -> Path:
        """Create an empty directory; never reused, because the Java of a killed driver may still be writing."""
        place = self.folder / ASIDE / uuid.uuid4().hex
        place.mkdir(parents=True)
        return place

    def commit(self, query: str, first: int, last: int, staged: Path) -> bool:
        """Add the files of a batch; raises PipelineError if only some of the batches are there."""
        done = self.last(query)
        if done < first:
            self._add(Part(query, first, last), staged)
        else:
            shutil.rmtree(staged)
            if done < last:
                raise PipelineError(
                    PipelineFault.BAD_TABLE,
                    f"{self.spec.name}: cannot commit batches {first} to {last} of {query!r}:"
                    f" {done} is committed already; commit from {done + 1} on",
                )
        return done < first

    def compact(self, query: str, *, fewest: int, merge: Callable[[Any], Any] | None = None, keep: int = 2) -> int:
        """Combine parts of a query, which become one; the number of parts grows with the logarithm of the batches."""
        parts = [part for part in self.parts() if part.query == query]
        run = run_of_equals(parts[: max(len(parts) - keep, 0)], fewest)
        if run:
            staged = self.stage()
            files = [file for part in run for file in part.files]
            small = {file for file in files if file.stat().st_size < parquetfile.LARGE_BYTES}
            for file in files:
                if file not in small:
                    parquetfile.link(file, staged)
            if merge is not None:
                parquetfile.merge(sorted(small), self._file_schema(), merge, staged)
            else:
                parquetfile.join(sorted(small), self._file_schema(), staged)
            self._swap([Swap(run, successor(run), staged, rearranged=merge is None)])
        return len(run)

    def _file_schema(self) -> Any:
        """Return the Arrow schema of the files that this class writes."""
        return parquetfile.row_schema(self.spec)

    def replace(self, start: datetime, end: datetime, staged: Path) -> None:
        """Replace the rows of a range of time; raises PipelineError if the table has no time.

        All parts from the first to the last that have such rows become one for each query, so that one step commits it.
        """
        swaps = [
            Swap(run, successor(run), self._outside(run, start, end))
            for _, parts in groupby(self.parts(), key=lambda part: part.query)
            if (run := self._touched(list(parts), start, end))
        ]
        if not swaps:  # a part with other rows takes the new ones, because the table has no others
            run = self.parts()[-1:]
            swaps = [Swap(run, successor(run) if run else Part(_REBUILT, 0, 0), self._outside(run, start, end))]
        for file in sorted(staged.rglob("*.parquet")):
            parquetfile.link(file, swaps[-1].staged)
        self._swap(swaps)
        shutil.rmtree(staged)

    def _touched(self, parts: list[Part], start: datetime, end: datetime) -> list[Part]:
        """Return all parts from the first to the last that have rows in a range of time."""
        hit = [at for at, part in enumerate(parts) if any(self._overlaps(file, start, end) for file in part.files)]
        return parts[hit[0] : hit[-1] + 1] if hit else []

    def _overlaps(self, file: Path, start: datetime, end: datetime) -> bool:
        bounds = self._times(file)
        return bounds is not None and bounds[0] < end and bounds[1] >= start

    def _outside(self, parts: Iterable[Part], start: datetime, end: datetime) -> Path:
        """Return a new directory with all rows of some parts that are not in a range of time."""
        staged = self.stage()
        for file in (file for part in parts for file in part.files):
            bounds = self._times(file)
            if bounds is None or not self._overlaps(file, start, end):
                parquetfile.link(file, staged)
            elif bounds[0] < start or bounds[1] >= end:
                parquetfile.write_outside(file, self._time(), start, end, staged)
        return staged

    def older(self, before: datetime) -> dict[str, datetime]:
        """Return the files whose rows are all older than `before`; a table without time has none."""
        if self.spec.layer is Layer.GOLD:
            files, ends = self.gold_files(), {hour: _end_of(hour) for hour in self.hours()}
            return {str(files[hour]): end for hour, end in ends.items() if end <= before}
        if self.spec.time is None:
            return {}
        times = {file: self._times(file) for part in self.parts() for file in part.files}
        return {str(file): bounds[1] for file, bounds in times.items() if bounds is not None and bounds[1] < before}

    def expire(self, before: datetime, only: Container[str] | None = None) -> int:
        """Remove files whose rows are all older than `before`; a table without time keeps all."""
        old = {path for path in self.older(before) if only is None or path in only}
        if not old:
            return 0
        if self.spec.layer is Layer.GOLD:
            self._drop_hours([hour for hour, file in self.gold_files().items() if str(file) in old])
            return len(old)
        swaps = []
        for part in self.parts():
            kept = [file for file in part.files if str(file) not in old]
            if len(kept) < len(part.files):
                staged = self.stage()
                for file in kept:
                    parquetfile.link(file, staged)
                swaps.append(Swap([part], successor([part]), staged))
        self._swap(swaps)
        return len(old)

    def _times(self, file: Path) -> tuple[datetime, datetime] | None:
        if file not in self._bounds:
            self._bounds[file] = parquetfile.time_bounds(file, self._time())
        return self._bounds[file]

    def _time(self) -> str:
        if (column := self.spec.time) is None:
            raise PipelineError(
                PipelineFault.BAD_TABLE, f"{self.spec.name} has no column of time, so no range of time can be replaced"
            )
        return column

    # ── gold ────────────────────────────────────────────────────────────────────────────────

    def put_hour(self, hour: str | None, rows: Any, sources: str) -> None:
        """Replace an hour of a gold table."""
        staged = self.stage()
        file = staged / f"{uuid.uuid4().hex}.parquet"
        parquetfile.write_hour(file, self.spec, hour, rows, sources)
        self._put_hour(hour or WHOLE, file)
        shutil.rmtree(staged)

    def sources(self, hour: str | None) -> str:
        """Return the fingerprint of an hour: it is in the footer of the file, so it cannot differ from the rows."""
        path = self._gold_file(hour or WHOLE)
        if path is None or not path.exists():
            return ""
        written = path.stat().st_mtime_ns
        if self._sources.get(path, (0, ""))[0] != written:
            self._sources[path] = written, parquetfile.read_sources(path)
        return self._sources[path][1]

    def _gold_file(self, hour: str) -> Path | None:
        return self.gold_files().get(hour)

    def hours(self) -> list[str]:
        """Return the hours that a gold table has."""
        return [hour for hour in self.gold_files() if hour != WHOLE]

    # ── placing files ───────────────────────────────────────────────────────────────────────

    def _place(self, part: Part, staged: Path) -> list[Path]:
        """Move staged files to the directory of a part that a log of commits is about to name, and return their paths.

        A directory that a crash left behind is not used: what is in it is unknown.
        """
        while (self.folder / part.folder).exists():
            part = part._replace(generation=part.generation + 1)
        if not any(staged.rglob("*.parquet")):
            shutil.rmtree(staged)
            return []
        staged.rename(self.folder / part.folder)
        return sorted((self.folder / part.folder).rglob("*.parquet"))

    # ── files that nothing refers to ────────────────────────────────────────────────────────

    def sweep(self) -> None:
        """Remove unfinished files."""
        shutil.rmtree(self.folder / ASIDE, ignore_errors=True)
        self._bounds.clear()
        self._sources.clear()

    def _unread(self) -> bool:
        """Return whether no reader is active. One that begins now finds the present files, and those stay."""
        with idle(self.folder.parents[1]) as free:
            return free

    def _discard(self, paths: Iterable[Path]) -> bool:
        """Remove directories or files unless a reader is active, and return whether they were removed."""
        aside = self.stage()
        # Only the rename needs the lock: what has been renamed is no longer found by a new reader.
        with idle(self.folder.parents[1]) as free:
            if free:
                for path in paths:
                    path.rename(aside / uuid.uuid4().hex)
        shutil.rmtree(aside)
        return free


def _end_of(hour: str) -> datetime:
    return start_of_hour(hour) + timedelta(hours=1)
