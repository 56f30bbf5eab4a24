"""Inventory of the hot files of a log: which are live, where their whole blocks end, and whether a crash explains that.

A hot file is sealed, or expires, as a whole: a file that starts below the manifest's `hot_from` is stale. The live ones
follow each other without a gap up to the first block that is not whole. What comes after it is a torn tail, which a
crash explains, unless a later block declares this part synced: then durable events are damaged.

Changes nothing: log/embedded/recovery.py cuts a torn tail, and log/embedded/reader.py stops reading there.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.block import Unreadable
from meshbus.log.embedded.hot import Damage, HotIndex, open_hot
from meshbus.log.embedded.logmanifest import Manifest
from meshbus.log.folder import hot_files


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


def take_inventory(folder: Path, manifest: Manifest, known: dict[Path, HotIndex] | None = None) -> Inventory:
    """List and check the hot files; `known` has indexes of an earlier inventory, of which only the new part is checked.

    Raises FileNotFoundError if a file is sealed meanwhile, and LogError for a file of another log or a newer version.
    """
    files = hot_files(folder)
    # A hot file is sealed as a whole, so its first sequence decides.
    stale = [path for first, path in files if first < manifest.hot_from]
    waiting = [(first, path) for first, path in files if first >= manifest.hot_from]
    live: list[HotIndex] = []
    torn: Damage | None = None
    while waiting and torn is None:
        first, path = waiting[0]
        # A gap: a file was lost, or the one before lost its last blocks.
        if first != (live[-1].end if live else manifest.hot_from):
            break
        try:
            index = (known or {}).get(path) or open_hot(path)
        except Unreadable:
            break  # it is being created, or a crash interrupted that
        _check_owner(index, manifest)
        torn = index.extend()
        live.append(index)
        del waiting[0]
    # What follows the end of the log is ignored, unless it proves that events before it had been synced.
    beyond = [path for _, path in waiting]
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
    return Inventory(live, stale, torn, beyond, damage)


def _check_owner(index: HotIndex, manifest: Manifest) -> None:
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
