"""The mark of a replicated log: how far it is committed and synced, for other processes and for the next opening.

The mark is two slots that are overwritten in turn, so that one of them is always whole. It is written after the sync that
it tells of, and never synced itself: it may lag, and never leads.

    0   magic "MBMK"            24  committed u64: every sequence below it is committed, and on this disk
    4   version u32             32  turn u64      the last hot file (log/embedded/controls.py tells of turns),
    8   checksum u64            40  first u64     by its turn and first sequence,
    16  number u64              48  size u64      and how many of its bytes are on the disk

The checksum covers what follows it. That of a later version covers the version too, so that a slot whose version was damaged
differs from one that a newer build wrote: nothing that a newer mark says may be taken for nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from meshbus.errors import LogError, LogFault
from meshbus.formats import Format
from meshbus.log.folder import MARK, turn_of

if TYPE_CHECKING:
    from meshbus.log.embedded.hot import HotIndex
    from meshbus.log.files import Files

_SLOT = struct.Struct("<4sIQQQQQQ")
_MAGIC, _VERSION = b"MBMK", 1
_CHECKED_FROM = 16

ON_DISK = (
    Format(
        name="mark of a replica",
        where="`log_dir/published/*/_mark`",
        what="how far a replicated log is committed",
        version=_VERSION,
        mark="a field of each of its two slots",
        refused="taking part in the replica set, which goes on with the other members; reading",
    ),
)


class Point(NamedTuple):
    """A place in the hot files; places compare in the order of writing."""

    turn: int = 0
    first: int = 0
    size: int = 0


class Mark(NamedTuple):
    """What was committed and synced at a moment."""

    number: int = 0
    """Counts the marks of a log; the newest holds."""
    committed: int = 0
    synced: Point = Point()


def end_of(hot: Sequence[HotIndex]) -> Point:
    """Return where hot files end."""
    return Point(turn_of(hot[-1].path), hot[-1].header.first, hot[-1].size) if hot else Point()


def read_mark(folder: Path) -> Mark:
    """Return the newest whole mark; without any, nothing is known to be committed.

    Raises LogError if a newer build wrote it.
    """
    path = folder / MARK
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # any other error must not look like a log without a mark
        return Mark()
    return max(_unpack(content, 0, path), _unpack(content, _SLOT.size, path))


def committed_end(mark: Mark, hot: Sequence[HotIndex], hot_from: int) -> int:
    """Return the sequence below which the events of a log are committed, so that readers may see them.

    What is sealed is committed. A mark tells nothing of files that were begun in later turns, nor of a log that lost what
    the mark says was synced.
    """
    if end_of(hot) < mark.synced:
        return hot_from
    later = [index.header.first for index in hot if turn_of(index.path) > mark.synced.turn]
    end = hot[-1].end if hot else hot_from
    return max(hot_from, min([mark.committed, end, *later]))


class MarkFile:
    """Writes the mark of a log that is open for appending."""

    def __init__(self, files: Files, folder: Path) -> None:
        path = folder / MARK
        self._files = files
        self.newest = read_mark(folder)
        self._handle: int | None = files.reopen(path) if path.exists() else files.create(path)

    def put(self, committed: int, synced: Point) -> None:
        """Replace the mark, unless the file is closed; raises OSError, and then the one before still holds."""
        if self._handle is None:
            return
        mark = Mark(self.newest.number + 1, committed, synced)
        self._files.write(self._handle, [_pack(mark)], mark.number % 2 * _SLOT.size)
        self.newest = mark

    def close(self) -> None:
        """Close the file; does nothing if it is closed."""
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None


def _pack(mark: Mark) -> bytes:
    body = _SLOT.pack(_MAGIC, _VERSION, 0, mark.number, mark.committed, *mark.synced)[_CHECKED_FROM:]
    return _SLOT.pack(_MAGIC, _VERSION, _sum(body), mark.number, mark.committed, *mark.synced)


def _unpack(content: bytes, at: int, path: Path) -> Mark:
    slot = content[at : at + _SLOT.size]
    if len(slot) == _SLOT.size:
        magic, version, checksum, number, committed, *synced = _SLOT.unpack(slot)
        matches = checksum == _sum(slot[_CHECKED_FROM:])
        if magic == _MAGIC and version == _VERSION and matches:
            return Mark(number, committed, Point(*synced))
        if magic == _MAGIC and version > _VERSION and not matches:
            raise LogError(LogFault.NEWER, f"{path}: {ON_DISK[0].problem(version)}")
    return Mark()


def _sum(body: bytes) -> int:
    # Not the magic and the version: a change of those makes the slot unreadable as well.
    return xxhash.xxh3_64_intdigest(body)
