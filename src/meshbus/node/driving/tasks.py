"""Background tasks that have an owner: kept alive, reported if they fail, cancelled on close.

asyncio holds only weak references to tasks, and an exception that nobody awaits is reported when the task is garbage
collected, or never. So no code calls `asyncio.create_task` by itself: work that belongs to one function uses
`asyncio.TaskGroup`, work that outlives the function that started it is given to a TaskOwner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskOwner:
    """The background tasks of one object."""

    def __init__(self, what: str, logger: logging.Logger, on_failure: Callable[[], None] | None = None) -> None:
        """Own no tasks yet; `what` names the work in the log, `on_failure` is called for each task that fails."""
        self._what = what
        self._logger = logger
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of tasks that are still running."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in the background; an exception that it raises is logged once."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for them to end."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait for them to end; closing twice is fine."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._logger.error("%s failed unexpectedly; please report this as a bug", self._what, exc_info=error)
        if self._on_failure is not None:
            self._on_failure()
