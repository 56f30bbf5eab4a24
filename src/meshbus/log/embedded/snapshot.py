"""An embedded log at one moment: its segments, the hot blocks after them, and how to read a range of both.

A snapshot comes from a writer's memory or, without a writer and a lock, from the files (log/embedded/reader.py). It
never shows a row twice: a hot file is sealed as a whole, and below the manifest's `hot_from` only segments count. If a
file disappears while a range is read, because it was sealed, compacted or moved to object storage, the rest is read
from a newer snapshot.

Splits are parts of a snapshot as plain dicts, for other processes: `read_split` of log/embedded/reader.py reads one
even if its files were sealed or compacted since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, to_builtins

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import Wanted, to_batch, wanted
from meshbus.log.embedded.asides import aside_status
from meshbus.log.embedded.hot import HotView
from meshbus.log.embedded.logmanifest import Manifest
from meshbus.log.event import COLUMNS, LogEvent, events_of_batch, events_of_rows
from meshbus.log.files import log_error
from meshbus.log.folder import WAITS
from meshbus.log.segment import Segment, read_segment
from meshbus.log.sequences import SPLIT_ROWS, clip_range
from meshbus.log.status import ReplicaStatus, SegmentFile

_EVENTS = 4_096
"""Rows of a segment that become objects at a time: bounds memory, and is large enough to be fast."""
_HOT_EVENTS = 256
"""Rows of a block that become objects at a time. Our choice: about what a follower is sent at once."""
_PATIENCE = 8
"""How many times in a row files may disappear before a reader gets one more row."""


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """A log at one moment: every sequence from `first` up to `end`, which is excluded."""

    folder: Path
    manifest: Manifest
    hot: tuple[HotView, ...]
    again: Callable[[], Snapshot]
    """Returns a newer snapshot."""
    damage: str = ""
    """What is wrong after `end`, if durable events are damaged there; else empty."""

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self.manifest.channel

    @property
    def log_id(self) -> bytes:
        """16 bytes, drawn when the log was created."""
        return self.manifest.id_bytes

    @property
    def first(self) -> int:
        """The first available sequence."""
        return self.manifest.first

    @property
    def end(self) -> int:
        """One past the last sequence."""
        return max(self.manifest.hot_from, self.hot[-1].end if self.hot else 0)

    @property
    def segments(self) -> tuple[SegmentFile, ...]:
        """The sealed files in order."""
        return tuple(self._file(part) for part in self.manifest.segments)

    @property
    def waits(self) -> str:
        """Why the writer waits for object storage, in one sentence; empty if it does not."""
        try:
            return (self.folder / WAITS).read_text()
        except OSError:
            return ""

    @property
    def replica(self) -> ReplicaStatus | None:
        """What a replicated log has beside these events; None for other logs."""
        known = self.manifest.replica
        return None if known is UNSET else aside_status(self.folder, known.gaps)

    @property
    def sealed_end(self) -> int:
        """One past the last sealed sequence; `first` if nothing is sealed."""
        return self.manifest.hot_from

    @property
    def stored_bytes(self) -> int:
        """Size of the segments and of the hot blocks."""
        sealed = sum(part.bytes for part in self.manifest.segments)
        return sealed + sum(view.place_of(view.blocks) for view in self.hot)

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        dictionaries: bool = True,
    ) -> Iterator[Any]:
        """Yield the rows from `start` to `stop` (excluded) in order, as `pyarrow.RecordBatch`es; all by default.

        A range that extends beyond the end yields what is available. Raises LogError `range_gone`, with the first
        available sequence, if `start` has expired.
        """
        want = wanted(columns, dictionaries=dictionaries)

        def read(snapshot: Snapshot, low: int, high: int) -> Iterator[Any]:
            return snapshot._batches(low, high, want)

        return self._patiently(read, start, stop)

    def events(self, start: int | None = None, stop: int | None = None) -> Iterator[LogEvent]:
        """Yield the same rows as objects; hot rows need no pyarrow."""

        def read(snapshot: Snapshot, low: int, high: int) -> Iterator[list[LogEvent]]:
            return snapshot._events(low, high)

        return chain.from_iterable(self._patiently(read, start, stop))

    def splits(
        self, start: int | None = None, stop: int | None = None, *, rows: int = SPLIT_ROWS
    ) -> list[dict[str, Any]]:
        """Divide a range into parts of about `rows` rows, as plain dicts that `read_split` accepts in any process."""
        low, high = self.check_range(start, stop)
        found: list[dict[str, Any]] = []
        for segment in self.manifest.segments:
            # Whole row groups, so that no two splits decode the same group.
            step = max(rows // segment.group_rows, 1) * segment.group_rows
            edges = [*range(segment.first, segment.end, step), segment.end]
            for begin, end in pairwise(edges):
                found += self._split(max(begin, low), min(end, high), segment=to_builtins(segment))
        for view in self.hot:
            for begin, end in _hot_edges(view, low, high, rows):
                found += self._split(begin, end, hot=_hot_part(view, begin, end))
        return found

    def check_range(self, start: int | None, stop: int | None) -> tuple[int, int]:
        """Clip a range to what is available; raises LogError `range_gone` if its start has expired."""
        return clip_range(self.channel, self.first, self.end, start, stop)

    def _patiently(
        self,
        read: Callable[[Snapshot, int, int], Iterator[Any]],
        start: int | None,
        stop: int | None,
    ) -> Iterator[Any]:
        """Read a range in pieces, and continue with a newer snapshot if a file disappears."""
        at, high = self.check_range(start, stop)
        snapshot, tries = self, 0
        while at < high:
            try:
                for piece in read(snapshot, at, high):
                    # Counted before it is passed on, so that a retry continues after what the caller already has.
                    at += len(piece)
                    tries = 0
                    yield piece
                if at < high:
                    raise LogError(
                        LogFault.CORRUPT, f"{self.folder}: sequence {at} is missing; run `meshbus log verify`"
                    )
            except FileNotFoundError as error:
                # Sealed or compacted since: a newer snapshot has the same rows in other files.
                tries += 1
                if tries > _PATIENCE:
                    raise LogError(LogFault.CORRUPT, f"{error}; restore it from a copy") from None
                snapshot = snapshot.again()
                # Or it expired, which is an error with the first available sequence.
                snapshot.check_range(at, high)
            except OSError as error:
                raise log_error(error, self.folder, "cannot read") from error
        # Reported only after everything before it was read, and only to readers that asked for more.
        if self.damage and (stop is None or stop > self.end):
            raise LogError(LogFault.CORRUPT, self.damage)

    def _batches(self, low: int, high: int, want: Wanted) -> Iterator[Any]:
        for segment in self._segments(low, high):
            yield from read_segment(self.folder, segment, want, low, high)
        for view, begin, end in self._views(low, high):
            for rows in view.rows(begin, end):
                yield to_batch(rows, view.header, want, max(begin, rows.first), min(end, rows.end))

    def _events(self, low: int, high: int) -> Iterator[list[LogEvent]]:
        for segment in self._segments(low, high):
            for batch in read_segment(self.folder, segment, wanted(COLUMNS), low, high):
                for place in range(0, len(batch), _EVENTS):
                    yield events_of_batch(batch.slice(place, _EVENTS))
        for view, begin, end in self._views(low, high):
            for rows in view.rows(begin, end):
                stop = min(end, rows.end)
                # In pieces: a reader that wants a few events of a large append must not pay for all of them.
                for place in range(max(begin, rows.first), stop, _HOT_EVENTS):
                    yield events_of_rows(rows, place, min(place + _HOT_EVENTS, stop))

    def _segments(self, low: int, high: int) -> Iterator[Segment]:
        return (segment for segment in self.manifest.segments if segment.end > low and segment.first < high)

    def _file(self, part: Segment) -> SegmentFile:
        path = self.folder / part.name
        if part.remote is UNSET:
            return SegmentFile(path, part.first, part.end, part.bytes)
        return SegmentFile(path, part.first, part.end, part.bytes, part.remote.uri, path.exists())

    def _views(self, low: int, high: int) -> Iterator[tuple[HotView, int, int]]:
        for view in self.hot:
            begin, end = max(low, view.first), min(high, view.end)
            if begin < end:
                yield view, begin, end

    def _split(self, begin: int, end: int, **where: dict[str, Any]) -> list[dict[str, Any]]:
        if begin >= end:
            return []
        whose = {"v": 1, "folder": str(self.folder), "channel": self.channel, "log_id": self.manifest.log_id}
        return [{**whose, "first": begin, "end": end, **where}]


def _hot_edges(view: HotView, low: int, high: int, rows: int) -> Iterator[tuple[int, int]]:
    """Divide a hot file between blocks into parts of at least `rows` rows, as (first, end)."""
    begin, stop = max(low, view.first), min(high, view.end)
    while begin < stop:
        end = min(view.first_of(view.block_of(min(begin + rows, stop) - 1) + 1), stop)
        yield begin, end
        begin = end


def _hot_part(view: HotView, begin: int, end: int) -> dict[str, Any]:
    """Return where in a hot file the blocks of a range are."""
    low, high = view.block_of(begin), view.block_of(end - 1) + 1
    return {
        "name": view.path.name,
        "first": view.first_of(low),
        "start": view.place_of(low),
        "stop": view.place_of(high),
    }
