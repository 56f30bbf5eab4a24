"""Rate limits: a token bucket, and a throttle for peers that are refused too often.

Both take the time (monotonic seconds) as an argument, and tolerate a clock that stands still or steps back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from meshbus.errors import ConfigError
from meshbus.policy.bound import Bound, By, forgotten

# The defaults of policy.md §4.5.
MAX_FAILURES = 16
"""Failures within a window that throttle a peer."""
WINDOW_S = 60.0
"""Length of the window."""
THROTTLE_S = 30.0
"""How long a peer is throttled."""
NEVER = 65_535
"""Number of failures that disables the throttle."""
MAX_PEERS = 65_536
"""Peers with recorded failures. Our choice."""

_ROUNDING = 1e-6
"""Tolerance for rounding, in units: a caller that waited exactly long enough must not be refused."""

Peer = TypeVar("Peer", bound=Hashable)


BOUNDS = (
    Bound(
        name="failures",
        what="peers with refused requests",
        by=By.MEMBER,
        per_node=MAX_PEERS,
        full="the one with the oldest window goes",
        counter=forgotten("failures"),
    ),
)


class TokenBucket:
    """Token bucket: admits `rate` units per second on average, and `capacity` at once (by default those of a second)."""

    __slots__ = ("_level", "_then", "capacity", "rate")

    def __init__(self, rate: float, capacity: float | None = None) -> None:
        self.rate = rate
        self.capacity = rate if capacity is None else capacity
        if self.rate <= 0 or self.capacity <= 0:
            raise ConfigError("rate", f"rate and capacity must be positive, got {self.rate} and {self.capacity}")
        self._level = float(self.capacity)
        self._then = -math.inf

    def take(self, count: float, now: float) -> bool:
        """Admit `count` units if all fit, and return whether they do."""
        self._refill(now)
        if count > self._level + _ROUNDING:
            return False
        self._level -= count
        return True

    def spent(self, now: float) -> bool:
        """Return whether not even one unit would be admitted."""
        self._refill(now)
        return self._level + _ROUNDING < 1

    def admit(self, count: int, now: float) -> int:
        """Admit as many of `count` units as fit, and return how many."""
        self._refill(now)
        admitted = min(count, int(self._level + _ROUNDING))
        self._level -= admitted
        return admitted

    def _refill(self, now: float) -> None:
        # A clock that steps back adds nothing, and does not move `_then`, so that the same time is not counted twice.
        if now > self._then:
            self._level = min(self._level + (now - self._then) * self.rate, float(self.capacity))
            self._then = now


class FailureThrottle(Generic[Peer]):
    """Throttles peers that were refused too often in a short time (policy.md §4.5).

    The window starts at the first failure of a peer. The failure that reaches the limit still gets its real answer;
    then the peer is throttled for a while, and every further failure in the same window throttles it again. A success
    clears its failures. If there are too many peers, the one with the oldest window is forgotten.
    """

    def __init__(
        self,
        max_failures: int = MAX_FAILURES,
        *,
        window_s: float = WINDOW_S,
        throttle_s: float = THROTTLE_S,
        max_peers: int = MAX_PEERS,
        forget: Callable[[], None] | None = None,
    ) -> None:
        """Start without failures; `forget` is called for each peer that makes room for another."""
        self._max_failures = max_failures
        self._window_s = window_s
        self._throttle_s = throttle_s
        self._max_peers = max_peers
        self._forget = forget
        self._records: OrderedDict[Peer, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def fail(self, peer: Peer, now: float) -> None:
        """Record a failure of a peer."""
        if self._max_failures >= NEVER:
            return
        record = self._records.get(peer)
        # policy.md §4.5: the window starts at the first failure and is over when it is 60 s old.
        if record is None or now - record.since >= self._window_s:
            record = self._start(peer, now)
        record.failures += 1
        if record.failures >= self._max_failures:
            record.until = now + self._throttle_s

    def succeed(self, peer: Peer) -> None:
        """Clear the failures of a peer."""
        self._records.pop(peer, None)

    def throttled(self, peer: Peer, now: float) -> bool:
        """Return whether a peer is throttled now."""
        record = self._records.get(peer)
        return record is not None and record.until is not None and now < record.until

    def _start(self, peer: Peer, now: float) -> _Record:
        self._records.pop(peer, None)  # keeps the insertion order equal to the order of the windows
        if len(self._records) >= self._max_peers:
            self._records.popitem(last=False)
            if self._forget is not None:
                self._forget()
        record = self._records[peer] = _Record(now)
        return record


class _Record:
    __slots__ = ("failures", "since", "until")

    def __init__(self, since: float) -> None:
        self.since = since
        self.failures = 0
        self.until: float | None = None
