"""The cost per row of each stage, and how it grows with the number of rows.

The cost is processor seconds per million rows, of all threads and processes together: what one core needs. Beside it are
the seconds by the wall clock on all cores. The slope is the exponent k of a line through the logarithms: seconds grow with
rows^k, so 1 is proportional, and above 1 a row costs the more, the more there are.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.funnel.flow import config_for, through
from bench.funnel.load import Load, fill
from bench.harness import Cell, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COSTS, SPACE = "Cost per million", "Bytes on the disk"
IN_PROCESS, ON_CLUSTER = "in one process", "on a cluster"
"""What the titles of the tables say: the page of capacities finds them by it (bench/funnel/capacity.py)."""
STAGES = ("append", "seal", "log to silver", "silver to gold", "log to gold")


class Size(NamedTuple):
    """What so many rows took, by stage, and the space that they take."""

    rows: int
    seconds: dict[str, float]
    cpu_s: dict[str, float]
    log_bytes: int
    all_bytes: int
    """Log and tables together; a file with several names counts once."""


def measure(spark: SparkSession, folder: Path, load: Load) -> Size:
    """Fill logs with a load, and run the pipeline over them."""
    logs, place = folder / "slope-logs", folder / "slope-tables"
    try:
        filled = fill(logs, load)
        log_bytes = disk_bytes(logs)
        spent = through(spark, config_for(logs, place, load), load.events)
        seconds = (
            filled.append.seconds,
            filled.seal.seconds,
            spent.silver_s,
            spent.gold_s - spent.silver_s,
            spent.gold_s,
        )
        cpu_s = (
            filled.append.cpu_s, filled.seal.cpu_s,
            spent.silver_cpu_s, spent.gold_cpu_s - spent.silver_cpu_s, spent.gold_cpu_s,
        )  # fmt: skip
        return Size(
            load.events,
            dict(zip(STAGES, seconds, strict=True)),
            dict(zip(STAGES, cpu_s, strict=True)),
            log_bytes,
            disk_bytes(logs, place),
        )
    finally:
        for path in (logs, place):
            shutil.rmtree(path, ignore_errors=True)


def disk_bytes(*folders: Path) -> int:
    """Return the space that the files below folders take on the disk; a file with several names counts once."""
    blocks = {}
    for folder in folders:
        for path in folder.rglob("*"):
            found = path.lstat()
            blocks[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(blocks.values())


def exponent(rows: Sequence[float], seconds: Sequence[float]) -> float:
    """Return k of the line through the logarithms, by least squares; NaN for a single size."""
    if len(set(rows)) < 2:
        return math.nan
    xs, ys = ([math.log(max(value, 1e-9)) for value in values] for values in (rows, seconds))
    return statistics.linear_regression(xs, ys).slope


def tables_of(sizes: Sequence[Size], kind: str, where: str = IN_PROCESS) -> list[Table]:
    """Return the costs by stage, and the space; `where` says what Spark ran on."""
    rows = [size.rows for size in sizes]
    heads = [f"{count / 1e6:g} M" for count in rows]
    cells: list[list[Cell]] = []
    for stage in STAGES:
        cpu_s, seconds = ([getattr(size, what)[stage] for size in sizes] for what in ("cpu_s", "seconds"))
        per_row = [taken / count * 1e6 for taken, count in zip(cpu_s, rows, strict=True)]
        by_clock = [taken / count * 1e6 for taken, count in zip(seconds, rows, strict=True)]
        last = marginal(rows, cpu_s)
        cells.append([stage, *per_row, last, exponent(rows, cpu_s), *by_clock, exponent(rows, seconds)])
    clock = [f"{head} clock" for head in heads]
    space: list[list[Cell]] = [[size.rows, size.log_bytes / size.rows, size.all_bytes / size.rows] for size in sizes]
    return [
        Table(
            f"{COSTS} {kind} rows {where}: processor seconds of one core, and seconds by the clock on {os.cpu_count()} cores",
            ["stage", *heads, "next million", "slope", *clock, "slope by clock"],
            cells,
            ["slope: seconds grow with rows^slope; next million: the difference of the two largest sizes, per million"],
        ),
        Table(f"{SPACE} per {kind} row, {where}", ["rows", "log", "log and tables"], space),
    ]


def marginal(rows: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the seconds per million rows between the two largest sizes; of the only one, if there are no two."""
    if len(rows) < 2:
        return seconds[-1] / rows[-1] * 1e6
    return (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2]) * 1e6
