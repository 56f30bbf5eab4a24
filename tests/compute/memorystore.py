"""The disk of a node, in memory. A crash can happen before or after each write, as a real one can."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from meshbus.compute.store import Decision, Mark, Stored
from meshbus.wire.messages.migration import BufferedEvent


class MemoryStore:
    def __init__(self, crash_point: Callable[[], None] = lambda: None) -> None:
        self.crash_point = crash_point
        """Called before and after each write; raises to crash there."""
        self.records: dict[int, Stored] = {}
        self.decided: dict[int, Decision] = {}

    def save(self, origin: int, stored: Stored) -> None:
        self.crash_point()
        self.records[origin] = stored
        self.crash_point()

    def append(self, origin: int, events: Sequence[BufferedEvent]) -> None:
        stored = self.records[origin]
        self.save(origin, msgspec.structs.replace(stored, replayed=(*stored.replayed, *events)))

    def mark(self, origin: int, mark: Mark) -> None:
        self.save(origin, msgspec.structs.replace(self.records[origin], mark=mark))

    def marked(self, origin: int) -> Mark | None:
        stored = self.records.get(origin)
        return None if stored is None else stored.mark

    def load(self, origin: int) -> Stored | None:
        return self.records.get(origin)

    def remove(self, origin: int) -> None:
        self.crash_point()
        self.records.pop(origin, None)
        self.crash_point()

    def origins(self) -> list[int]:
        return sorted(self.records)

    def decide(self, decision: Decision) -> None:
        self.crash_point()
        self.decided[decision.origin] = decision
        self.crash_point()

    def settle(self, origin: int) -> None:
        self.crash_point()
        self.decided.pop(origin, None)
        self.crash_point()

    def decisions(self) -> list[Decision]:
        return list(self.decided.values())
