"""What each batch takes, written down before it is taken: a batch that is retried after a crash takes the same rows.

    <tables>/_batches/events/000000000012.json     {"start": offset, "end": offset}, as in spark/io/offsets.py

A batch is complete when its last table has it; the tables say so themselves, so nothing is written afterwards. Tables of
earlier versions have checkpoints of Spark instead, which are continued.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from meshbus.errors import UNDECODABLE, PipelineError, PipelineFault

PLANS = "_batches"
_CHECKPOINTS = "_checkpoints"
_KEPT = 16
"""Plans that are kept for a person who looks for what happened; only the newest is used."""


class Plan(NamedTuple):
    """The rows of one batch: those between two offsets."""

    batch: int
    start: dict[str, Any]
    end: dict[str, Any]


class Plans:
    """The plans of one query."""

    def __init__(self, root: Path, query: str) -> None:
        self.root = root
        self._folder = root / PLANS / query
        self._checkpoint = root / _CHECKPOINTS / query

    def newest(self, last: int = -1) -> Plan | None:
        """Return the newest plan; raises PipelineError if it cannot be read, or does not belong to the tables.

        `last` is the last batch that the tables have.
        """
        files = list(self._files())
        newest = _read(*files[0]) if files else _of_checkpoint(self._checkpoint)
        if newest is None and last >= 0:
            raise PipelineError(
                PipelineFault.BAD_CHECKPOINT,
                f"the query has no plans in {self._folder}, but its tables have batches of it; restore them, or start with"
                " new tables",
            )
        if newest is not None and newest.batch < last:
            raise PipelineError(
                PipelineFault.BAD_CHECKPOINT,
                f"{self._folder} ends with batch {newest.batch}, but the tables have batch {last}; restore the newer"
                " plans, or start with new tables",
            )
        return newest

    def write(self, plan: Plan) -> None:
        """Write a plan durably, and forget old ones."""
        self._folder.mkdir(parents=True, exist_ok=True)
        place = self._folder / f"{plan.batch:012d}.json"
        aside = place.with_suffix(".new")
        with aside.open("wb") as file:
            file.write(msgspec.json.encode({"start": plan.start, "end": plan.end}))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(place)
        _sync(self._folder)
        for _, path in list(self._files())[_KEPT:]:
            path.unlink()

    def _files(self) -> Iterator[tuple[int, Path]]:
        """Yield batches and their files, the newest first."""
        found = sorted(self._folder.glob("[0-9]*.json"), reverse=True)
        return ((int(path.stem), path) for path in found)


def _read(batch: int, path: Path) -> Plan:
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
        return Plan(batch, content["start"], content["end"])
    except (*UNDECODABLE, KeyError, OSError):
        raise PipelineError(
            PipelineFault.BAD_CHECKPOINT, f"{path} cannot be read; restore it from a backup, or start with new tables"
        ) from None


def _of_checkpoint(folder: Path) -> Plan | None:
    """Return the newest batch of a checkpoint of Spark, which earlier versions used."""
    offsets = folder / "offsets"
    batches = sorted((int(path.name) for path in offsets.glob("[0-9]*")), reverse=True)
    if not batches:
        return None
    ends = {batch: _offset_in(offsets / str(batch)) for batch in batches[:2]}
    newest = batches[0]
    return Plan(newest, ends.get(newest - 1, {"v": 1, "next": {}, "logs": {}}), ends[newest])


def _offset_in(path: Path) -> dict[str, Any]:
    # A version line, a line of metadata, and one line for each source.
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_text("utf-8").splitlines()[2])
    except (*UNDECODABLE, IndexError, OSError):
        raise PipelineError(
            PipelineFault.BAD_CHECKPOINT, f"{path} cannot be read; restore it from a backup, or start with new tables"
        ) from None
    return found


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
