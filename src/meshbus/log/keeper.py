"""The one background thread of a Redex: calls `keep` on each open log, as often as the shortest interval asks for.

It decides nothing: what is due is in log/log.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

_PERIOD_S = 1.0
"""How often to look for work that no interval asks for: sealing, expiring, compacting."""


class Kept(Protocol):
    """Something that wants to be kept."""

    def keep(self) -> None:
        """Do what is due; must not raise."""


class Keeper:
    """A thread that starts with the first log and ends with `stop`."""

    def __init__(self, logs: Callable[[], Iterable[Kept]]) -> None:
        self._logs = logs
        self._period_s = _PERIOD_S
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, interval_s: float | None) -> None:
        """Know of one more log, and the interval that it asks for."""
        if interval_s is not None:
            self._period_s = min(self._period_s, interval_s)
        self._woken.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="meshbus-log-keeper", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, after what it is at."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.wait(self._period_s)
            self._woken.clear()
            if not self._stopped.is_set():
                for log in self._logs():
                    log.keep()
