"""Appends that wait for their acknowledgement, in the order of the log; bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from meshbus.engine.replicas.records import Acknowledged, Acks, Out, Unresolved
from meshbus.wire.column import nbytes_of


class _Waiting(NamedTuple):
    token: int
    first_seq: int
    events: int
    size: int

    @property
    def end(self) -> int:
        return self.first_seq + self.events


class Appends:
    """What a leader has appended and not acknowledged. One commit acknowledges many appends."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._waiting: dict[Acks, deque[_Waiting]] = {acks: deque() for acks in Acks}
        self._events = 0
        self._bytes = 0

    def has_room(self, payloads: Sequence[bytes]) -> bool:
        """Return whether these events may wait too; a single append always may."""
        fits = self._events + len(payloads) <= self._max_events and self._bytes + nbytes_of(payloads) <= self._max_bytes
        return fits or not self._events

    def add(self, token: int, first_seq: int, payloads: Sequence[bytes], acks: Acks) -> None:
        """Record an append."""
        size = nbytes_of(payloads)
        self._events += len(payloads)
        self._bytes += size
        self._waiting[acks].append(_Waiting(token, first_seq, len(payloads), size))

    def reached(self, acks: Acks, tail: int, out: Out, *, confirmed: bool) -> None:
        """Acknowledge what ends at or before a sequence and asked for this durability."""
        waiting = self._waiting[acks]
        while waiting and waiting[0].end <= tail:
            done = waiting.popleft()
            self._events -= done.events
            self._bytes -= done.size
            out.notices.append(Acknowledged(done.token, done.first_seq, done.events, acks, confirmed))

    def give_up(self, out: Out) -> None:
        """Report what was not acknowledged, because this node leads no more."""
        rest = sorted((one for waiting in self._waiting.values() for one in waiting), key=lambda one: one.first_seq)
        out.notices.extend(Unresolved(one.token, one.first_seq, one.events) for one in rest)
        for waiting in self._waiting.values():
            waiting.clear()
        self._events = self._bytes = 0
