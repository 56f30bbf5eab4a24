"""Queue of received items that one event loop can wait on.

It has no limit of its own: the caller of `put` checks the length, and stops reading or drops items and counts them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items in order of arrival."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[T]) -> None:
        """Add items and wake the reader."""
        self._items.extend(items)
        self._wake.set()

    async def take(self) -> T:
        """Wait for an item and remove it. Raises RuntimeError if the mailbox is closed and empty."""
        if not self._items:
            await self._filled()
        return self._items.popleft()

    async def take_all(self) -> list[T]:
        """Wait for an item and remove all items; return an empty list if the mailbox is closed and empty."""
        try:
            if not self._items:
                await self._filled()
        except RuntimeError:
            return []
        items = list(self._items)
        self._items.clear()
        return items

    def close(self) -> None:
        """Wake the waiting reader; queued items can still be taken."""
        self._closed = True
        self._wake.set()

    async def _filled(self) -> None:
        while not self._items:
            if self._closed:
                raise RuntimeError("the endpoint is closed")
            # Cleared after the check, without an await in between, so that no `put` can be missed.
            self._wake.clear()
            await self._wake.wait()
