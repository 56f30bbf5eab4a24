"""Parts of a table: directories of files, whose names tell the batches that they hold.

    batch=events-000000000012/                      a batch of the query `events`
    batch=events-000000000000-000000000011/         several, compacted
    batch=events-000000000000-000000000011-g1/      the same batches, after rows were replaced or expired

Here are the names, and which parts are combined with each other. What is done with parts is in
spark/lake/formats/parttable.py.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_FOLDER = re.compile(r"batch=([a-z0-9_]+)-(\d{12})(?:-(\d{12}))?(?:-g(\d+))?")
_HOUR = re.compile(r"hour=([^.]+)-[0-9a-f]{32}\.parquet")
_EXTERNAL = "external"
"""Query of files that another program has written into a table."""
_LOGS = {"delta": "_delta_log", "iceberg": "metadata"}
"""Directories by which the formats are recognized."""


class Part(NamedTuple):
    """One directory of a table."""

    query: str
    first: int
    last: int
    generation: int = 0
    """Number of times that the files of these batches were exchanged."""
    files: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """The name of the directory without `batch=`."""
        last = f"-{self.last:012d}" if self.last > self.first else ""
        generation = f"-g{self.generation}" if self.generation else ""
        return f"{self.query}-{self.first:012d}{last}{generation}"

    @property
    def folder(self) -> str:
        """The name of the directory."""
        return f"batch={self.name}"


def part_of(folder: str) -> Part | None:
    """Return the part that a directory name describes, without its files; None if it is something else."""
    if not (match := _FOLDER.fullmatch(folder)):
        return None
    return Part(match[1], int(match[2]), int(match[3] or match[2]), int(match[4] or 0))


def parts_of(folder: Path, files: Iterable[Path]) -> list[Part]:
    """Return the files of a table as parts, by the directories that they are in; ordered by query and batch."""
    found: dict[str, list[Path]] = {}
    for file in files:
        found.setdefault(file.relative_to(folder).parts[0], []).append(file)
    parts = [
        (part_of(name) or Part(_EXTERNAL, 0, 0))._replace(files=tuple(sorted(held))) for name, held in found.items()
    ]
    return sorted(parts)


def hour_name(hour: str) -> str:
    """Return a new file name for an hour of a gold table, for formats in which files of one hour exist side by side."""
    return f"hour={hour}-{uuid.uuid4().hex}.parquet"


def hours_of(files: Iterable[Path]) -> dict[str, Path]:
    """Return files of a gold table by hour."""
    found = {match[1]: file for file in files if (match := _HOUR.fullmatch(file.name))}
    return dict(sorted(found.items()))


def format_of(folder: Path) -> str | None:
    """Return the format of the table in a directory; None if it has not been written yet."""
    for name, log in _LOGS.items():
        if (folder / log).is_dir():
            return name
    return "parquet" if any(folder.glob("*=*")) else None


def successor(run: Sequence[Part]) -> Part:
    """Return the part that takes the place of some consecutive ones, without files."""
    generation = run[0].generation + 1 if len(run) == 1 else 0
    return Part(run[0].query, run[0].first, run[-1].last, generation)


def run_of_equals(parts: Sequence[Part], fewest: int) -> list[Part]:
    """Return the first `fewest` consecutive parts that span about equally many batches; empty if there are none."""
    run: list[Part] = []
    for part in parts:
        run = [*run, part] if run and _level(part, fewest) == _level(run[-1], fewest) else [part]
        if len(run) == fewest:
            return run
    return []


def _level(part: Part, fewest: int) -> int:
    """Return how often a part has been combined: the whole logarithm of its batches."""
    level, span = 0, part.last - part.first + 1
    while span >= fewest:
        level, span = level + 1, span // fewest
    return level
