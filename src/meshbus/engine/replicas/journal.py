"""Journal: the log and the ballot of a member as the core sees them, appended and durable.

The core never touches files. It records here what it wants written and gets numbered writes out; `durable` reports how
far they survive a loss of power. Writes are carried out in order, so the durable state is always that of a prefix of
the writes. The newest events are kept in memory: they can be sent before the disk has them, and mostly are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from meshbus.engine.replicas.recent import Recent
from meshbus.engine.replicas.records import AppendEvents, Ballot, LogReader, Out, PersistBallot, SetAside, SkipTo
from meshbus.engine.replicas.runs import EpochRuns
from meshbus.wire.column import fitting


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on disk. Everything is durable."""

    ballot: Ballot | None = None
    """None if the disk has no memory of this channel."""
    tail: int = 0
    """The next sequence."""
    first_retained: int = 0
    committed: int = 0
    """The events below were known to be committed. What the core does not know to be committed, it may set aside."""
    runs: tuple[tuple[int, int], ...] = ()
    """Epochs with the sequence at which each starts."""
    damaged: bool = False
    """Whether events that were durable are missing or unreadable, so that the log was cut before them."""


class _State(NamedTuple):
    """The state after a write."""

    number: int
    ballot: Ballot
    tail: int
    last_epoch: int


class Journal:
    """One log and its ballot."""

    def __init__(self, found: Recovered, ballot: Ballot, reader: LogReader) -> None:
        self._reader = reader
        self._recent = Recent()
        self.ballot = ballot
        self.tail = found.tail
        self.first_retained = found.first_retained
        self.runs = EpochRuns(found.runs)
        self.number = 0
        """The number of the last write."""
        self.synced = _State(0, ballot, self.tail, self.runs.last_epoch)
        """The state that survives a loss of power."""
        self._unsynced: deque[_State] = deque()
        self._cuts: deque[tuple[int, int]] = deque()
        """Number and sequence of each write that sets events aside and is not durable."""

    @property
    def stable_tail(self) -> int:
        """How far the log is durable as it is now: what will be set aside does not count, though it is on disk."""
        return min([self.synced.tail, *(seq for _, seq in self._cuts)])

    def persist(self, ballot: Ballot, out: Out) -> int:
        """Replace the ballot, and return the number of the write."""
        self.ballot = ballot
        number = self._next()
        out.writes.append(PersistBallot(number, ballot))
        return self._written(number)

    def append(self, epoch: int, payloads: Sequence[bytes], out: Out) -> int:
        """Append events, or record the start of an epoch, and return the number of the write."""
        # Not a list: the caller may change it.
        events = tuple(payloads) if isinstance(payloads, list) else payloads
        number = self._next()
        out.writes.append(AppendEvents(number, epoch, self.tail, events))
        self.runs.append(epoch, self.tail)
        self._recent.append(self.tail, events)
        self.tail += len(events)
        return self._written(number)

    def set_aside(self, seq: int, out: Out) -> int:
        """Move the events from a sequence on out of the log."""
        number = self._next()
        out.writes.append(SetAside(number, seq))
        self._cuts.append((number, seq))
        self.runs.truncate(seq)
        self._recent.truncate(seq)
        self.tail = seq
        return self._written(number)

    def skip_to(self, seq: int, epoch: int, out: Out) -> int:
        """Continue at a later sequence; `epoch` is that of the last event before it."""
        number = self._next()
        out.writes.append(SkipTo(number, seq, epoch))
        self.runs = EpochRuns([(epoch, self.tail)])
        self._recent.truncate(0)
        self.tail = self.first_retained = seq
        return self._written(number)

    def retained(self, first_seq: int) -> None:
        """Record that retention removed the events below a sequence."""
        if first_seq > self.first_retained:
            self.first_retained = min(first_seq, self.tail)
            self.runs.trim(self.first_retained)

    def read(self, first_seq: int, max_events: int, max_bytes: int, cost: int) -> Sequence[bytes]:
        """Return payloads from a sequence on that fit into `max_bytes`, with `cost` bytes for each in addition."""
        if first_seq not in self._recent:
            return fitting(self._reader.read(first_seq, max_events, max_bytes), max_bytes, cost)
        return self._recent.read(first_seq, first_seq + max_events, max_bytes, cost)

    def lacking(self, tail: int) -> int | None:
        """Return how many bytes of events a log that ends earlier lacks; None if not all of them are in memory."""
        return 0 if tail >= self.tail else self._recent.nbytes_from(tail)

    def durable(self, number: int) -> None:
        """Record that a write and all before it are durable."""
        while self._unsynced and self._unsynced[0].number <= number:
            self.synced = self._unsynced.popleft()
        while self._cuts and self._cuts[0][0] <= number:
            self._cuts.popleft()

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _written(self, number: int) -> int:
        self._unsynced.append(_State(number, self.ballot, self.tail, self.runs.last_epoch))
        return number
