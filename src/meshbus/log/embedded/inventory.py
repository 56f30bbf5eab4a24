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
    live: list[HotIndex] = []
    beyond: list[Path] = []
    replaced: list[Path] = []
    torn: Damage | None = None
    skipped_to: int | None = None
    for first, path in waiting:
        # A gap: a file was lost, or the one before lost its last blocks.
        continues = torn is None and first == (live[-1].end if live else manifest.hot_from)
        turns = turn_of(path) > turn_of(live[-1].path) if live else not continues
        try:
            index = ((known or {}).get(path) or open_hot(path)) if continues or turns else None
        except Unreadable:
            index = None  # it is being created, or a crash interrupted that
        if index is None:
            beyond.append(path)
            continue
        damage_after = index.extend()
        opening = opening_of(index.controls)
        # In a replicated log, a file without an opening is being created, or a crash interrupted that.
        if (opening is None) != (manifest.replica is UNSET):
            beyond.append(path)
            continue
        if turns and opening is not None:
            if not _follows(opening, first, live, manifest.hot_from):
                beyond.append(path)
                continue
            replaced += [old.path for old in live if opening.skips or old.header.first >= first]
            live = [] if opening.skips else [old for old in live if old.header.first < first]
            skipped_to = first if opening.skips else skipped_to
            if live:
                live[-1].cut(first)
        elif turns:
            beyond.append(path)
            continue
        _check_owner(index, manifest)
        live.append(index)
        torn = damage_after
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
            f"{where}: sequences {end} to {claimed - 1} were synced and are damaged ({why}): restore the file from a"
            " copy, or move the folder away to start a new log; earlier events are readable"
        )
    return Inventory(live, stale, torn, beyond, damage, replaced, skipped_to)


def _follows(opening: Opening, first: int, live: list[HotIndex], hot_from: int) -> bool:
    """Return whether a file that begins a turn is part of the log: nothing that it builds on may be missing."""
    if opening.skips:
        return True  # it builds on nothing
    before = [index for index in live if index.header.first < first]
    if not before:
        return opening.after == -1 and first == hot_from
    return opening.after == turn_of(before[-1].path) and first <= before[-1].end


def _check_owner(index: HotIndex, manifest: Manifest) -> None:
    if index.header.log_id != manifest.id_bytes or index.header.channel != manifest.channel:
        raise LogError(LogFault.FOREIGN, f"{index.path} belongs to another log of {index.header.channel}: move it away")


def _claim(path: Path) -> int:
    """Return the highest `durable` in a file after a gap."""
    try:
        index = open_hot(path)
    except Unreadable:
        return 0
    torn = index.extend()
    return max(index.durable, torn.claimed if torn else 0)
