"""A table that forgets: what peers can make us remember is bounded, and the oldest goes first."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedMap(Generic[Key, Value]):
    """The entries put last, at most `bound` of them; putting one again makes it the newest."""

    __slots__ = ("_bound", "_entries")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._entries: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def get(self, key: Key) -> Value | None:
        """Give an entry, which stays as old as it is."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Set an entry and make it the newest; beyond the bound, the oldest is forgotten."""
        self._entries.pop(key, None)
        if len(self._entries) >= self._bound:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value

    def pop(self, key: Key) -> Value | None:
        """Forget an entry and give it."""
        return self._entries.pop(key, None)

    def oldest(self) -> tuple[Key, Value] | None:
        """Give the entry that would be forgotten first."""
        return next(iter(self._entries.items()), None)
