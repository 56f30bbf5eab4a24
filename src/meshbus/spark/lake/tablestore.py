"""Storage of the tables: directories of Parquet files that are written exactly once.

    <root>/silver/events/batch=events-000000000012/hour=2026-11-15T23/part-….parquet   a batch of the query `events`
    <root>/silver/events/batch=events-000000000000-000000000011/…                       compacted batches
    <root>/gold/channel_stats/hour=2026-11-15T23.parquet                                one hour, replaced as a whole
    <root>/_checkpoints/  <root>/_lock  <root>/_status.json                             files of the runner

A rename is the commit: a batch is written to a temporary directory and then renamed, so a directory `batch=…` is always
complete, and a batch that is retried after a crash finds it and does nothing. A directory whose range of batches lies
inside that of another has been replaced by it. Any Parquet reader can read the files, but only `Store.read` never sees
rows twice during a compaction, and only inside `Store.reading` do the files of a running query stay in place.

The root must be on storage that the driver and all workers share. Rows are computed elsewhere (spark/run/batches.py,
spark/run/refresh.py); the tables themselves are listed in spark/lake/catalog.py.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.schema import arrow_schema
from meshbus.spark.lake.catalog import CATALOG, Catalog
from meshbus.spark.lake.tableschema import Layer, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ASIDE = "_aside"
"""Directory of unfinished and discarded files, inside the directory of a table."""
_READERS = "_readers.lock"
_PART = re.compile(r"batch=([a-z0-9_]+)-(\d{12})(?:-(\d{12}))?")
_HOUR = re.compile(r"hour=([^.]+?)(?:\.parquet)?")
_WHOLE = "all"
"""The hour in file names of tables that are not hourly."""
_SOURCES_KEY = b"meshbus.sources"
_FILE_BYTES = 256 << 20
"""Approximate size of compacted files: large enough for scans, small enough for several tasks per day of rows."""


class Part(NamedTuple):
    """One directory of a table: the rows of one batch, or of several compacted ones."""

    path: Path
    query: str
    first: int
    last: int

    def hours(self) -> list[str]:
        """Return the hours that have rows."""
        return sorted(match[1] for entry in self.path.iterdir() if (match := _HOUR.fullmatch(entry.name)))

    def made_ns(self, hour: str) -> int:
        """Return the modification time of an hour, or of the whole part if it is not hourly."""
        place = self.path / f"hour={hour}"
        return (place if place.is_dir() else self.path).stat().st_mtime_ns


class Store:
    """The tables in one directory."""

    def __init__(self, root: Path | str, catalog: Catalog = CATALOG) -> None:
        self.root = Path(root)
        self.catalog = catalog
        self._sources: dict[Path, tuple[int, str]] = {}
        """Cache of the fingerprints in gold files, with the time of writing: there may be thousands of files."""

    def folder(self, name: str) -> Path:
        """Return the directory of a table; raises PipelineError if the table is unknown."""
        spec = self.catalog.spec(name)
        return self.root / spec.layer / spec.table.name

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep all files in place while the block runs: Spark lists files when it plans a query and opens them later.

        Writers do not wait: they postpone the removal of replaced directories. A reader that may not write to the root,
        or whose file system has no locks, runs without this protection.
        """
        with ExitStack() as held:
            with suppress(OSError):
                held.enter_context(self._lock(fcntl.LOCK_SH))
            yield

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / _READERS).open("a") as file:
            fcntl.flock(file, kind)
            yield

    # ── batches ─────────────────────────────────────────────────────────────────────────────

    def parts(self, name: str) -> list[Part]:
        """Return the parts of a bronze or silver table that are in effect, ordered by query and batch."""
        try:
            entries = list(self.folder(name).iterdir())
        except FileNotFoundError:
            return []
        found = [
            Part(entry, match[1], int(match[2]), int(match[3] or match[2]))
            for entry in entries
            if (match := _PART.fullmatch(entry.name))
        ]
        # Wider ranges first: a part that ends inside the one before it has been replaced by compaction.
        found.sort(key=lambda part: (part.query, part.first, -part.last))
        live: list[Part] = []
        for part in found:
            if not live or part.query != live[-1].query or part.last > live[-1].last:
                live.append(part)
        return live

    def has(self, name: str, query: str, batch: int) -> bool:
        """Return whether a table has the rows of a batch of a query."""
        return any(part.query == query and part.first <= batch <= part.last for part in self.parts(name))

    def add(self, name: str, query: str, batch: int, rows: Callable[[], DataFrame]) -> bool:
        """Write the rows of a batch unless they are there, and return whether they were written.

        `rows` is called only if needed.
        """
        if self.has(name, query, batch):
            return False
        self._write(rows(), name, self.folder(name) / f"batch={query}-{batch:012d}")
        return True

    def put(self, name: str, query: str, batch: int, table: Any) -> None:
        """Write the rows of a batch, given as an Arrow table; one for an hourly table also has a column `hour`."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        aside = self._new_aside(name)
        parts = {aside: table}
        if self.catalog.spec(name).hourly:
            hours, rows = table.column("hour"), table.drop_columns("hour")
            parts = {aside / f"hour={hour}": rows.filter(pc.equal(hours, hour)) for hour in hours.unique()}
        for folder, rows in parts.items():
            folder.mkdir(parents=True)
            pq.write_table(rows, folder / "part.parquet", compression="zstd")
        self._name(aside, self.folder(name) / f"batch={query}-{batch:012d}")

    def append(self, name: str, query: str, rows: DataFrame) -> None:
        """Write rows that do not come from a streaming query, as the next batch of the given name."""
        batch = max((part.last + 1 for part in self.parts(name) if part.query == query), default=0)
        self.add(name, query, batch, lambda: rows)

    def rows(
        self, name: str, *, only: tuple[str, int] | None = None, but: tuple[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of a small table without Spark: all, only those of one batch, or all but those of one batch."""
        import pyarrow.parquet as pq

        found: list[dict[str, Any]] = []
        for part in self.parts(name):
            this = (part.query, part.first) if part.first == part.last else None
            if (only is None or this == only) and (but is None or this != but):
                for file in sorted(part.path.rglob("*.parquet")):
                    found += pq.ParquetFile(file).read().to_pylist()
        return found

    def table(self, name: str, query: str, batch: int, columns: Sequence[str]) -> Any:
        """Return some columns of one batch as an Arrow table, without Spark."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = sorted((self.folder(name) / f"batch={query}-{batch:012d}").rglob("*.parquet"))
        tables = [pq.ParquetFile(file).read(columns=list(columns)) for file in files]
        schema = arrow_schema(self.catalog.spec(name).table, dictionaries=False)
        return (
            pa.concat_tables(tables, promote_options="default")
            if tables
            else pa.schema([schema.field(name) for name in columns]).empty_table()
        )

    def read(
        self,
        spark: SparkSession,
        name: str,
        hours: Iterable[str] | None = None,
        *,
        but: tuple[str, int] | None = None,
    ) -> DataFrame:
        """Return a table, or some hours of it, as it is now; `but` leaves out a batch of a query."""
        spec = self.catalog.spec(name)
        if spec.layer is Layer.GOLD:
            paths = [str(path) for hour, path in self.gold_files(name).items() if hours is None or hour in set(hours)]
            return _load(spark, spec, paths)
        left_out = None if but is None else (*but, but[1])
        parts = [part for part in self.parts(name) if (part.query, part.first, part.last) != left_out]
        if hours is None or not spec.hourly:
            paths = [str(part.path) for part in parts]
        else:
            wanted = sorted(set(hours))
            paths = [str(place) for part in parts for hour in wanted if (place := part.path / f"hour={hour}").is_dir()]
        return _load(spark, spec, paths, base=str(self.folder(name)))

    def read_batch(self, spark: SparkSession, name: str, query: str, batch: int) -> DataFrame:
        """Return the rows of one batch, which must not have been compacted yet."""
        folder = self.folder(name)
        return _load(spark, self.catalog.spec(name), [str(folder / f"batch={query}-{batch:012d}")], base=str(folder))

    def read_part(self, spark: SparkSession, name: str, part: Part) -> DataFrame:
        """Return the rows of one part."""
        return _load(spark, self.catalog.spec(name), [str(part.path)], base=str(self.folder(name)))

    def files(self, name: str) -> dict[str, list[Path]]:
        """Return the present Parquet files of a table by hour; the hour is `all` if the table is not hourly."""
        found = {hour: [path] for hour, path in self.gold_files(name).items()}
        for part in self.parts(name):
            for file in sorted(part.path.rglob("*.parquet")):
                match = _HOUR.fullmatch(file.parent.name)
                found.setdefault(match[1] if match else _WHOLE, []).append(file)
        return found

    def compact(
        self,
        spark: SparkSession,
        name: str,
        query: str,
        *,
        fewest: int,
        merge: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        keep: int = 2,
    ) -> int:
        """Combine `fewest` consecutive parts that span equally many batches; the newest `keep` parts stay as they are.

        Returns the number of parts that were combined. Combined parts are combined again in turn, so the number of parts
        grows with the logarithm of the number of batches. `merge` may reduce the rows. The old directories are removed
        after the new one is committed, when no reader is active.
        """
        self._drop_replaced(name)  # what an earlier compaction could not remove because of a reader
        parts = [part for part in self.parts(name) if part.query == query]
        run = _equal_run(parts[: max(len(parts) - keep, 0)], fewest)
        if not run:
            return 0
        folder = self.folder(name)
        place = folder / f"batch={query}-{run[0].first:012d}-{run[-1].last:012d}"
        with self.reading():
            size = sum(file.stat().st_size for part in run for file in part.path.rglob("*.parquet"))
            rows = merge(_load(spark, self.catalog.spec(name), [str(part.path) for part in run], base=str(folder)))
            self._write(rows, name, place, files=1 + size // _FILE_BYTES)
        self._drop_replaced(name)
        return len(run)

    def replace(self, name: str, part: Part, rows: DataFrame) -> None:
        """Replace the rows of a part: for repairs by an operator, never from a streaming query."""
        place = self._new_aside(name)
        # Staged first: `rows` may be computed from the part that is about to be renamed.
        staged = self._stage(rows, name)
        part.path.rename(place)
        staged.rename(part.path)
        shutil.rmtree(place)

    def expire(self, name: str, before_hour: str) -> int:
        """Remove all hours before an hour from an hourly table, and return how many directories were removed."""
        gone = 0
        for part in self.parts(name):
            for hour in part.hours():
                if hour < before_hour:
                    gone += self._discard(part.path / f"hour={hour}", name)
        for hour, path in self.gold_files(name).items():
            if hour < before_hour:
                path.unlink(missing_ok=True)
                gone += 1
        return gone

    def sweep(self, name: str) -> None:
        """Remove replaced directories and leftovers of crashes; the caller must hold the lock of the tables."""
        shutil.rmtree(self.folder(name) / _ASIDE, ignore_errors=True)
        self._drop_replaced(name)

    def _drop_replaced(self, name: str) -> None:
        live = {part.path for part in self.parts(name)}
        for entry in self.folder(name).glob("batch=*"):
            if _PART.fullmatch(entry.name) and entry not in live:
                self._discard(entry, name)

    def _discard(self, path: Path, name: str) -> bool:
        """Remove a directory atomically unless a reader is active, and return whether it was removed."""
        aside = self._new_aside(name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Only the rename needs the lock: what has been renamed is no longer found by a new reader.
            with self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
                path.rename(aside)
        except BlockingIOError:
            return False
        shutil.rmtree(aside)
        return True

    def _stage(self, rows: DataFrame, name: str, *, files: int | None = None) -> Path:
        spec, aside = self.catalog.spec(name), self._new_aside(name)
        columns = [field.name for field in spec.struct()]
        chosen = rows.select(*columns)
        writer = (chosen if files is None else chosen.coalesce(files)).write.option("compression", "zstd")
        if spec.hourly:
            writer = writer.partitionBy("hour")
        writer.parquet(str(aside))
        return aside

    def _new_aside(self, name: str) -> Path:
        """Return a new temporary directory; never reused, because the Java of a killed driver may still be writing."""
        return self.folder(name) / _ASIDE / uuid.uuid4().hex

    def _write(self, rows: DataFrame, name: str, place: Path, *, files: int | None = None) -> None:
        self._name(self._stage(rows, name, files=files), place)

    def _name(self, aside: Path, place: Path) -> None:
        """Rename a temporary directory, which commits it."""
        try:
            aside.rename(place)
        except OSError:
            if not place.exists():
                raise
            shutil.rmtree(aside)  # another attempt committed first, with the same rows

    # ── gold ────────────────────────────────────────────────────────────────────────────────

    def gold_files(self, name: str) -> dict[str, Path]:
        """Return the files of a gold table by hour; the hour is `all` if the table is not hourly."""
        folder = self.folder(name)
        if self.catalog.spec(name).layer is not Layer.GOLD or not folder.is_dir():
            return {}
        found = {entry: _HOUR.fullmatch(entry.name) for entry in folder.glob("hour=*.parquet")}
        return {match[1]: entry for entry, match in sorted(found.items()) if match}

    def gold_sources(self, name: str, hour: str | None) -> str:
        """Return the fingerprint that `put_gold` stored, or an empty string if there is no file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._gold_path(name, hour)
        try:
            written = path.stat().st_mtime_ns
            if self._sources.get(path, (0, ""))[0] != written:
                metadata = pq.read_schema(path).metadata or {}
                self._sources[path] = written, str(metadata.get(_SOURCES_KEY, b""), "utf-8")
        except (FileNotFoundError, pa.ArrowInvalid):  # deleted or damaged: it will be recomputed
            return ""
        return self._sources[path][1]

    def put_gold(self, name: str, hour: str | None, rows: Any, sources: str) -> None:
        """Replace an hour of a gold table by an Arrow table, atomically; `sources` is the fingerprint of its inputs."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        spec, path = self.catalog.spec(name), self._gold_path(name, hour)
        schema = arrow_schema(spec.table, dictionaries=False)
        table = pa.table([rows.column(field.name).cast(field.type) for field in schema], schema=schema)
        if spec.hourly:
            table = table.append_column(
                pa.field("hour", pa.string(), nullable=False), pa.array([hour] * len(table), pa.string())
            )
        table = table.replace_schema_metadata({**(schema.metadata or {}), _SOURCES_KEY: sources.encode()})
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"_{path.name}.{uuid.uuid4().hex}")
        pq.write_table(table, aside, compression="zstd")
        aside.replace(path)

    def _gold_path(self, name: str, hour: str | None) -> Path:
        return self.folder(name) / f"hour={hour or _WHOLE}.parquet"


def open_store(path: Path | str) -> Store:
    """Return the store of tables that exist; raises PipelineError if `path` is not a directory."""
    if not Path(path).is_dir():
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"{path} is not a table directory; run 'meshbus pipeline run' first"
        )
    return Store(path)


def _load(spark: SparkSession, spec: TableSpec, paths: Sequence[str], *, base: str | None = None) -> DataFrame:
    if not paths:  # Spark cannot read an empty list of files
        return spark.createDataFrame([], spec.struct())
    struct = spec.struct()
    reader = spark.read.schema(struct)
    if base is not None:
        reader = reader.option("basePath", base)
    return reader.parquet(*paths).select(
        *struct.fieldNames()
    )  # without `batch`, which is only part of a directory name


def _equal_run(parts: Sequence[Part], fewest: int) -> list[Part]:
    """Return the first `fewest` parts that are adjacent and span equally many batches; empty if there are none."""
    run: list[Part] = []
    for part in parts:
        follows = run and part.first == run[-1].last + 1 and part.last - part.first == run[-1].last - run[-1].first
        run = [*run, part] if follows else [part]
        if len(run) == fewest:
            return run
    return []
