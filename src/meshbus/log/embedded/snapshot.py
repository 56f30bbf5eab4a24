"""A log as it was at a moment: what is sealed, the hot blocks behind it, and how to read a range of them.

A snapshot comes from a writer's memory or, without any writer and without a lock, from the files (log/reader.py). It
never shows a row twice: a hot file is sealed as a whole, and below the manifest's `hot_from` only segments count. When a file
goes away while a range is read (sealed, compacted), the rest is read from a newer snapshot, from the next row on.

Splits are parts of a snapshot as plain dicts, for other processes: `read_split` of log/reader.py reads one, whatever has
happened to the files since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import Wanted, to_batch, wanted
from meshbus.log.embedded.hot import HotView
from meshbus.log.embedded.logmanifest import Manifest, Segment
from meshbus.log.event import COLUMNS, LogEvent, events_of_batch, events_of_rows
from meshbus.log.segment import read_segment

SPLIT_ROWS = 131_072
"""Rows of one split, about: a second of work for a Python worker at most."""

_EVENTS = 4_096
"""Rows of a segment that are made objects at a time."""
_PATIENCE = 8
"""How often files may vanish below a reader without one row of progress."""


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """What a log holds: every sequence from `first` up to `end`, which is excluded."""

    folder: Path
    manifest: Manifest
    hot: tuple[HotView, ...]
    again: Callable[[], Snapshot]
    """Takes a newer one."""
    damage: str = ""
    """What is wrong behind the end, where acknowledged events are damaged."""

    @property
    def channel(self) -> str:
        """The name of the channel."""
        return self.manifest.channel

    @property
    def first(self) -> int:
        """The first sequence that is available."""
        return self.manifest.first

    @property
    def end(self) -> int:
        """One past the last sequence."""
        return max(self.manifest.hot_from, self.hot[-1].end if self.hot else 0)

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        dictionaries: bool = True,
    ) -> Iterator[Any]:
        """Give the rows from `start` to `stop` (excluded) as `pyarrow.RecordBatch`es in order; all by default.

        A range that reaches beyond the end gives what is there. Raises LogError `range_gone`, with the first available
        sequence, when `start` has expired.
        """
        want = wanted(columns, dictionaries=dictionaries)

        def read(snapshot: Snapshot, low: int, high: int) -> Iterator[Any]:
            return snapshot._batches(low, high, want)

        return self._patiently(read, start, stop)

    def events(self, start: int | None = None, stop: int | None = None) -> Iterator[LogEvent]:
        """Give the same rows as objects, one by one; hot rows need no pyarrow."""

        def read(snapshot: Snapshot, low: int, high: int) -> Iterator[list[LogEvent]]:
            return snapshot._events(low, high)

        return chain.from_iterable(self._patiently(read, start, stop))

    def splits(
        self, start: int | None = None, stop: int | None = None, *, rows: int = SPLIT_ROWS
    ) -> list[dict[str, Any]]:
        """Divide a range into parts of about so many rows, as plain dicts that `read_split` takes in any process."""
        low, high = self.check_range(start, stop)
        found: list[dict[str, Any]] = []
        for segment in self.manifest.segments:
            step = max(rows // segment.group_rows, 1) * segment.group_rows
            edges = [*range(segment.first, segment.end, step), segment.end]
            for begin, end in pairwise(edges):
                found += self._split(max(begin, low), min(end, high), segment=to_builtins(segment))
        for view in self.hot:
            for begin, end in _hot_edges(view, low, high, rows):
                found += self._split(begin, end, hot=_hot_part(view, begin, end))
        return found

    def check_range(self, start: int | None, stop: int | None) -> tuple[int, int]:
        """Cut a range to what is there; raises LogError `range_gone` when its start has expired."""
        low = self.first if start is None else start
        high = self.end if stop is None else min(stop, self.end)
        if low < self.first and (stop is None or stop > low):
            raise LogError(
                LogFault.RANGE_GONE,
                f"channel {self.channel}: sequence {low} has expired, the first available is {self.first}:"
                f" read from {self.first} on",
                first_available=self.first,
            )
        return low, high

    def _patiently(
        self,
        read: Callable[[Snapshot, int, int], Iterator[Any]],
        start: int | None,
        stop: int | None,
    ) -> Iterator[Any]:
        """Read a range in pieces, and go on with a newer snapshot where a file went away."""
        at, high = self.check_range(start, stop)
        snapshot, tries = self, 0
        while at < high:
            try:
                for piece in read(snapshot, at, high):
                    at += len(piece)
                    tries = 0
                    yield piece
                if at < high:
                    raise LogError(LogFault.CORRUPT, f"{self.folder}: there is nothing at sequence {at}")
            except FileNotFoundError as error:
                tries += 1
                if tries > _PATIENCE:
                    raise LogError(LogFault.CORRUPT, f"{error}: restore it from a copy") from None
                snapshot = snapshot.again()
                snapshot.check_range(at, high)
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
                yield events_of_rows(rows, max(begin, rows.first), min(end, rows.end))

    def _segments(self, low: int, high: int) -> Iterator[Segment]:
        return (segment for segment in self.manifest.segments if segment.end > low and segment.first < high)

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
    """Divide the blocks of a hot file at block borders, into parts of at least so many rows."""
    begin, stop = max(low, view.first), min(high, view.end)
    while begin < stop:
        end = min(view.first_of(view.block_of(min(begin + rows, stop) - 1) + 1), stop)
        yield begin, end
        begin = end


def _hot_part(view: HotView, begin: int, end: int) -> dict[str, Any]:
    """Say where in a hot file the blocks of a range are."""
    low, high = view.block_of(begin), view.block_of(end - 1) + 1
    return {
        "name": view.path.name,
        "first": view.first_of(low),
        "start": view.place_of(low),
        "stop": view.place_of(high),
    }
