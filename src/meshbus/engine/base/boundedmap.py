"""Bounded map: evicts the oldest entry when it is full.

For whatever peers can make a node remember, so that no peer can exhaust its memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedMap(Generic[Key, Value]):
    """The last `bound` entries, by the time they were put; putting a key again makes it the newest."""

    __slots__ = ("_bound", "_entries", "_forget", "get", "renew")

    def __init__(self, bound: int, forget: Callable[[], None] | None = None) -> None:
        """Create an empty map; `forget` is called for each entry that is evicted."""
        self._bound = bound
        self._forget = forget
        # Not a dict: finding the first key of one whose first keys were deleted takes as many steps as were deleted.
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        # Methods of the dict itself: some are asked with every packet.
        self.get: Callable[[Key], Value | None] = self._entries.get
        """Returns an entry, or None; its age does not change."""
        self.renew: Callable[[Key], None] = self._entries.move_to_end
        """Makes an entry the newest; raises KeyError if there is none."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def put(self, key: Key, value: Value) -> None:
        """Set an entry and make it the newest; evict the oldest one if the map is full."""
        if key in self._entries:
            self._entries.move_to_end(key)
        elif len(self._entries) >= self._bound:
            self._entries.popitem(last=False)
            if self._forget is not None:
                self._forget()
        self._entries[key] = value

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Iterate over the entries, the oldest first."""
        return iter(self._entries.items())

    def pop(self, key: Key) -> Value | None:
        """Remove an entry and return it, or None."""
        return self._entries.pop(key, None)

    def oldest(self) -> tuple[Key, Value] | None:
        """Return the entry that would be evicted next, or None."""
        return next(iter(self._entries.items()), None)
