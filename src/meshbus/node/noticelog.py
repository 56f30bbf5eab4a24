"""What happens to a node, for whoever wants to watch: bounded, the oldest are forgotten first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

from meshbus.engine.base.notices import Control
from meshbus.errors import SlowConsumer

MAX_NOTICES = 1024

Notice: TypeAlias = "Control | SlowConsumer"


class Notices:
    """The latest notices of one node."""

    def __init__(self) -> None:
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._came = asyncio.Event()
        self._listeners: list[Callable[[Notice], None]] = []
        self._closed = False

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Call a listener with every notice, beside those who follow; gives what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def add(self, notice: Notice) -> None:
        """Add a notice."""
        for listener in tuple(self._listeners):
            listener(notice)
        self._notices.append(notice)
        self._came.set()

    def close(self) -> None:
        """End everyone who follows, once they have read what is there."""
        self._closed = True
        self._came.set()

    async def follow(self) -> AsyncIterator[Notice]:
        """Give the notices as they come; each is given once, to whoever asks first."""
        while True:
            while self._notices:
                yield self._notices.popleft()
            if self._closed:
                return
            self._came.clear()
            await self._came.wait()
