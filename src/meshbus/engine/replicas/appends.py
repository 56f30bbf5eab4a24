"""Appends that wait for their acknowledgement, in the order of the log; bounded."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from meshbus.engine.replicas.records import Acknowledged, Acks, Out, Unresolved


class _Waiting(NamedTuple):
    token: int
    first_seq: int
    events: int

    @property
    def end(self) -> int:
        return self.first_seq + self.events


class Appends:
    """What a leader has appended and not acknowledged. One commit acknowledges many appends."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._waiting: dict[Acks, deque[_Waiting]] = {acks: deque() for acks in Acks}
        self._events = 0

    def has_room(self, count: int) -> bool:
        """Return whether so many more events may wait; a single append always may."""
        return not self._events or self._events + count <= self._max_events

    def add(self, token: int, first_seq: int, count: int, acks: Acks) -> None:
        """Record an append."""
        self._events += count
        self._waiting[acks].append(_Waiting(token, first_seq, count))

    def reached(self, acks: Acks, tail: int, out: Out, *, confirmed: bool) -> None:
        """Acknowledge what ends at or before a sequence and asked for this durability."""
        waiting = self._waiting[acks]
        while waiting and waiting[0].end <= tail:
            done = waiting.popleft()
            self._events -= done.events
            out.notices.append(Acknowledged(done.token, done.first_seq, done.events, acks, confirmed))

    def give_up(self, out: Out) -> None:
        """Report what was not acknowledged, because this node leads no more."""
        rest = sorted((one for waiting in self._waiting.values() for one in waiting), key=lambda one: one.first_seq)
        out.notices.extend(Unresolved(one.token, one.first_seq, one.events) for one in rest)
        for waiting in self._waiting.values():
            waiting.clear()
        self._events = 0
