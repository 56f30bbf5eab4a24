"""Inventory of the hot files of a log: which are live, where their whole blocks end, and whether a crash explains that.

A hot file is sealed, or expires, as a whole: a file that starts below the manifest's `hot_from` is stale. The live ones
follow each other without a gap up to the first block that is not whole. What comes after it is a torn tail, which a
crash explains, unless a later block declares this part synced: then durable events are damaged.

In a replicated log a file may also begin a new turn (log/embedded/controls.py): it replaces the events from its first
sequence on, or all events before it.

Changes nothing: log/embedded/recovery.py cuts a torn tail, and log/embedded/reader.py stops reading there.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.block import Unreadable
from meshbus.log.embedded.controls import Opening, opening_of
from meshbus.log.embedded.hot import Damage, HotIndex, open_hot
from meshbus.log.embedded.logmanifest import Manifest
from meshbus.log.folder import hot_files, turn_of


class Inventory(NamedTuple):
    """The hot files of a log, sorted by what they are."""

    live: list[HotIndex]
    stale: list[Path]
    """Sealed or expired files, which are no longer read."""
    torn: Damage | None
    """What follows the last whole block in the last live file, if it is not a block."""
    beyond: list[Path]
    """Files after the torn tail or after a missing file."""
    damage: str
    """A message if durable events are damaged, else empty."""
    replaced: list[Path]
    """Files of which nothing is part of the log any more, because a later turn replaced them."""
    skipped_to: int | None = None
    """Where the log goes on if everything before it was skipped."""


def take_inventory(folder: Path, manifest: Manifest, known: dict[Path, HotIndex] | None = None) -> Inventory:
    """List and check the hot files; `known` has indexes of an earlier inventory, of which only the new part is checked.

    Raises FileNotFoundError if a file is sealed meanwhile, and LogError for a file of another log or a newer version.
    """
    files = hot_files(folder)
    # A hot file is sealed as a whole, so its first sequence decides.
    stale = [path for first, path in files if first < manifest.hot_from]
    waiting = [(first, path) for first, path in files if first >= manifest.hot_from]
    walk = _Walk(manifest)
    for first, path in waiting:
        if not walk.take(first, path, known or {}):
            walk.beyond.append(path)
    live, torn, replaced, beyond = walk.live, walk.torn, walk.replaced, walk.beyond
    # Of an earlier turn than the last one: replaced, and perhaps some of the files before it are removed already.
    turn = turn_of(live[-1].path) if live else 0
    replaced += [path for path in beyond if turn_of(path) < turn]
    beyond = [path for path in beyond if turn_of(path) >= turn]
    # What follows the end of the log is ignored, unless it proves that events before it had been synced.
    claimed = max([torn.claimed if torn else 0, *map(_claim, beyond)])
    end = live[-1].end if live else manifest.hot_from
    damage = ""
    if claimed > end:
        where = f"{live[-1].path} at offset {live[-1].size}" if live else str(folder)
        why = torn.why if torn else "a file is missing"
        damage = (
            f"{where}: sequences {end} to {claimed - 1} were synced and are damaged ({why}); restore the file from a"
            " copy, or move the folder away to start a new log; earlier events are readable"
        )
    return Inventory(live, stale, torn, beyond, damage, replaced, walk.skipped_to)


class _Walk:
    """Goes through the hot files in the order in which they were begun, and finds those that make up the log."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.live: list[HotIndex] = []
        self.beyond: list[Path] = []
        self.replaced: list[Path] = []
        self.torn: Damage | None = None
        self.skipped_to: int | None = None

    def take(self, first: int, path: Path, known: dict[Path, HotIndex]) -> bool:
        """Add a file, and return whether it is part of the log."""
        live = self.live
        # If neither, there is a gap: a file was lost, or the one before lost its last blocks.
        continues = self.torn is None and first == (live[-1].end if live else self._manifest.hot_from)
        turns = turn_of(path) > turn_of(live[-1].path) if live else not continues
        try:
            index = (known.get(path) or open_hot(path)) if continues or turns else None
        except Unreadable:
            index = None  # it is being created, or a crash interrupted that
        if index is None:
            return False
        torn = index.extend()
        opening = opening_of(index.controls)
        # In a replicated log, a file without an opening is being created, or a crash interrupted that.
        if (opening is None) != (self._manifest.replica is UNSET):
            return False
        if turns:
            if opening is None or not self._follows(opening, first):
                return False
            self._turn(opening, first)
        _check_owner(index, first, self._manifest)
        self.live.append(index)
        self.torn = torn
        return True

    def _follows(self, opening: Opening, first: int) -> bool:
        """Return whether nothing is missing that a file builds on, with which a turn begins."""
        if opening.skips:
            return True  # it builds on nothing
        before = [index for index in self.live if index.header.first < first]
        if not before:
            return first == self._manifest.hot_from  # what was before it is sealed
        return opening.after == turn_of(before[-1].path) and first <= before[-1].end

    def _turn(self, opening: Opening, first: int) -> None:
        """Leave out what a turn replaced."""
        kept = [] if opening.skips else [index for index in self.live if index.header.first < first]
        self.replaced += [index.path for index in self.live[len(kept) :]]
        self.live = kept
        if kept:
            kept[-1].cut(first)
        if opening.skips:
            self.skipped_to = first


def _check_owner(index: HotIndex, first: int, manifest: Manifest) -> None:
    if index.header.first != first:
        raise LogError(
            LogFault.CORRUPT, f"{index.path} starts at sequence {index.header.first}; give it the name that it had"
        )
    if index.header.log_id != manifest.id_bytes or index.header.channel != manifest.channel:
        raise LogError(LogFault.FOREIGN, f"{index.path} belongs to another log of {index.header.channel}; move it away")


def _claim(path: Path) -> int:
    """Return the highest `durable` in a file after a gap."""
    try:
        index = open_hot(path)
    except Unreadable:
        return 0
    torn = index.extend()
    return max(index.durable, torn.claimed if torn else 0)
