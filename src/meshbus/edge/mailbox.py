"""What has arrived and was not yet taken: a queue that can be waited for, by the one loop it lives on.

It does not bound itself: whoever fills it looks at its length, and stops reading or drops with a counter.
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
        """Add items."""
        self._items.extend(items)
        self._wake.set()

    async def take(self) -> T:
        """Wait for an item, and take it. Raises RuntimeError when the mailbox is closed and empty."""
        if not self._items:
            await self._filled()
        return self._items.popleft()

    async def take_all(self) -> list[T]:
        """Wait for an item, and take all there are; an empty list when the mailbox is closed."""
        try:
            if not self._items:
                await self._filled()
        except RuntimeError:
            return []
        items = list(self._items)
        self._items.clear()
        return items

    def close(self) -> None:
        """Wake who waits; what is there can still be taken."""
        self._closed = True
        self._wake.set()

    async def _filled(self) -> None:
        while not self._items:
            if self._closed:
                raise RuntimeError("the endpoint was closed")
            self._wake.clear()
            await self._wake.wait()
