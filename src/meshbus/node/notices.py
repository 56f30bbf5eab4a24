"""What happens to a node, for whoever wants to watch: bounded, the oldest are forgotten first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TypeAlias

from meshbus.engine.control import Control
from meshbus.errors import SlowConsumer

MAX_NOTICES = 1024

Notice: TypeAlias = "Control | SlowConsumer"


class Notices:
    """The latest notices of one node."""

    def __init__(self) -> None:
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._came = asyncio.Event()
        self._closed = False

    def add(self, notice: Notice) -> None:
        """Add a notice."""
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
