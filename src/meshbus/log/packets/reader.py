"""Read recorded packets from any process: no lock, no writer, no waiting.

    for recorder in list_recorders(log_dir): ...
    snapshot = PacketReader(log_dir, recorder).snapshot()
    for batch in snapshot.batches(columns=["ts", "verdict", "reason"]): ...
    splits = snapshot.splits()            # plain dicts; in another process: read_split(split, columns)
    policies = load_policies(snapshot.folder)

A row is never read twice: hot files are listed before sealed ones, and a hot file whose first row is sealed is ignored.
If a file disappears while it is read, it was sealed, and its rows are read from the sealed file; or it expired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import Wanted, wanted
from meshbus.log.files import reading
from meshbus.log.folder import HOT, hot_files, segment_range
from meshbus.log.packets.arrow import to_batch
from meshbus.log.packets.block import UnknownFile
from meshbus.log.packets.hotfile import read_hot
from meshbus.log.packets.runs import Piece
from meshbus.log.packets.store import GROUP_ROWS, RECORDERS, folder_of
from meshbus.log.schema import PACKETS
from meshbus.log.segment import Segment, read_segment
from meshbus.log.status import SegmentFile

SPLIT_ROWS = 4 * GROUP_ROWS
"""Target size of a split in rows: at most about a second of work for a Python worker."""
_TRIES = 64
"""Attempts to take one snapshot while files are being sealed; each seal takes much longer than an attempt."""


class Part(msgspec.Struct, frozen=True):
    """One file and the range of its rows."""

    name: str
    first: int
    end: int
    sealed: bool


def list_recorders(log_dir: Path | str) -> list[int]:
    """Return the ids of the nodes that have recorded packets below a log folder."""
    folders = (Path(log_dir) / RECORDERS).glob("[0-9a-f]" * 16)
    return sorted(int(path.name, 16) for path in folders)


class PacketReader:
    """Reads the recorded packets of one node."""

    def __init__(self, log_dir: Path | str, recorder: int) -> None:
        self.folder = folder_of(Path(log_dir), recorder)
        self.recorder = recorder

    def snapshot(self) -> PacketSnapshot:
        """Return what is recorded now; raises LogError if this node has recorded nothing here."""
        with reading(self.folder):
            return _take_snapshot(self.folder)


class PacketSnapshot(msgspec.Struct, frozen=True):
    """The recorded packets of a node at one moment."""

    folder: Path
    parts: tuple[Part, ...]
    """In the order of their rows."""
    newest: int = 0
    """The first row of the newest hot file: where numbering continues if everything before it has expired."""

    @property
    def first(self) -> int:
        """The number of the first available row."""
        return self.parts[0].first if self.parts else self.newest

    @property
    def end(self) -> int:
        """One past the number of the last row."""
        return self.parts[-1].end if self.parts else self.newest

    @property
    def segments(self) -> tuple[SegmentFile, ...]:
        """The sealed files in order."""
        paths = ((part, self.folder / part.name) for part in self.parts if part.sealed)
        return tuple(SegmentFile(path, part.first, part.end, _size(path)) for part, path in paths)

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        dictionaries: bool = True,
    ) -> Iterator[Any]:
        """Yield the rows from `start` to `stop` (excluded) in order, as `pyarrow.RecordBatch`es; all by default.

        Rows that expire meanwhile are left out. Raises LogError if a file is damaged.
        """
        want = wanted(columns, dictionaries=dictionaries, table=PACKETS)
        low, high = self.first if start is None else start, self.end if stop is None else min(stop, self.end)
        for part in self.parts:
            if part.end > low and part.first < high:
                with reading(self.folder):
                    yield from _read_or_find(self.folder, part, want, max(low, part.first), min(high, part.end))

    def splits(
        self, start: int | None = None, stop: int | None = None, *, rows: int = SPLIT_ROWS
    ) -> list[dict[str, Any]]:
        """Divide a range into parts of about `rows` rows, as plain dicts that `read_split` accepts in any process."""
        low, high = self.first if start is None else start, self.end if stop is None else min(stop, self.end)
        found = []
        for part in self.parts:
            # Sealed files by whole row groups; a hot file is parsed as a whole anyway.
            step = max(rows // GROUP_ROWS, 1) * GROUP_ROWS if part.sealed else part.end - part.first
            for begin, end in pairwise([*range(part.first, part.end, step), part.end]):
                if max(begin, low) < min(end, high):
                    where = {"v": 1, "folder": str(self.folder), "part": msgspec.to_builtins(part)}
                    found.append({**where, "first": max(begin, low), "end": min(end, high)})
        return found


def read_split(
    split: Mapping[str, Any], columns: Sequence[str] | None = None, *, dictionaries: bool = True
) -> Iterator[Any]:
    """Yield the rows of a split as record batches, even if they were sealed since it was planned.

    Rows that have expired since are left out. Raises LogError if a file is damaged.
    """
    want = wanted(columns, dictionaries=dictionaries, table=PACKETS)
    part = msgspec.convert(split["part"], Part)
    folder = Path(split["folder"])
    with reading(folder):
        yield from _read_or_find(folder, part, want, int(split["first"]), int(split["end"]))


def _take_snapshot(folder: Path) -> PacketSnapshot:
    if not (folder / HOT).is_dir():
        raise LogError(
            LogFault.UNKNOWN, f"no packets were recorded in {folder}; set record_packets in the node's configuration"
        )
    for _ in range(_TRIES):
        try:
            # Hot files first: what is sealed between the two listings is then seen twice and filtered, not missed.
            listed = hot_files(folder)
            hot = [_hot_part(first, path) for first, path in listed]
        except FileNotFoundError:
            continue  # sealed meanwhile
        sealed = [
            Part(path.name, *span, sealed=True) for path in folder.iterdir() if (span := segment_range(path.name))
        ]
        sealed.sort(key=lambda part: part.first)
        sealed_end = sealed[-1].end if sealed else 0
        # A hot file whose rows are sealed may still exist for a moment.
        live = [part for part in hot if part is not None and part.first >= sealed_end]
        return PacketSnapshot(folder, (*sealed, *live), listed[-1][0] if listed else 0)
    raise LogError(LogFault.FAILED, f"{folder} is sealed faster than it can be read; try again")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it expired
        return 0


def _hot_part(first: int, path: Path) -> Part | None:
    try:
        content = read_hot(path)
    except UnknownFile:
        return None  # it is being created
    return Part(path.name, first, content.end, sealed=False) if content.end > first else None


def _read_or_find(folder: Path, part: Part, want: Wanted, low: int, high: int) -> Iterator[Any]:
    """Read rows of a file, or of the file that they were sealed into since."""
    try:
        yield from _read(folder, part, want, low, high)
    except FileNotFoundError:
        if part.sealed:
            return  # expired
        for newer in _take_snapshot(folder).parts:
            if newer.sealed and newer.end > low and newer.first < high:
                yield from _read_or_find(folder, newer, want, max(low, newer.first), min(high, newer.end))


def _read(folder: Path, part: Part, want: Wanted, low: int, high: int) -> Iterator[Any]:
    if part.sealed:
        segment = Segment(part.name, part.first, part.end, 0, GROUP_ROWS, 0)
        yield from read_segment(folder, segment, want, low, high)
        return
    content = read_hot(folder / HOT / part.name)
    for first, rows in content.blocks:
        begin, end = max(low, first), min(high, first + rows.length)
        if begin < end:
            yield to_batch([Piece(rows, begin - first, end - first)], content.names, content.info, want)
