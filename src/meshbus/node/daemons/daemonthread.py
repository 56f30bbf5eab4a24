"""The thread in which daemons run: one for all daemons of a node, with everything that must not be done twice at a time.

The code of daemons, the state machines of moves and the files of checkpoints are called here only, one after the other, so
that none of them needs a lock, and a slow disk or daemon does not keep the node from its packets.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DaemonThread:
    """Runs functions one after the other, in the order in which they were given."""

    def __init__(self) -> None:
        """Start the thread; it belongs to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        # A daemon thread: code of a user that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="meshbus-daemons", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in the thread, and return a future of its result; it runs even if the future is cancelled."""
        outcome: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((function, outcome))
        return outcome

    async def close(self, timeout_s: float) -> bool:
        """End the thread after what it was given, and return whether it has ended within this time."""
        self._jobs.put(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        return self._ended.is_set()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, outcome = job
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                self._tell(_fail, outcome, error)
            else:
                self._tell(_resolve, outcome, result)
        self._tell(self._ended.set)

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)


def _resolve(outcome: asyncio.Future[Any], result: object) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[Any], error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
