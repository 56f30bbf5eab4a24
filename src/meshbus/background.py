"""An event loop in a background thread, on which the blocking twins run (meshbus.sync, meshbus.edge.sync)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


FINISH_S = 1.0
"""How long running tasks may take to end when the loop is stopped: enough for local work, short for a user who waits."""


class LoopStopped(RuntimeError):
    """The loop was stopped, so nothing can run on it."""


class BackgroundLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._stopping = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="meshbus", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop, and return its result.

        The coroutine is cancelled if the wait ends early: by `timeout_s`, which raises TimeoutError, or by Ctrl-C.
        Raises LoopStopped if the loop was stopped.
        """
        with self._stopping:
            if self._stopped:
                work.close()
                raise LoopStopped("the loop was stopped")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()  # has no effect if the coroutine itself raised
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop, and return its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def stop(self) -> None:
        """Stop the loop and end its thread; calls that wait for a result return or raise within `FINISH_S`."""
        with self._stopping:
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _finish() -> None:
    """Wait for the other tasks of this loop, and cancel those that do not end: their callers would wait forever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=FINISH_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
