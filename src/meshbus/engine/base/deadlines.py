"""Many deadlines, of which most are met: adding, dropping and finding the next one are cheap."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Any)
"""Hashable and, among keys with one deadline, ordered."""

_SLACK = 64
"""Dropped deadlines that may lie around, beside as many as there are live ones."""


class Deadlines(Generic[Key]):
    """When each of some things is over."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        """A pair that no longer fits `_times` is stale."""

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: object) -> bool:
        return key in self._times

    def __iter__(self) -> Iterator[Key]:
        return iter(self._times)

    def get(self, key: Key) -> float | None:
        """Give the deadline of a thing, if it has one."""
        return self._times.get(key)

    def set(self, key: Key, time: float) -> None:
        """Set the deadline of a thing, or move it."""
        self._times[key] = time
        heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)

    def drop(self, key: Key) -> bool:
        """Forget the deadline of a thing; False when it has none."""
        return self._times.pop(key, None) is not None

    def next(self) -> float | None:
        """Give the earliest deadline."""
        while self._heap:
            time, key = self._heap[0]
            if self._times.get(key) == time:
                return time
            heappop(self._heap)
        return None

    def over(self, now: float) -> list[Key]:
        """Give the things whose deadline has come, earliest first, and forget them."""
        keys: list[Key] = []
        while (time := self.next()) is not None and time <= now:
            _, key = heappop(self._heap)
            del self._times[key]
            keys.append(key)
        return keys
