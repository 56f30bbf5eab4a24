"""Follow a log: first the stored events, then new ones, without gaps or duplicates, at the reader's own pace.

A tail is only a position. The log is its queue, so a slow reader loses nothing unless retention overtakes it; then
`take` raises an error with the first available sequence. Use a tail as an iterator, or `take` what is available.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from meshbus.errors import LogError
from meshbus.log.backend import Snapshot
from meshbus.log.event import LogEvent
from meshbus.log.reader import LogReader

MAX_EVENTS = 1_024
"""Events that `take` returns at most by default: a few hundred kilobytes of small events."""


class Source(Protocol):
    """A log that can be followed."""

    def snapshot(self) -> Snapshot:
        """Return the log as it is now."""

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an event at a sequence; return False on timeout or if there will be none."""


class Tail:
    """A position in a log that advances as events are taken."""

    def __init__(self, source: Source, since: int) -> None:
        self._source = source
        self._next = since
        self._reading: Iterator[LogEvent] | None = None
        """The rest of the snapshot that is being read."""

    @property
    def next_seq(self) -> int:
        """The sequence of the next event to take; set it to continue elsewhere."""
        return self._next

    @next_seq.setter
    def next_seq(self, seq: int) -> None:
        self._next, self._reading = seq, None

    def __iter__(self) -> Iterator[LogEvent]:
        """Yield events and wait for more until the log is closed."""
        while True:
            events = self.take()
            yield from events
            if not events and not self._source.wait_beyond(self.next_seq):
                return

    def take(self, max_events: int = MAX_EVENTS, max_bytes: int | None = None) -> list[LogEvent]:
        """Return the next events that are available, without waiting.

        Stops after `max_events` events, or with the event that brings the payloads to `max_bytes`. Raises LogError
        `range_gone`, with the first available sequence, if retention has overtaken the tail; set `next_seq` to that
        sequence to continue after the gap.
        """
        taken: list[LogEvent] = []
        size = 0
        while len(taken) < max_events and (events := self._begin()) is not None:
            for event in self._guarded(events):
                taken.append(event)
                # Set for each event: if reading fails, the tail continues after the last event that was returned.
                self._next = event.seq + 1
                size += len(event.payload)
                if len(taken) >= max_events or (max_bytes is not None and size >= max_bytes):
                    return taken
            self._reading = None
        return taken

    def take_batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield everything that is available as record batches, without waiting."""
        for batch in self._source.snapshot().batches(self.next_seq, None, columns):
            self.next_seq += len(batch)
            yield batch

    def _begin(self) -> Iterator[LogEvent] | None:
        """Continue with the current snapshot or take a new one; return None if there is nothing new."""
        if self._reading is None:
            snapshot = self._source.snapshot()
            # A tail may start beyond the end; events are returned when the log gets there (redex.md §1).
            if snapshot.end > self._next:
                self._reading = snapshot.events(self._next)
        return self._reading

    def _guarded(self, events: Iterator[LogEvent]) -> Iterator[LogEvent]:
        """Yield events, and drop the snapshot if reading fails, so that the next call takes a newer one."""
        try:
            yield from events
        except LogError:
            self._reading = None
            raise

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is something to take; return False on timeout or if the log was closed."""
        return self._source.wait_beyond(self.next_seq, timeout_s)


class Followed:
    """A log that another process writes, polled for new events: its appends wake no thread of this process."""

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
        """Poll until there is an event at a sequence; return False on timeout or if `stopped` is set."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        while self._reader.snapshot().end <= seq:
            if deadline is not None and self._clock() >= deadline:
                return False
            # An event instead of a sleep, so that a stop takes effect at once.
            if self._stopped.wait(self._poll_s):
                return False
        return True
