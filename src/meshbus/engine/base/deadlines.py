"""Deadlines by key: setting, dropping and finding the earliest are cheap.

A heap with lazy deletion. Most deadlines are dropped or moved before they pass, so removing them from the heap at once
would be wasted work: their pairs go stale and are skipped when they reach the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Any)
"""Hashable, and orderable: the heap compares keys that have the same deadline."""

_SLACK = 64
"""Stale pairs tolerated beyond as many as there are live ones. Our choice: it spares small heaps frequent rebuilds."""


class Deadlines(Generic[Key]):
    """A deadline for each key."""

    __slots__ = ("_heap", "_times", "first")

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        """Pairs of deadline and key. A pair that differs from `_times` is stale."""
        self.first = inf
        """No deadline is before this time; infinite without any. An attribute: it is looked at after every packet."""

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: object) -> bool:
        return key in self._times

    def __iter__(self) -> Iterator[Key]:
        return iter(self._times)

    def get(self, key: Key) -> float | None:
        """Return the deadline of a key, or None."""
        return self._times.get(key)

    def set(self, key: Key, time: float) -> None:
        """Set or move the deadline of a key."""
        self._times[key] = time
        heappush(self._heap, (time, key))
        # Rebuilding when stale pairs outnumber live ones bounds the memory at a constant cost per call.
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)
        self.first = self._heap[0][0]

    def drop(self, key: Key) -> bool:
        """Remove the deadline of a key, and return whether it had one."""
        return self._times.pop(key, None) is not None

    def next(self) -> float | None:
        """Return the earliest deadline, or None."""
        while self._heap:
            time, key = self._heap[0]
            # The top may be stale; drop such pairs here, where they would be in the way.
            if self._times.get(key) == time:
                self.first = time
                return time
            heappop(self._heap)
        self.first = inf
        return None

    def over(self, now: float, most: int | None = None) -> list[Key]:
        """Remove the keys whose deadline has passed, at most so many, and return them, earliest first."""
        keys: list[Key] = []
        while len(keys) != most and (time := self.next()) is not None and time <= now:
            # `next` removed the stale pairs, so the top is a live one.
            _, key = heappop(self._heap)
            del self._times[key]
            keys.append(key)
        return keys
