"""A thread beside the event loop for work that the loop must not wait for, such as loading compiled kernels.

There is one thread for a process. It starts with the first piece of work, ends when none is left, and never keeps the
process alive. What it runs must not raise. The counterpart is meshbus/jit.py.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

_lock = threading.Lock()
_work: deque[Callable[[], None]] = deque()
_running: list[threading.Thread] = []
"""The thread, while there is work."""


def on_loop() -> bool:
    """Return whether the calling thread runs an event loop, so that others wait while it waits."""
    asyncio = sys.modules.get("asyncio")  # where it was never imported, such as in a Spark worker, no loop runs
    return asyncio is not None and asyncio._get_running_loop() is not None


def run(work: Callable[[], None]) -> None:
    """Run something in the thread, after what was given before."""
    with _lock:
        _work.append(work)
        if not _running:
            thread = threading.Thread(target=_run, name="meshbus-beside", daemon=True)
            _running.append(thread)
            thread.start()


def wait(timeout_s: float | None = None) -> bool:
    """Wait until there is no work left, and return whether that is so."""
    with _lock:
        thread = _running[0] if _running else None
    if thread is None:
        return True
    thread.join(timeout_s)
    return not thread.is_alive()


def _run() -> None:
    while True:
        with _lock:
            if not _work:
                _running.clear()
                return
            work = _work.popleft()
        work()
