"""Rate limits for handshake messages: each costs curve operations before anything is known about its sender.

A source address can be forged, so only the limit on all sources together is a real bound; the limit per source keeps
one noisy node from using it up. A direct message costs one try for each expected node (it does not say which node sent
it), so direct and routed messages have separate limits: neither kind can exhaust the other's.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Address
from meshbus.policy.limits import TokenBucket

MAX_SOURCES = 4096
"""Sources with a rate of their own. Our choice; beyond it the one that was quiet longest is forgotten."""
SOURCE_RATE, SOURCE_BURST = 20.0, 40.0
"""Messages per second from one source. Our choice; the 0.23 point-to-point adapter allows 5 (transport.md §17)."""
TOTAL_RATE, TOTAL_BURST = 500.0, 1000.0
"""Tries per second, for direct and for routed messages each. Our choice: it costs about a tenth of a core."""


Key = TypeVar("Key", bound=Hashable)


class Rates(Generic[Key]):
    """A rate limit per key; if there are too many keys, the one that was not used longest is forgotten."""

    __slots__ = ("_buckets", "_burst", "_rate")

    def __init__(self, rate: float, burst: float, bound: int) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: BoundedMap[Key, TokenBucket] = BoundedMap(bound)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Key, now: float) -> bool:
        """Return whether one more is allowed for this key now, and count it."""
        # Putting it again makes it the newest, so that a busy key is never the one to be forgotten.
        bucket = self._buckets.get(key) or TokenBucket(self._rate, self._burst)
        self._buckets.put(key, bucket)
        return bucket.take(1, now)


class HandshakeBudget:
    """How much work on handshakes is still allowed."""

    __slots__ = ("_direct", "_routed", "_sources")

    def __init__(self) -> None:
        # Two totals: a flood of one kind must not keep the other kind from being read.
        self._sources: Rates[Address] = Rates(SOURCE_RATE, SOURCE_BURST, MAX_SOURCES)
        self._direct = TokenBucket(TOTAL_RATE, TOTAL_BURST)
        self._routed = TokenBucket(TOTAL_RATE, TOTAL_BURST)

    def admit(self, source: Address, now: float) -> bool:
        """Return whether a message from this source may be read."""
        return self._sources.take(source, now)

    def afford_direct(self, now: float) -> bool:
        """Return whether a direct message may be tried for one expected node."""
        return self._direct.take(1, now)

    def afford_routed(self, now: float) -> bool:
        """Return whether a routed message may be tried."""
        return self._routed.take(1, now)
