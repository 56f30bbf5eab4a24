"""Follow a log: history joined to live, without gap or duplicate, at the reader's own pace.

A tail is a position and nothing else. The log is its queue, so it cannot be overrun; it can only be overtaken by
retention, and then says so with the first sequence that is left. Use it as an iterator, or `take` what is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from meshbus.errors import LogError
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.event import LogEvent
from meshbus.log.reader import LogReader

MAX_EVENTS = 1_024
"""Taken at once, unless said otherwise."""


class Source(Protocol):
    """A log that can be followed."""

    def snapshot(self) -> Snapshot:
        """Give it as it is now."""

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait for an event at a sequence."""


class Tail:
    """A place in a log that moves on."""

    def __init__(self, source: Source, since: int) -> None:
        self._source = source
        self._next = since
        self._reading: Iterator[LogEvent] | None = None
        """What is left of the snapshot that was begun."""

    @property
    def next_seq(self) -> int:
        """The sequence of the next event it will give; set it to go on elsewhere."""
        return self._next

    @next_seq.setter
    def next_seq(self, seq: int) -> None:
        self._next, self._reading = seq, None

    def __iter__(self) -> Iterator[LogEvent]:
        """Give events for ever, or until the log is closed."""
        while True:
            events = self.take()
            yield from events
            if not events and not self._source.wait_beyond(self.next_seq):
                return

    def take(self, max_events: int = MAX_EVENTS, max_bytes: int | None = None) -> list[LogEvent]:
        """Take what is there, without waiting: at most so many events, and payloads of about so many bytes.

        Raises LogError `range_gone`, with the first available sequence, when retention has overtaken the tail; set
        `next_seq` to it to go on after the gap.
        """
        taken: list[LogEvent] = []
        size = 0
        while len(taken) < max_events and (events := self._begin()) is not None:
            for event in self._guarded(events):
                taken.append(event)
                self._next = event.seq + 1
                size += len(event.payload)
                if len(taken) >= max_events or (max_bytes is not None and size >= max_bytes):
                    return taken
            self._reading = None
        return taken

    def take_batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Take what is there as record batches, without waiting."""
        for batch in self._source.snapshot().batches(self.next_seq, None, columns):
            self.next_seq += len(batch)
            yield batch

    def _begin(self) -> Iterator[LogEvent] | None:
        """Go on with the snapshot that was begun, or begin one; None when there is nothing new."""
        if self._reading is None:
            snapshot = self._source.snapshot()
            if snapshot.end > self._next:
                self._reading = snapshot.events(self._next)
        return self._reading

    def _guarded(self, events: Iterator[LogEvent]) -> Iterator[LogEvent]:
        """Give events, and forget the snapshot when it fails: the next try takes a newer one."""
        try:
            yield from events
        except LogError:
            self._reading = None
            raise

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is something to take; False when the time is up or the log was closed."""
        return self._source.wait_beyond(self.next_seq, timeout_s)


class Followed:
    """A log of another process, looked at again and again: appends over there tell nobody here."""

    def __init__(
        self,
        reader: LogReader,
        poll_s: float = 0.05,
        *,
        clock: Callable[[], float] = time.monotonic,
        stopped: threading.Event | None = None,
    ) -> None:
        self._reader, self._poll_s, self._clock = reader, poll_s, clock
        self._stopped = stopped or threading.Event()
        self.snapshot = reader.snapshot

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Look until there is an event at a sequence; False when the time is up or `stopped` is set."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        while self._reader.snapshot().end <= seq:
            if deadline is not None and self._clock() >= deadline:
                return False
            if self._stopped.wait(self._poll_s):
                return False
        return True
