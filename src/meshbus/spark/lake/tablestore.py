"""The tables in one directory: each with its format, and how Spark reads and writes their files.

    <root>/silver/events/…         files of a table, in the layout of its format (spark/lake/formats/)
    <root>/_tables.json            the format of the tables, and the version of everything in the directory
    <root>/_batches/  <root>/_lock  <root>/_status.json                             files of the runner

Spark reads the present files of a table with its own Parquet reader, whatever the format, so no jar is needed. Rows of
bronze and silver have their hour from their time, not from a directory: a file may be a sealed file of a log, which knows
nothing of hours. Statistics of row groups skip what is outside of the requested hours.

The root must be on storage that the driver and all workers share. Rows are computed elsewhere (spark/run/); the tables
themselves are listed in spark/lake/catalog.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshbus.errors import UNDECODABLE, PipelineError, PipelineFault
from meshbus.formats import Format
from meshbus.spark.lake.catalog import CATALOG, Catalog
from meshbus.spark.lake.minutes import start_of_hour
from meshbus.spark.lake.readers import reading
from meshbus.spark.lake.tableschema import Layer, TableSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from meshbus.spark.lake.tableformat import TableFormat

_DESCRIPTION = "_tables.json"

ON_DISK = (
    Format(
        name="tables of a pipeline",
        where="the directory of tables: `_tables.json`, `_batches/`, `_mirror/`, `_rebuild.json`, the files of bronze, silver and gold",
        what="tables, what each batch takes, and what their copies hold; beside it, the versions of Delta and Iceberg",
        version=1,
        mark='`"version"` in `_tables.json`, for the whole directory; 1 if it is missing',
        refused="the pipeline on these tables, and every other use of them by meshbus",
    ),
)


class _Description(msgspec.Struct, frozen=True):
    format: str
    version: int = 1


class Store:
    """The tables in one directory."""

    def __init__(self, root: Path | str, catalog: Catalog = CATALOG, *, table_format: str | None = None) -> None:
        """Prepare to use tables of a format, by default the one that they have. Raises PipelineError if they differ."""
        self.root = Path(root)
        self.catalog = catalog
        self.format = _format_of(self.root, table_format)
        self._tables: dict[str, TableFormat] = {}

    def table(self, name: str) -> TableFormat:
        """Return the files of a table; raises PipelineError if the table is unknown."""
        if name not in self._tables:
            self._tables[name] = _table_type(self.format)(self.folder(name), self.catalog.spec(name))
        return self._tables[name]

    def folder(self, name: str) -> Path:
        """Return the directory of a table, as an absolute path; raises PipelineError if the table is unknown."""
        spec = self.catalog.spec(name)
        return (self.root / spec.layer / spec.table.name).absolute()

    def create(self) -> None:
        """Write down the format, so that readers know it."""
        self.root.mkdir(parents=True, exist_ok=True)
        place = self.root / _DESCRIPTION
        if not place.exists():
            aside = place.with_suffix(".new")
            aside.write_bytes(msgspec.json.encode(_Description(self.format, ON_DISK[0].version)))
            aside.replace(place)

    def reading(self) -> AbstractContextManager[None]:
        """Keep all files in place while the block runs: Spark lists files when it plans a query and opens them later."""
        return reading(self.root)

    def read(self, spark: SparkSession, name: str, hours: Iterable[str] | None = None) -> DataFrame:
        """Return a table, or some hours of it, as it is now."""
        return _within(self.read_files(spark, name, self.paths(name)), self.catalog.spec(name), hours)

    def read_files(self, spark: SparkSession, name: str, paths: Sequence[str]) -> DataFrame:
        """Return the rows of some files, or directories of files, of a table."""
        from pyspark.sql import functions as F

        spec = self.catalog.spec(name)
        struct = spec.struct()
        if not paths:  # Spark cannot read an empty list of files
            return spark.createDataFrame([], struct)
        timed = spec.hourly and spec.layer is not Layer.GOLD
        # Files of earlier versions are in directories `hour=…`, from which Spark would make a column.
        stored = [field for field in struct if not (timed and field.name == "hour")]
        reader = spark.read.schema(type(struct)(stored)).option("recursiveFileLookup", "true")
        # Files of logs have checksums, and a changed bit must not become a changed event.
        rows = reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*paths)
        return rows.withColumn("hour", F.date_format(F.col(str(spec.time)), "yyyy-MM-dd'T'HH")) if timed else rows

    def write_files(self, rows: DataFrame, folder: Path) -> None:
        """Write rows as Parquet files into a directory, which exists."""
        rows.write.option("compression", "zstd").mode("append").parquet(str(folder))

    def paths(self, name: str, *, query: str | None = None, after: int = -1) -> list[str]:
        """Return the present files of a table; with `query` only those with batches of that query after one."""
        return [
            file.path
            for file in self.table(name).files()
            if query is None or (file.query == query and file.first > after)
        ]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a small table without Spark."""
        import pyarrow.parquet as pq

        return [row for path in self.paths(name) for row in pq.ParquetFile(path).read().to_pylist()]


