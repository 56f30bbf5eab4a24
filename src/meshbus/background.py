"""An event loop in a background thread, on which the blocking twins run (meshbus.sync, meshbus.edge.sync)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


FINISH_S = 1.0
"""How long running tasks may take to end when the loop is stopped: enough for local work, short for a user who waits."""


class LoopStopped(RuntimeError):
    """The loop was stopped, so nothing can run on it."""


class BackgroundLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._stopping = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="meshbus", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop, and return its result.

        The coroutine is cancelled if the wait ends early: by `timeout_s`, which raises TimeoutError, or by Ctrl-C.
        The timeout runs on the loop, so that a coroutine which takes something either returns it here or leaves it;
        one that is at once done returns its result even if `timeout_s` is 0. Ctrl-C can come after the coroutine is
        done, which `Intake` provides for. Raises LoopStopped if the loop was stopped, and
        RuntimeError where waiting could never end: on the loop's own thread, and in a forked process.
        """
        try:
            future = self._begin(work, timeout_s)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
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
        self._check_caller()
        with self._stopping:
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> Future[T]:
        self._check_caller()
        with self._stopping:
            if self._stopped:
                raise LoopStopped("the loop was stopped")
            return asyncio.run_coroutine_threadsafe(_within(timeout_s, work), self._loop)

    def _check_caller(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this object was opened before the process was forked, and its thread runs only in the parent; "
                "open another one in the child process"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking method was called on the thread that would have to do its work, as in a listener of `watch`; "
                "call it from another thread"
            )


class Intake(Generic[T]):
    """Takes items from an object on the loop, for threads that wait for them; none is lost if a wait ends early.

    `take` waits for items, and returns none when there will be no more. What it takes is kept here in the same step of
    the loop, so that a wait that ended by Ctrl-C leaves it to the next call.
    """

    def __init__(self, loop: BackgroundLoop, take: Callable[[], Awaitable[Iterable[T]]]) -> None:
        self._loop = loop
        self._take = take
        self._kept: deque[T] = deque()

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items that were taken from the object and not yet returned, without removing them."""
        return iter(tuple(self._kept))

    def next(self, timeout_s: float | None = None) -> T | None:
        """Wait for an item and return it; None if there will be no more. Raises TimeoutError after `timeout_s`."""
        while True:
            with suppress(IndexError):  # another thread may get what this one waited for
                return self._kept.popleft()
            try:
                if not self._loop.run(self._keep(), timeout_s):
                    return None
            except LoopStopped:
                return None

    def rest(self) -> Iterator[T]:
        """Return the items that need no waiting."""
        with suppress(IndexError):
            while True:
                yield self._kept.popleft()

    async def _keep(self) -> bool:
        items = tuple(await self._take())
        self._kept.extend(items)
        return bool(items)


async def _within(timeout_s: float | None, work: Coroutine[Any, Any, T]) -> T:
    if timeout_s is None:
        return await work
    async with asyncio.timeout(timeout_s):
        return await work


async def _finish() -> None:
    """Wait for the other tasks of this loop, and cancel those that do not end: their callers would wait forever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=FINISH_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
