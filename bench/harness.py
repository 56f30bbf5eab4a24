"""Timing functions and the result table for benchmarks.

The candidates of a comparison run in interleaved rounds, so that a slow phase of the machine affects all of them. A figure
is nanoseconds per item: wall-clock time of the best and the median round, and processor time of the median round, which
varies less on a shared machine.

A benchmark module starts with a docstring that names its bias, and defines

    def run(quick: bool) -> Iterable[Table]: ...

One with options of its own also defines `add_options(parser)`, and gets them as a second argument of `run` if any is given.

This module knows nothing about what is measured. The package never imports it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import msgspec

RESULTS = Path(__file__).with_name("results")

Cell: TypeAlias = "str | int | float"
Case: TypeAlias = tuple[Callable[[], object], int]
"""A function to time, and the number of items that one call processes."""

_TOLD = ("meshbus", "numpy", "numba", "pyarrow", "pyzmq", "net-mesh", "pyspark")
"""Libraries whose versions are saved with a result if they are installed."""


class Timing(msgspec.Struct, frozen=True):
    """Nanoseconds per item for one candidate."""

    best_ns: float
    """Wall-clock time of the fastest round."""
    median_ns: float
    """Wall-clock time of the median round."""
    cpu_ns: float
    """Processor time of the median round, for all threads of this process."""
    rounds: int

    @property
    def per_second(self) -> float:
        """Return the items per second of the median round."""
        return 1e9 / self.median_ns

    def times_faster_than(self, peer: Timing) -> float:
        """Return the ratio of the median processor times: above 1 is faster than the peer."""
        return peer.cpu_ns / self.cpu_ns


class Table(msgspec.Struct, frozen=True):
    """The result of a benchmark, printed as text and saved as data."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def render(self) -> str:
        """Return the table as plain text, with text aligned left and numbers right."""
        cells = [list(self.columns), *([_spell(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numeric = [any(isinstance(row[index], int | float) for row in self.rows) for index in range(len(widths))]
        lines = [
            "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
            for row in cells
        ]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", lines[0], rule, *lines[1:], *(f"  {note}" for note in self.notes), ""])


def ns_per_item(function: Callable[[], object], items: int, *, seconds: float = 0.5, rounds: int = 7) -> Timing:
    """Time one function that processes `items` items per call, for about `seconds` in total."""
    return compare({"": (function, items)}, seconds=seconds, rounds=rounds)[""]


def compare(cases: Mapping[str, Case], *, seconds: float = 0.5, rounds: int = 7) -> dict[str, Timing]:
    """Time several candidates in interleaved rounds, for about `seconds` each; a slow one gets one call per round.

    Every candidate is called once before, so that compilation and cold caches are not measured.
    """
    repeats = {name: _repeats(function, seconds / rounds) for name, (function, _) in cases.items()}
    wall: dict[str, list[float]] = {name: [] for name in cases}
    cpu: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (function, items) in cases.items():
            wall_ns, cpu_ns = _round(function, repeats[name])
            wall[name].append(wall_ns / (repeats[name] * items))
            cpu[name].append(cpu_ns / (repeats[name] * items))
    return {
        name: Timing(min(wall[name]), statistics.median(wall[name]), statistics.median(cpu[name]), rounds)
        for name in cases
    }


def begin(bench: str, *, quick: bool) -> dict[str, object]:
    """Return the record of a run that begins now: its time, and the machine before the run loads it."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"bench": bench, "at": at, "quick": quick, "machine": describe_machine()}


def save(begun: dict[str, object], tables: Sequence[Table]) -> Path:
    """Append the tables of a run to the file of its benchmark in bench/results, one JSON line per run."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{begun['bench']}.jsonl"
    with path.open("ab") as file:
        file.write(msgspec.json.encode(begun | {"tables": tables}) + b"\n")
    return path


def describe_machine() -> dict[str, str]:
    """Return what the figures depend on: interpreter, libraries, processor count, load."""
    told = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    told["cpus"] = str(os.cpu_count())
    if hasattr(os, "getloadavg"):
        told["load"] = f"{os.getloadavg()[0]:.1f}"
    for name in _TOLD:
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            continue
    return told


def processor_seconds() -> float:
    """Return the processor time of this process and its descendants, including ended ones that were waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    total, pending = 0, [os.getpid()]
    while pending:
        one = pending.pop()
        total += ticks.get(one, 0)
        pending += children.get(one, [])
    return total / os.sysconf("SC_CLK_TCK")


def _repeats(function: Callable[[], object], seconds: float) -> int:
    """Return how many calls fill one round; these calls are also the warm-up."""
    function()
    repeats = 1
    while True:
        wall_ns, _ = _round(function, repeats)
        if wall_ns >= seconds * 1e8:  # a tenth of a round is long enough to extrapolate from
            return max(1, round(repeats * seconds * 1e9 / wall_ns))
        repeats *= 4


def _round(function: Callable[[], object], repeats: int) -> tuple[int, int]:
    """Return wall-clock and processor nanoseconds of `repeats` calls, without garbage collection, as in timeit."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        turns = range(repeats)
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        for _ in turns:
            function()
        return time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    finally:
        if collecting:
            gc.enable()


def _spell(cell: Cell) -> str:
    """Format a number with three significant digits, or with spaces between thousands."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}".replace(",", " ")
    return f"{cell:.3g}"
