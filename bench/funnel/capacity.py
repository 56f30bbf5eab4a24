"""Writes the figures of saved runs into docs/guide/capacity.md, each block with the run that it is from.

    python -m bench funnel --save                          the stages, and the committed lines
    python -m bench funnel --slope --json 1,4,16 --save    the cost of a row as the number of rows grows
    python -m bench funnel --slope --workers 2 --save      the same on a cluster of two workers
    python -m bench.funnel.capacity                        writes the page

A block of the page is what stands between `<!-- run: NAME -->` and `<!-- end -->`. It is written from the last run in
bench/results/funnel.jsonl that has its tables and was not `--quick`; without one, it stays as it is. Nothing here measures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from bench.funnel.slope import COSTS, IN_PROCESS, ON_CLUSTER, SPACE
from bench.funnel.verdicts import COMMITTED
from bench.harness import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "capacity.md"
RUNS = RESULTS / "funnel.jsonl"
DAY_S = 86_400
DAYS = (10**9, 10**12)
"""Events a day for which cores and storage are computed."""
WHOLE = ("seal", "log to gold")
"""The stages that every row passes."""
Value: TypeAlias = str | int | float | None
"""A cell of a saved table; None is a number that could not be measured."""
_BLOCK = re.compile(r"(?s)<!-- run: (\w+) -->\n.*?<!-- end -->")


class Saved(msgspec.Struct, frozen=True):
    """A table of a saved run."""

    title: str
    columns: list[str]
    rows: list[list[Value]]


class Run(msgspec.Struct, frozen=True):
    """One saved run of the benchmark."""

    at: str
    quick: bool
    machine: dict[str, str]
    tables: list[Saved]

    def titled(self, *words: str) -> list[Saved]:
        """Return the tables whose titles have all of some words."""
        return [table for table in self.tables if all(word in table.title for word in words)]

    @property
    def mark(self) -> str:
        """One line that says which run it is."""
        cores, load = (self.machine.get(name, "unknown") for name in ("cpus", "load"))
        return f"Run of {self.at[:16].replace('T', ' ')} UTC, {cores} cores, load {load} at its start."


def read_runs(path: Path) -> list[Run]:
    """Return the runs in a file that are no quick ones, the oldest first; none if there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [run for run in (msgspec.json.decode(line, type=Run) for line in lines) if not run.quick]


def stages(run: Run) -> list[str] | None:
    """Return the rates of all loads."""
    return _sections(run.titled("events of", "bytes"))


def committed(run: Run) -> list[str] | None:
    """Return what is committed, and whether it is met."""
    found = run.titled(COMMITTED)
    return markdown(found[-1]) if found else None


def slope(run: Run) -> list[str] | None:
    """Return the cost of a row in one process, and the space that it takes."""
    return _sections([*run.titled(COSTS, IN_PROCESS), *run.titled(SPACE, IN_PROCESS)])


def cluster(run: Run) -> list[str] | None:
    """Return the cost of a row on a cluster of this machine."""
    return _sections([*run.titled(COSTS, ON_CLUSTER), *run.titled(SPACE, ON_CLUSTER)])


def days(run: Run) -> list[str] | None:
    """Return the cores and the storage for a day, from the cost of the next million rows and the space of the last ones."""
    rows: list[list[Value]] = []
    spaces = run.titled(SPACE, IN_PROCESS)
    for costs, space in zip(run.titled(COSTS, IN_PROCESS), spaces, strict=True):
        kind = costs.title.removeprefix(COSTS).split()[0]
        at = costs.columns.index("next million")
        cpu_s = sum(_number(row[at]) for row in costs.rows if row[0] in WHOLE)
        size = _number(space.rows[-1][-1])
        for events in DAYS:
            cores, stored = events / 1e6 * cpu_s / DAY_S, events * size / 1e12
            rows.append([kind, f"{events:.0e}".replace("e+", "e"), events / DAY_S, cores, stored])
    table = Saved("", ["payloads", "events a day", "a second", "cores, always busy", "terabytes a day"], rows)
    return markdown(table) if rows else None


BLOCKS: dict[str, Callable[[Run], list[str] | None]] = {
    block.__name__: block for block in (stages, committed, slope, cluster, days)
}


def _sections(tables: Sequence[Saved]) -> list[str] | None:
    return [line for table in tables for line in (f"{table.title}:", "", *markdown(table), "")] or None


def _number(cell: Value) -> float:
    assert cell is not None
    return float(cell)


def markdown(table: Saved) -> list[str]:
    """Return a table in Markdown, with three digits."""
    lines = [
        list(table.columns),
        ["---"] * len(table.columns),
        *([spelled(cell) for cell in row] for row in table.rows),
    ]
    return [f"| {' | '.join(line)} |" for line in lines]


def spelled(cell: Value) -> str:
    """Return a cell as text; numbers with three digits, and those above a thousand without decimals."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}".replace(",", " ") if abs(cell) >= 1000 or isinstance(cell, int) else f"{cell:.3g}"


def filled(page: str, runs: Sequence[Run]) -> str:
    """Return a page with its blocks written from the last runs that have them; raises ValueError for an unknown block."""

    def written(block: re.Match[str]) -> str:
        make = BLOCKS.get(block[1])
        if make is None:
            raise ValueError(f"unknown block {block[1]!r}; choose from {', '.join(BLOCKS)}")
        return next(_made(block[1], make, reversed(runs)), block[0])

    return _BLOCK.sub(written, page)


def _made(name: str, make: Callable[[Run], list[str] | None], runs: Iterable[Run]) -> Iterator[str]:
    for run in runs:
        lines = make(run)
        if lines is not None:
            text = "\n".join([run.mark, "", *lines]).rstrip()
            yield f"<!-- run: {name} -->\n{text}\n<!-- end -->"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8"), read_runs(RUNS)), "utf-8")
