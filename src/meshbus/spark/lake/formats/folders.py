"""The format `parquet`: a directory of plain Parquet files, in which a rename is the commit.

    <root>/silver/events/batch=events-000000000012/part-….parquet    the rows of a batch
    <root>/gold/channel_stats/hour=2026-11-15T23.parquet             one hour, replaced as a whole

A part is filled under a temporary name and then renamed, so a directory `batch=…` is always complete. A part whose
batches are all in another has been replaced by it; of two parts with the same batches, the higher generation counts.
So a compaction is one rename and needs no manifest. Replaced directories are removed when no reader is active.

Any Parquet reader can read the files, but only `files` never returns rows twice between the rename and the removal.
Replacing a range of time takes one rename for each query that has such rows; between two of them, rows are missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from meshbus.spark.lake.formats.parts import Part, part_of
from meshbus.spark.lake.formats.parttable import PartTable, Swap

_HOUR = re.compile(r"hour=([^.]+)\.parquet")


class FolderTable(PartTable):
    """A table in the format `parquet`."""

    format = "parquet"

    def parts(self) -> list[Part]:
        """Return the parts that are in effect."""
        found = _in_effect(self._all_parts())
        return [part._replace(files=tuple(sorted((self.folder / part.folder).rglob("*.parquet")))) for part in found]

    def _all_parts(self) -> list[Part]:
        """Return all directories, each after what replaces it: wider ranges first, then higher generations."""
        try:
            found = [part for entry in self.folder.iterdir() if (part := part_of(entry.name))]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda part: (part.query, part.first, -part.last, -part.generation))

    def last(self, query: str) -> int:
        """Return the highest committed batch: also a batch without rows has a directory."""
        return max((part.last for part in self._all_parts() if part.query == query), default=-1)

    def _add(self, part: Part, staged: Path) -> None:
        staged.rename(self.folder / part.folder)
        self._drop_replaced()  # also what could not be removed before because of a reader

    def _swap(self, swaps: Sequence[Swap]) -> None:
        for swap in swaps:
            self._add(swap.new, swap.staged)

    def sweep(self) -> None:
        """Remove replaced directories and leftovers of crashes."""
        super().sweep()
        self._drop_replaced()

    def _drop_replaced(self) -> None:
        found = self._all_parts()
        live = set(_in_effect(found))
        dead = [self.folder / part.folder for part in found if part not in live]
        if dead:
            self._discard(dead)

    def gold_files(self) -> dict[str, Path]:
        """Return the files of a gold table by hour."""
        found = {entry: _HOUR.fullmatch(entry.name) for entry in self.folder.glob("hour=*.parquet")}
        return {match[1]: entry for entry, match in sorted(found.items()) if match}

    def _gold_file(self, hour: str) -> Path:
        return self.folder / f"hour={hour}.parquet"

    def _put_hour(self, hour: str, file: Path) -> None:
        file.replace(self._gold_file(hour))

    def _drop_hours(self, hours: Sequence[str]) -> None:
        self._discard(map(self._gold_file, hours))


def _in_effect(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that no other replaces; each must follow what replaces it."""
    live: list[Part] = []
    for part in parts:
        if not live or part.query != live[-1].query or part.last > live[-1].last:
            live.append(part)
    return live
