"""Backoff of a replica whose leader has nothing to send now (redex.md §7).

It answers without events although it claims to have more, or rejects with Backpressure.
"""

from __future__ import annotations

_FIRST_S = 1.0
_CAP_S = 30.0


class CatchupBackoff:
    """When a replica may ask its leader again: at once a few times, then after 1, 2, 4, 8, 16 and 30 seconds."""

    def __init__(self, free_tries: int = 3) -> None:
        self._free_tries = free_tries
        self._empty = 0
        self._until = float("-inf")

    @property
    def window_s(self) -> float:
        """How long the replica waits after the last empty answer."""
        waits = self._empty - self._free_tries - 1
        return 0.0 if waits < 0 else min(_CAP_S, _FIRST_S * 2.0**waits)

    def empty(self, now: float) -> None:
        """Record an answer without events from a leader that claims to have more."""
        self._empty += 1
        self._until = now + self.window_s

    def progress(self) -> None:
        """Record that events came, or that the leader changed."""
        self._empty = 0
        self._until = float("-inf")

    def waiting(self, now: float) -> bool:
        """Return whether it is too early to ask."""
        return now < self._until
