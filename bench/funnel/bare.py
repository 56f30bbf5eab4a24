"""The same Parquet files read and written by Spark and by DuckDB alone: what the stages of meshbus are compared with.

A scan reads all columns. Spark has a sink for that; DuckDB is asked for the highest value of each column, or for its
longest. Reading and writing copies all rows to new files with the default codec. Every copy is counted and removed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq

from bench.funnel.load import expect
from meshbus.log.schema import EVENTS, ColumnType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCAN, COPY = "Spark, scan", "Spark, read and write"
DUCK_SCAN, DUCK_COPY = "DuckDB, scan", "DuckDB, read and write"

Job = Callable[[], None]


def jobs(spark: SparkSession, paths: Sequence[str], events: int, aside: Path) -> Mapping[str, Job]:
    """Return the jobs by name; each raises RuntimeError if it did not see exactly `events` rows."""
    duck = duckdb.connect()
    rows = spark.read.parquet(*paths)
    return {
        SCAN: lambda: _noop(rows),
        COPY: lambda: _copy(aside, events, rows.write.parquet),
        DUCK_SCAN: lambda: _duck_scan(duck, paths, events),
        DUCK_COPY: lambda: _copy(aside, events, lambda to: _duck_copy(duck, paths, Path(to))),
    }


def best_seconds(chosen: Mapping[str, Job], rounds: int, before: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the shortest time of each job over interleaved rounds, and those measured before."""
    best = dict(before or {})
    for _ in range(rounds):
        for name, job in chosen.items():
            began = time.perf_counter()
            job()
            best[name] = min(time.perf_counter() - began, best.get(name, float("inf")))
    return best


def _noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _copy(aside: Path, events: int, write: Callable[[str], None]) -> None:
    try:
        write(str(aside))
        expect("rows of a copy", sum(pq.read_metadata(path).num_rows for path in aside.rglob("*.parquet")), events)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _duck_scan(duck: duckdb.DuckDBPyConnection, paths: Sequence[str], events: int) -> None:
    measures = []
    for column in EVENTS:
        if column.type in {ColumnType.BINARY, ColumnType.BINARY_16}:
            measures.append(f"max(octet_length({column.name}))")
        else:
            measures.append(
                f"max(cardinality({column.name}))" if column.type is ColumnType.MAP else f"max({column.name})"
            )
    found = duck.execute(f"SELECT count(*), {', '.join(measures)} FROM read_parquet(?)", [list(paths)]).fetchone()  # noqa: S608 - our own names
    expect("rows of DuckDB's scan", found[0] if found else 0, events)


def _duck_copy(duck: duckdb.DuckDBPyConnection, paths: Sequence[str], folder: Path) -> None:
    folder.mkdir()
    chosen = ", ".join(f"'{path}'" for path in paths)
    duck.execute(f"COPY (SELECT * FROM read_parquet([{chosen}])) TO '{folder / 'all.parquet'}' (FORMAT parquet)")  # noqa: S608 - our own paths
