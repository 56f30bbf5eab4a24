"""A background thread of a Redex: calls a function for each open log, at the shortest interval that one of them needs.

It decides nothing: the backend of each log knows what is due (log/backend.py). A Redex has one for upkeep and one for
transfers to object storage, which may take long and must not delay a sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

_PERIOD_S = 1.0
"""Longest time between two calls: sealing, expiring and compacting need no better precision."""


class Keeper:
    """A thread that starts with the first log and ends with `stop`."""

    def __init__(self, calls: Callable[[], Iterable[Callable[[], None]]], name: str = "meshbus-log-keeper") -> None:
        """Create it without starting the thread; what `calls` returns is called in each round and must not raise."""
        self._calls, self._name = calls, name
        self._period_s = _PERIOD_S
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, interval_s: float | None) -> None:
        """Add a log that needs `keep` at an interval, or None if it has no interval of its own."""
        if interval_s is not None:
            # One thread for all logs: the shortest interval sets its pace, and `keep` checks what is due for each log.
            self._period_s = min(self._period_s, interval_s)
        self._woken.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Begin the next round now, or as soon as the current one is done."""
        self._woken.set()

    def stop(self, wait_s: float | None = None) -> None:
        """End the thread after its current call, for which this waits, for at most `wait_s` seconds if given."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._stopped.is_set():
            # `watch` wakes the thread, so that a shorter interval takes effect at once.
            self._woken.wait(self._period_s)
            self._woken.clear()
            if not self._stopped.is_set():
                for call in self._calls():
                    call()
