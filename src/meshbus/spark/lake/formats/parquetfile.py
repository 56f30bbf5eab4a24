"""Work on single Parquet files without Spark: time bounds, rows outside a range of time, and joining and merging files.

Files are never modified. What a table keeps unchanged is hard-linked, so that large files cost nothing.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from meshbus.log.schema import arrow_schema

if TYPE_CHECKING:
    from meshbus.spark.lake.tableschema import TableSpec

LARGE_BYTES = 32 << 20
"""Files of at least this size are scanned well enough; joining them would only cost."""
_FILE_BYTES = 256 << 20
"""Approximate size of joined files: large enough for scans, small enough for several tasks per day of rows."""
_MERGED_BYTES = 64 << 20
"""Approximate size of the files that are merged in memory: rows of counts need about ten times as much there."""
_GROUP_BYTES = 64 << 20
"""Size of the rows of a row group in memory."""
SOURCES_KEY = b"meshbus.sources"
BOUNDED = ("channel", "seq", "origin", "recorder", "recv_ts", "ts", "window_start", "hour")
"""Columns whose bounds a log of commits has, so that readers skip files: the times and the usual keys."""


def row_schema(spec: TableSpec, *, hour: bool = False) -> Any:
    """Return the Arrow schema of the files of a table, all columns nullable: files of older versions may lack some.

    With `hour`, it ends with the hour, which such files do not have.
    """
    import pyarrow as pa

    schema = arrow_schema(spec.table, dictionaries=False)
    fields = [field.with_nullable(True) for field in schema]
    return pa.schema([*fields, pa.field("hour", pa.string())] if hour else fields, schema.metadata)


class Footer(NamedTuple):
    """What the footer of a file says about some of its columns."""

    rows: int
    nulls: dict[str, int]
    bounds: dict[str, tuple[Any, Any]]
    """Lowest and highest value, of columns with known ones."""


def read_footer(path: Path, columns: Iterable[str]) -> Footer:
    """Return the number of rows, nulls and bounds of columns; a column that the file does not have is null throughout."""
    import pyarrow.parquet as pq

    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    with pq.ParquetFile(path) as file:
        rows = file.metadata.num_rows
        for column in columns:
            found = _statistics(file, column)
            if found is None:
                nulls[column] = rows
            elif all(stats is not None and stats.has_null_count for stats in found):
                nulls[column] = sum(stats.null_count for stats in found)
            if found and all(stats is not None and stats.has_min_max for stats in found):
                bounds[column] = min(stats.min for stats in found), max(stats.max for stats in found)
    return Footer(rows, nulls, bounds)


def _statistics(file: Any, column: str) -> list[Any] | None:
    """Return the statistics of a column in each row group; None if the file does not have the column."""
    paths = [file.schema.column(at).path for at in range(len(file.schema))]
    if column not in paths:
        return None
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    return [group.column(paths.index(column)).statistics for group in groups if group.num_rows]


def time_bounds(path: Path, column: str) -> tuple[datetime, datetime] | None:
    """Return the lowest and the highest time in a column of a file; None if it has none.

    Taken from the footer where it has them, and otherwise from the column itself: Spark may write times without bounds.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    footer = read_footer(path, [column])
    if column in footer.bounds or footer.nulls.get(column) == footer.rows:
        return footer.bounds.get(column)
    with pq.ParquetFile(path) as file:
        both = pc.min_max(_in_utc(file.read([column]).column(0))).as_py()
    return None if both["min"] is None else (both["min"], both["max"])


def _in_utc(times: Any) -> Any:
    """Return a column of times as this project writes them: Spark may write nanoseconds without a zone."""
    import pyarrow as pa

    return times.cast(pa.timestamp("us", "UTC"))


def link(file: Path, folder: Path) -> None:
    """Put a file into a directory as well: as a hard link if possible, under a new name if its own is taken."""
    place = folder / file.name
    if place.exists():
        place = folder / f"{uuid.uuid4().hex}.parquet"
    try:
        os.link(file, place)
    except OSError:  # a file system without links
        shutil.copyfile(file, place)


