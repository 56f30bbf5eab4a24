"""What has to be done so that a copy of a table has the files of the table: pure functions of lists of files.

A copy is brought from whatever state it is in to the present state of the table, in one commit. So nothing has to be
remembered about what was copied before, and a round that was interrupted is simply done again.

A file has the same name in the copy as in the table: its path below the directory of the table. But compaction and expiry
link files that they keep into new directories. Such a file keeps its first name in the copy (an alias), so that its
content is not copied again. A lost alias costs a copy, and never a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from meshbus.spark.lake.formats.parts import hours_of

Identity: TypeAlias = tuple[int, int, int]
"""Inode, size and time of writing, in nanoseconds: hard links to one file have the same."""


class LocalFile(NamedTuple):
    """One file of the table."""

    path: Path
    name: str
    """Its path below the directory of the table, with slashes."""
    bytes: int
    identity: Identity


class Waiting(NamedTuple):
    """How much has to be copied."""

    files: int
    bytes: int

    def without(self, file: LocalFile) -> Waiting:
        """Return what is left after a file was copied."""
        return Waiting(self.files - 1, self.bytes - file.bytes)


class Changes(NamedTuple):
    """The difference between a copy and what it should have, by names of the copy."""

    missing: dict[str, LocalFile]
    surplus: frozenset[str]

    @property
    def waiting(self) -> Waiting:
        """How much is missing."""
        return Waiting(len(self.missing), sum(file.bytes for file in self.missing.values()))


def name_files(
    files: Collection[LocalFile], present: frozenset[str], aliases: Mapping[str, str], known: Mapping[Identity, str]
) -> dict[str, LocalFile]:
    """Return the files by their names in the copy, which has the files `present`.

    `aliases` are names in the copy of files that were linked before, and `known` those of files that the table had when it
    was looked at last.
    """
    named = {file.name: file for file in files if file.name in present}
    for file in files:
        if file.name not in present:
            former = aliases.get(file.name) or known.get(file.identity, file.name)
            # Two names for one content would be rows twice if both were the same object, and once if one was dropped.
            named[former if former in present and former not in named else file.name] = file
    return named


def changes(named: Mapping[str, LocalFile], present: frozenset[str], kept: frozenset[str]) -> Changes:
    """Return what is missing in a copy, and what it has too much; `kept` are files that only the copy should have."""
    missing = {name: file for name, file in named.items() if name not in present}
    return Changes(missing, frozenset(present - set(named) - kept))


def kept_beside(kept: Iterable[str], named: Iterable[str]) -> frozenset[str]:
    """Return the files that only the copy should have, without hours of gold that the table has again."""
    again = hours_of(map(Path, named))
    held = list(kept)
    replaced = {path.name for hour, path in hours_of(map(Path, held)).items() if hour in again}
    return frozenset(name for name in held if Path(name).name not in replaced)
