"""A log backend in memory: a worked example of log/backend.py, in one file.

It keeps the logs of this process by root and channel, so that they can be closed and opened again; the end of the
process loses them. Appends are the parts that retention removes, and there is nothing to seal.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import to_batch, wanted
from meshbus.log.backend import Given, OpenOptions, Split
from meshbus.log.columns import number
from meshbus.log.event import LogEvent, events_of_rows
from meshbus.log.retention import Unit, expired_until
from meshbus.log.rows import Rows
from meshbus.log.sequences import SPLIT_ROWS, clip_range
from meshbus.log.status import ChannelEntry, Finding, LogStats, ReplicaStatus, Report, SegmentFile
from meshbus.names.channel import ChannelName


class Part(NamedTuple):
    """The events of one append."""

    rows: Rows
    written_ns: int


class Content:
    """The events of one log, which outlive the writer."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.log_id = os.urandom(16)
        self.first = self.end = 0
        self.parts: tuple[Part, ...] = ()
        self.locked = False


class Snapshot:
    """The log at one moment: parts never change, so a reference to them is enough."""

    def __init__(self, root: Path, content: Content) -> None:
        self.channel, self.log_id = content.channel, content.log_id
        self.first, self.end = content.first, content.end
        self.sealed_end = content.first
        self.segments: tuple[SegmentFile, ...] = ()
        self.damage = self.waits = ""
        self.replica: ReplicaStatus | None = None
        self._root, self._parts = root, content.parts

    @property
    def stored_bytes(self) -> int:
        return sum(len(part.rows.data) for part in self._parts)

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        dictionaries: bool = True,
    ) -> Iterator[Any]:
        want = wanted(columns, dictionaries=dictionaries)
        for rows, low, high in self._pieces(start, stop):
            yield to_batch(rows, self, want, low, high)

    def events(self, start: int | None = None, stop: int | None = None) -> Iterator[LogEvent]:
        for rows, low, high in self._pieces(start, stop):
            yield from events_of_rows(rows, low, high)

    def splits(self, start: int | None = None, stop: int | None = None, *, rows: int = SPLIT_ROWS) -> list[Split]:
        low, high = clip_range(self.channel, self.first, self.end, start, stop)
        where = {"backend": "memory", "root": str(self._root), "channel": self.channel}
        return [{**where, "first": at, "end": min(at + rows, high)} for at in range(low, high, rows)]

    def _pieces(self, start: int | None, stop: int | None) -> Iterator[tuple[Rows, int, int]]:
        low, high = clip_range(self.channel, self.first, self.end, start, stop)
        for rows, _ in self._parts:
            if max(low, rows.first) < min(high, rows.end):
                yield rows, max(low, rows.first), min(high, rows.end)


class Reader:
    """Reads a log that may have a writer or not."""

    def __init__(self, logs: "Memory", root: Path, channel: ChannelName) -> None:
        self._logs, self._root, self._channel = logs, root, channel

    def snapshot(self) -> Snapshot:
        content = self._logs.contents.get((self._root, self._channel))
        if content is None:
            raise LogError(LogFault.UNKNOWN, f"no log of {self._channel}")
        return Snapshot(self._root, content)

    def verify(self) -> list[Finding]:
        return []


class Writer:
    """A log open for appending."""

    def __init__(self, root: Path, content: Content, options: OpenOptions, report: Report) -> None:
        if content.locked:
            raise LogError(LogFault.LOCKED, f"the log of {content.channel} is open already")
        content.locked = True
        self.report, self.stats, self.closed, self.failed = report, LogStats(), False, False
        self._root, self._content, self._options = root, content, options
        self._more = threading.Condition()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def log_id(self) -> bytes:
        return self._content.log_id

    @property
    def first(self) -> int:
        return self._content.first

    @property
    def end(self) -> int:
        return self._content.end

    durable = end

    def append(
        self, count: int, offsets: bytes | memoryview, data: bytes | memoryview, given: Given | None, now_ns: int
    ) -> int:
        content = self._content
        with self._more:
            self._check_open()
            first = content.end
            if not count:
                return first
            cells, headers = given or self._options.defaults.cells({}, count, now_ns)
            edges = np.frombuffer(bytes(offsets), np.int32)
            rows = Rows(first, tuple(number(cells, first)), edges, memoryview(bytes(data)), headers)
            content.parts, content.end = (*content.parts, Part(rows, now_ns)), rows.end
            self.stats.appended += count
            self._more.notify_all()
        self._call_back()
        return first

    def sync(self) -> None:
        self._check_open()

    def snapshot(self) -> Snapshot:
        return Snapshot(self._root, self._content)

    def verify(self) -> list[Finding]:
        return []

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        with self._more:
            self._more.wait_for(lambda: self.closed or self.end > seq, timeout_s)
            return self.end > seq

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def seal(self) -> int:
        self._check_open()
        return 0

    def compact(self) -> int:
        self._check_open()
        return 0

    def retain(self) -> int:
        with self._more:
            self._check_open()
            content = self._content
            units = [Unit(rows.end, len(rows.data), written) for rows, written in content.parts]
            until = expired_until(units, content.end, 0, self._options.config.retention, self._options.clock())
            gone = max(until - content.first, 0)
            content.first = max(content.first, until)
            content.parts = tuple(part for part in content.parts if part.rows.end > until)
            self.stats.expired += gone
            return gone

    tiers = False

    def tier(self) -> int:
        self._check_open()
        return 0

    def keep_tier(self, cancelled: Callable[[], bool]) -> None:
        pass

    def keep(self) -> None:
        if not self.closed:
            self.retain()

    def close(self) -> None:
        with self._more:
            if self.closed:
                return
            self.closed = True
            self._content.locked = False
            self._more.notify_all()
        self._call_back()

    def _check_open(self) -> None:
        if self.closed:
            raise LogError(LogFault.CLOSED, f"the log of {self._content.channel} is closed; open it again")

    def _call_back(self) -> None:
        for callback in tuple(self._callbacks):
            callback()


class Memory:
    """The row of the table."""

    def __init__(self) -> None:
        self.contents: dict[tuple[Path, ChannelName], Content] = {}

    def open(self, root: Path, options: OpenOptions) -> Writer:
        key = root, options.channel
        created = key not in self.contents
        content = self.contents.setdefault(key, Content(options.channel))
        return Writer(root, content, options, Report(created=created))

    def reader(self, root: Path, channel: ChannelName) -> Reader:
        return Reader(self, root, channel)

    def exists(self, root: Path, channel: ChannelName) -> bool:
        return (root, channel) in self.contents

    def find(self, root: Path) -> tuple[list[ChannelEntry], list[LogError]]:
        found = [content for (place, _), content in self.contents.items() if place == root]
        entries = [ChannelEntry(content.channel, root, content.log_id.hex()) for content in found]
        return sorted(entries, key=lambda entry: entry.channel), []

    def read_split(
        self, split: Mapping[str, Any], columns: Sequence[str] | None, *, dictionaries: bool
    ) -> Iterator[Any]:
        snapshot = self.reader(Path(split["root"]), ChannelName(split["channel"])).snapshot()
        return snapshot.batches(split["first"], split["end"], columns, dictionaries=dictionaries)
