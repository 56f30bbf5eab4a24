"""What the hot files of a folder hold: which are live, where whole blocks end, and whether that is a crash or damage.

A hot file is sealed, or expires, as a whole: what starts below the manifest's `hot_from` is stale. The live ones follow
each other without a gap up to the first block that is not whole. Behind it is a torn tail, which a crash explains,
unless a later block says that this part had been synced: then acknowledged events are damaged.

Changes nothing: log/embedded/recovery.py cuts, and log/reader.py just stops there.
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
    """What was found."""

    live: list[HotIndex]
    stale: list[Path]
    """Sealed or expired; nobody reads them."""
    torn: Damage | None
    """What is behind the last whole block in the last live file."""
    beyond: list[Path]
    """Files behind the torn place."""
    damage: str
    """One sentence when acknowledged events are damaged, else nothing."""


def take_inventory(folder: Path, manifest: Manifest, known: dict[Path, HotIndex] | None = None) -> Inventory:
    """Look at the hot files; `known` are indexes of an earlier look, which are extended.

    Raises FileNotFoundError when a file is sealed meanwhile, and LogError for files of another log or a newer meshbus.
    """
    files = hot_files(folder)
    stale = [path for first, path in files if first < manifest.hot_from]
    waiting = [(first, path) for first, path in files if first >= manifest.hot_from]
    live: list[HotIndex] = []
    torn: Damage | None = None
    while waiting and torn is None:
        first, path = waiting[0]
        if first != (live[-1].end if live else manifest.hot_from):
            break
        try:
            index = (known or {}).get(path) or open_hot(path)
        except Unreadable:
            break  # it was just being made
        _check_owner(index, manifest)
        torn = index.extend()
        live.append(index)
        del waiting[0]
    beyond = [path for _, path in waiting]
    claimed = max([torn.claimed if torn else 0, *map(_claim, beyond)])
    end = live[-1].end if live else manifest.hot_from
    damage = ""
    if claimed > end:
        where = f"{live[-1].path} at byte {live[-1].size}" if live else str(folder)
        why = torn.why if torn else "a file is missing"
        damage = (
            f"{where}: sequences {end} to {claimed - 1} were synced and are damaged ({why}): restore the file from a"
            " copy, or move the folder away to begin a new log; what is before them is readable"
        )
    return Inventory(live, stale, torn, beyond, damage)


def _check_owner(index: HotIndex, manifest: Manifest) -> None:
    if index.header.log_id != manifest.id_bytes or index.header.channel != manifest.channel:
        raise LogError(LogFault.FOREIGN, f"{index.path} belongs to another log of {index.header.channel}: move it away")


def _claim(path: Path) -> int:
    """Give the highest sequence that a file behind a gap calls synced."""
    try:
        index = open_hot(path)
    except Unreadable:
        return 0
    torn = index.extend()
    return max(index.durable, torn.claimed if torn else 0)
