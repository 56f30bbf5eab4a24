"""A disk in memory that loses what was not synced, and may fail: what a node's real disk has to do."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.records import AppendEvents, Ballot, PersistBallot, SetAside, SkipTo, Write


@dataclass
class Content:
    """What is on a disk: a ballot, events with their epochs, and what was set aside."""

    ballot: Ballot | None = None
    first: int = 0
    events: list[tuple[int, bytes]] = field(default_factory=list)
    """Epoch and payload of each event, from `first` on."""
    before: int = 0
    """The epoch of the event before `first`."""
    started: int | None = None
    """An epoch that started at the end of the log and has no events yet."""
    aside: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Sequence, epoch and payload of events that were set aside."""
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def tail(self) -> int:
        return self.first + len(self.events)

    def apply(self, write: Write) -> None:
        match write:
            case PersistBallot(ballot=ballot):
                self.ballot = ballot
            case AppendEvents(epoch=epoch, first_seq=seq, payloads=payloads):
                assert seq == self.tail, "events are appended at the end"
                self.events += [(epoch, payload) for payload in payloads]
                self.started = None if payloads or self._epoch_before(seq) == epoch else epoch
            case SetAside(first_seq=seq):
                self._set_aside(seq)
            case SkipTo(first_seq=seq, epoch=epoch):
                assert seq > self.tail, "a gap leads forward"
                self.gaps.append((self.tail, seq))
                self.events, self.first, self.before, self.started = [], seq, epoch, None

    def trim(self, seq: int) -> None:
        """Remove events by retention."""
        gone = max(0, seq - self.first)
        if gone:
            self.before = self.events[gone - 1][0]
            del self.events[:gone]
            self.first += gone

    def payload_at(self, seq: int) -> bytes:
        return self.events[seq - self.first][1]

    def recovered(self) -> Recovered:
        runs = [(self.before, self.first - 1)] if self.before else []
        for seq, (epoch, _) in enumerate(self.events, self.first):
            if not runs or runs[-1][0] != epoch:
                runs.append((epoch, seq))
        if self.started is not None:
            runs.append((self.started, self.tail))
        return Recovered(ballot=self.ballot, tail=self.tail, first_retained=self.first, runs=tuple(runs))

    def _epoch_before(self, seq: int) -> int:
        return self.events[seq - self.first - 1][0] if seq > self.first else self.before

    def _set_aside(self, seq: int) -> None:
        assert self.first <= seq <= self.tail, "only what is there is set aside"
        if seq < self.tail:
            epoch = self.events[seq - self.first][0]
            # The epoch that started exactly here stays known (runs.py tells why).
            self.started = epoch if self._epoch_before(seq) != epoch else None
        rest = self.events[seq - self.first :]
        self.aside += [(number, epoch, payload) for number, (epoch, payload) in enumerate(rest, seq)]
        del self.events[seq - self.first :]


class MemoryDisk:
    """Written content, and the writes that a loss of power may undo, from the last one backward."""

    def __init__(self) -> None:
        self.content = Content()
        self._synced = Content()
        self._unsynced: list[Write] = []

    def write(self, write: Write) -> None:
        self.content.apply(write)
        self._unsynced.append(write)

    def sync(self, number: int) -> None:
        """Make a write and all before it survive."""
        while self._unsynced and self._unsynced[0].number <= number:
            self._synced.apply(self._unsynced.pop(0))

    def lose_power(self, rng: random.Random) -> None:
        """Undo writes that were not synced: none, some of the last ones, or all."""
        for write in self._unsynced[: rng.randint(0, len(self._unsynced))]:
            self._synced.apply(write)
        self._unsynced = []
        self.content = copy.deepcopy(self._synced)

    def damage(self, count: int) -> None:
        """Lose the last events although they were synced, as if their blocks could not be read."""
        for content in (self.content, self._synced):
            del content.events[max(0, len(content.events) - count) :]
            content.started = None

    def trim(self, seq: int) -> None:
        """Retention; only of what is synced, and not while a write that is not synced will move what it would remove."""
        if any(isinstance(write, SetAside | SkipTo) for write in self._unsynced):
            return
        self.content.trim(min(seq, self._synced.tail))
        self._synced.trim(min(seq, self._synced.tail))

    def read(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[bytes, ...]:
        """Return payloads from a sequence on."""
        at = first_seq - self.content.first
        assert 0 <= at < len(self.content.events), "only events of the log are read"
        return tuple(payload for _, payload in self.content.events[at : at + min(max_events, 64)])