def open_store(path: Path | str) -> Store:
    """Return the store of tables that exist; raises PipelineError if `path` is not a directory."""
    if not Path(path).is_dir():
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"{path} is not a table directory; run 'meshbus pipeline run' first"
        )
    return Store(path)


FORMATS: Final = {
    "parquet": "meshbus.spark.lake.formats.folders:FolderTable",
    "delta": "meshbus.spark.lake.formats.delta:DeltaTable",
    "iceberg": "meshbus.spark.lake.formats.iceberg:IcebergTable",
}
"""The class of each format, by the name that a pipeline's configuration uses."""


def _table_type(name: str) -> Callable[[Path, TableSpec], TableFormat]:
    # Imported when needed: a format may require a package of its own.
    module, _, kind = FORMATS[name].partition(":")
    found: Callable[[Path, TableSpec], TableFormat] = getattr(import_module(module), kind)
    return found


def _format_of(root: Path, wanted: str | None) -> str:
    place = root / _DESCRIPTION
    try:
        described = msgspec.json.decode(place.read_bytes(), type=_Description)
    except FileNotFoundError:
        described = _Description(wanted or "parquet")
    except UNDECODABLE:
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"{place} cannot be read; restore it, or start with new tables"
        ) from None
    if problem := ON_DISK[0].problem(described.version):
        raise PipelineError(PipelineFault.BAD_TABLE, f"{place}: {problem}")
    found = described.format
    if wanted not in {None, found}:
        raise PipelineError(
            PipelineFault.BAD_TABLE,
            f"the tables in {root} have the format {found}, not {wanted}; choose another directory",
        )
    if found not in FORMATS:
        raise PipelineError(PipelineFault.BAD_TABLE, f"unknown format {found!r}; choose from {', '.join(FORMATS)}")
    return found


def _within(rows: DataFrame, spec: TableSpec, hours: Iterable[str] | None) -> DataFrame:
    from pyspark.sql import functions as F

    if hours is None or "hour" not in rows.columns:
        return rows
    wanted = sorted(set(hours))
    chosen = rows.where(F.col("hour").isin(*wanted))
    return chosen if spec.time is None else chosen.where(_ranges(F.col(spec.time), wanted))


def _ranges(time: Column, hours: Sequence[str]) -> Column:
    """Return a condition on a time that Spark can compare with the statistics of row groups."""
    from functools import reduce
    from operator import or_

    from pyspark.sql import functions as F

    starts = [start_of_hour(hour) for hour in hours]
    spans: list[list[datetime]] = []
    for start in starts:
        if spans and spans[-1][1] == start:
            spans[-1][1] = start + timedelta(hours=1)
        else:
            spans.append([start, start + timedelta(hours=1)])
    return reduce(or_, [(time >= F.lit(first)) & (time < F.lit(end)) for first, end in spans], F.lit(False))
