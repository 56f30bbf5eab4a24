"""Follow a log: history joined to live, without gap or duplicate, at the reader's own pace.

A tail is a position and nothing else. The log is its queue, so it cannot be overrun; it can only be overtaken by
retention, and then says so with the first sequence that is left. Use it as an iterator, or `take` what is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from meshbus.log.event import LogEvent
from meshbus.log.reader import LogReader
from meshbus.log.snapshot import Snapshot

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
        self.next_seq = since
        """The sequence of the next event it will give."""

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
        for event in self._source.snapshot().events(self.next_seq, self.next_seq + max_events):
            taken.append(event)
            self.next_seq = event.seq + 1
            size += len(event.payload)
            if max_bytes is not None and size >= max_bytes:
                break
        return taken

    def take_batches(self, columns: list[str] | None = None, max_events: int | None = None) -> Iterator[Any]:
        """Take what is there as record batches, without waiting."""
        stop = None if max_events is None else self.next_seq + max_events
        for batch in self._source.snapshot().batches(self.next_seq, stop, columns):
            self.next_seq += len(batch)
            yield batch

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
