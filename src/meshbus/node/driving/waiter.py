"""What a task waits for until events come, and how it goes on without another iteration of the loop.

The usual way to wake a task schedules it for the next iteration: for a single event, asking the sockets and running one
more callback costs as much as opening its packet. The driver therefore collects the waiters that a datagram woke, and
resumes their tasks when it has finished with the datagram, in the same callback. node/channels/subscription.py waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Waiter(asyncio.Future[None]):
    """A future for one task."""

    _task: tuple[Callable[[Any], object], Context] | None = None
    """What continues the task, and in which context."""

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Remember what continues the task; asyncio calls this when the task begins to wait."""
        if context is not None:
            self._task = fn, context
        super().add_done_callback(fn, context=context)

    def wake(self) -> None:
        """Continue the task in the next iteration of the loop."""
        if not self.done():
            self.set_result(None)

    def resume(self) -> None:
        """Continue the task now. Only in a callback of the loop, never within a task; at the end of the callback."""
        if self.done() or self._task is None:
            self.wake()
            return
        proceed, context = self._task
        self.remove_done_callback(proceed)
        self.set_result(None)
        context.run(proceed, self)


Wake = Callable[[Waiter], Any]
"""Wakes a waiter, now or soon."""
