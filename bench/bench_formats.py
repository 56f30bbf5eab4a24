"""Claim: a commit to a table costs milliseconds in every format, however many commits came before.

Bias: one table, one writer, a local disk without sync. A batch is one linked file, so what is measured is the commit alone;
rows would cost the same in all formats. Parts are compacted as a pipeline does, 32 at a time, and that is timed apart. The
peer is the plain directory, whose commit is a rename: nothing can be faster. Processor time is that of this process with all
its threads; wall-clock time depends on what else runs. `files` is what a reader of the pipeline asks for before each query.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import Cell, Table
from meshbus.log.schema import EVENTS, arrow_schema
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats.delta import DeltaTable
from meshbus.spark.lake.formats.folders import FolderTable
from meshbus.spark.lake.formats.iceberg import IcebergTable
from meshbus.spark.lake.formats.parttable import PartTable

FORMATS: dict[str, type[PartTable]] = {"parquet": FolderTable, "delta": DeltaTable, "iceberg": IcebergTable}
ROWS = 1_000
COMPACTED = 32


class Cost(NamedTuple):
    """Milliseconds of processor and wall-clock time."""

    cpu: float
    wall: float


def run(quick: bool) -> list[Table]:
    """Commit batches to a table of each format."""
    batches = 64 if quick else 640
    with tempfile.TemporaryDirectory() as folder:
        measured = {name: _commits(Path(folder) / name, kind, batches) for name, kind in FORMATS.items()}
        gold = {name: _hours(Path(folder) / name, kind, batches // 8) for name, kind in FORMATS.items()}
    rows: list[list[Cell]] = []
    for name, (commits, listings, compactions) in measured.items():
        quarter = len(commits) // 4
        first, last = (_median(part).cpu for part in (commits[:quarter], commits[-quarter:]))
        columns = [_median(part) for part in (commits, listings, compactions, gold[name])]
        rows.append([name, *(cell for cost in columns for cell in cost), last / first])
    header = [
        f"{what}: {time} ms" for what in ("commit", "files", "compact 32", "hour of gold") for time in Cost._fields
    ]
    return [Table(f"Formats: {batches} commits", ["format", *header, "last quarter, of first"], rows)]


def _median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def _time(task: Callable[[], object]) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    task()
    return Cost((time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3)


def _commits(root: Path, kind: type[PartTable], batches: int) -> tuple[list[Cost], list[Cost], list[Cost]]:
    table = kind(root / "silver" / "events", CATALOG["silver.events"])
    root.mkdir()
    source = root / "source.parquet"
    schema = arrow_schema(EVENTS)
    pq.write_table(pa.table([pa.nulls(ROWS, field.type) for field in schema], _nullable(schema)), source)
    commits, listings, compactions = [], [], []
    for batch in range(batches):
        staged = table.stage()
        os.link(source, staged / "part.parquet")
        commits.append(_time(partial(table.commit, "events", batch, batch, staged)))
        listings.append(_time(table.files))
        if (batch + 1) % COMPACTED == 0:
            compactions.append(_time(partial(table.compact, "events", fewest=COMPACTED)))
    return commits, listings, compactions


def _hours(root: Path, kind: type[PartTable], hours: int) -> list[Cost]:
    table = kind(root / "gold" / "top_talkers", CATALOG["gold.top_talkers"])
    rows = pa.table({column.name: list(range(50)) for column in table.spec})
    names = [f"2026-11-{1 + hour // 24:02d}T{hour % 24:02d}" for hour in range(hours)]
    return [_time(partial(table.put_hour, name, rows, "sources")) for name in names]


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema], schema.metadata)
