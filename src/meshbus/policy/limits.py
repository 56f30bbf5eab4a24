"""Limits on how much and how often: a token bucket for rates, a throttle for peers that keep being refused.

Both take the time (monotonic seconds) as an argument and tolerate one that stands still or steps back.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

from meshbus.errors import ConfigError

MAX_FAILURES = 16
WINDOW_S = 60.0
THROTTLE_S = 30.0
NEVER = 65_535
"""As a number of failures: no throttle at all."""
MAX_PEERS = 65_536

_ROUNDING = 1e-6
"""Of one thing: whoever waits exactly long enough must not fail by a rounded fraction."""

Peer = TypeVar("Peer", bound=Hashable)


class TokenBucket:
    """Admit `rate` things a second on average, and up to `capacity` (one second's worth by default) at once."""

    __slots__ = ("_level", "_then", "capacity", "rate")

    def __init__(self, rate: float, capacity: float | None = None) -> None:
        self.rate = rate
        self.capacity = rate if capacity is None else capacity
        if self.rate <= 0 or self.capacity <= 0:
            raise ConfigError("rate", f"a limit of {self.rate}/s and {self.capacity} at once lets nothing pass")
        self._level = float(self.capacity)
        self._then = -math.inf

    def take(self, count: int, now: float) -> bool:
        """Admit all of `count` things, or none."""
        self._refill(now)
        if count > self._level + _ROUNDING:
            return False
        self._level -= count
        return True

    def admit(self, count: int, now: float) -> int:
        """Admit as many of `count` things as there is room for, and say how many."""
        self._refill(now)
        admitted = min(count, int(self._level + _ROUNDING))
        self._level -= admitted
        return admitted

    def _refill(self, now: float) -> None:
        if now > self._then:
            self._level = min(self._level + (now - self._then) * self.rate, float(self.capacity))
            self._then = now


class FailureThrottle(Generic[Peer]):
    """Stop answering peers that were refused too often in a short time.

    The window starts at a peer's first failure. The failure that fills it is still answered; after that the peer is
    throttled for a while, and every further failure in the same window throttles it again. A success forgets all. Of
    too many peers, the one whose window is oldest is forgotten.
    """

    def __init__(
        self,
        max_failures: int = MAX_FAILURES,
        *,
        window_s: float = WINDOW_S,
        throttle_s: float = THROTTLE_S,
        max_peers: int = MAX_PEERS,
    ) -> None:
        self._max_failures = max_failures
        self._window_s = window_s
        self._throttle_s = throttle_s
        self._max_peers = max_peers
        self._records: dict[Peer, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def fail(self, peer: Peer, now: float) -> None:
        """Count a refusal."""
        if self._max_failures >= NEVER:
            return
        record = self._records.get(peer)
        if record is None or now - record.since >= self._window_s:
            record = self._start(peer, now)
        record.failures += 1
        if record.failures >= self._max_failures:
            record.until = now + self._throttle_s

    def succeed(self, peer: Peer) -> None:
        """Forget a peer's failures."""
        self._records.pop(peer, None)

    def throttled(self, peer: Peer, now: float) -> bool:
        """Return whether a peer is to be turned away unheard."""
        record = self._records.get(peer)
        return record is not None and record.until is not None and now < record.until

    def _start(self, peer: Peer, now: float) -> _Record:
        self._records.pop(peer, None)  # so that insertion order stays the order of windows
        if len(self._records) >= self._max_peers:
            del self._records[next(iter(self._records))]
        record = self._records[peer] = _Record(now)
        return record


class _Record:
    __slots__ = ("failures", "since", "until")

    def __init__(self, since: float) -> None:
        self.since = since
        self.failures = 0
        self.until: float | None = None