def write_outside(file: Path, column: str, start: datetime, end: datetime, folder: Path) -> None:
    """Write the rows whose time is not in [start, end) to a new file in a directory."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as source, _writer(folder, source.schema_arrow) as writer:
        for group in range(source.num_row_groups):
            rows = source.read_row_group(group)
            time = _in_utc(rows.column(column))
            low, high = (pa.scalar(bound, time.type) for bound in (start, end))
            inside = pc.and_(pc.greater_equal(time, low), pc.less(time, high))
            writer.write_table(rows.filter(pc.invert(pc.fill_null(inside, False))))


def merge(files: Iterable[Path], schema: Any, reduce: Callable[[Any], Any], folder: Path) -> None:
    """Write the rows of small files, some files at a time, as `reduce` returns them, to few files in a directory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for group in _grouped(files, _MERGED_BYTES):
        if len(group) == 1:
            link(group[0], folder)
            continue
        rows = pa.concat_tables([fit(pq.ParquetFile(file).read(), schema) for file in group])
        with _writer(folder, schema) as writer:
            writer.write_table(fit(reduce(rows), schema))


def join(files: Iterable[Path], schema: Any, folder: Path) -> None:
    """Write the rows of small files to few large ones in a directory."""
    for group in _grouped(files, _FILE_BYTES):
        if len(group) == 1:
            link(group[0], folder)
        else:
            _join(group, schema, folder)


def _grouped(files: Iterable[Path], limit: int) -> Iterator[list[Path]]:
    group: list[Path] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.stat().st_size
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group


def _writer(folder: Path, schema: Any) -> Any:
    import pyarrow.parquet as pq

    place = folder / f"{uuid.uuid4().hex}.parquet"
    return pq.ParquetWriter(place, schema, compression="zstd", write_page_checksum=True)


def _join(files: list[Path], schema: Any, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    held: list[Any] = []
    with _writer(folder, schema) as writer:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches():
                held.append(fit(pa.Table.from_batches([batch]), schema))
                if sum(table.nbytes for table in held) >= _GROUP_BYTES:
                    writer.write_table(pa.concat_tables(held))
                    held = []
        if held:
            writer.write_table(pa.concat_tables(held))


def conform(file: Path, schema: Any) -> None:
    """Replace a staged file by one with exactly the types of a schema, unless it has them; columns may be missing."""
    import pyarrow.parquet as pq

    types = {field.name: field.type for field in schema}
    if any(field.type != types.get(field.name) for field in pq.read_schema(file)):
        _join([file], schema, file.parent)
        file.unlink()


def fit(rows: Any, schema: Any) -> Any:
    """Return rows with exactly the columns of a schema; missing ones are null."""
    import pyarrow as pa

    present = set(rows.column_names)
    return pa.table(
        [
            rows.column(field.name).cast(field.type) if field.name in present else pa.nulls(len(rows), field.type)
            for field in schema
        ],
        schema=schema,
    )


def write_hour(path: Path, spec: TableSpec, hour: str | None, rows: Any, sources: str) -> None:
    """Write the rows of an hour of a gold table, with the fingerprint of what they were computed from."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(spec.table, dictionaries=False)
    table = pa.table([rows.column(field.name).cast(field.type) for field in schema], schema=schema)
    if spec.hourly:
        table = table.append_column(
            pa.field("hour", pa.string(), nullable=False), pa.array([hour] * len(table), pa.string())
        )
    table = table.replace_schema_metadata({**(schema.metadata or {}), SOURCES_KEY: sources.encode()})
    pq.write_table(table, path, compression="zstd")


def read_sources(path: Path) -> str:
    """Return the fingerprint in a file of a gold table; empty if the file is gone or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (FileNotFoundError, pa.ArrowInvalid):
        return ""
    return str(metadata.get(SOURCES_KEY, b""), "utf-8")
