"""An event loop in a thread of its own: what every blocking twin runs on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


FINISH_S = 1.0
"""How long work that is under way may take when its loop is stopped."""


class LoopStopped(RuntimeError):
    """Say that nothing runs on a loop any more."""


class BackgroundLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._stopping = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="meshbus", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop, and wait for its result; raises LoopStopped when it was stopped."""
        with self._stopping:
            if self._stopped:
                work.close()
                raise LoopStopped("the loop was stopped")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop, and wait for its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def stop(self) -> None:
        """End the thread and the loop; who still waits for something on it is told soon, one way or the other."""
        with self._stopping:
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _finish() -> None:
    """Let the other tasks of this loop end, and cancel those that do not: nobody would wake who waits for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=FINISH_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
