"""How much handshake work strangers may cause: each costs curve operations before anything about its sender is known.

A source's address can be forged, so it is the bound on all of them together that holds; the one for each source keeps a
single noisy node from using it up. A direct message costs a try for each node that is expected, so direct ones have a
bound of their own and cannot use up what routed ones need.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Address
from meshbus.policy.limits import TokenBucket

MAX_SOURCES = 4096
SOURCE_RATE, SOURCE_BURST = 20.0, 40.0
"""Messages a second from one source."""
TOTAL_RATE, TOTAL_BURST = 500.0, 1000.0
"""Tries a second, each direct and routed: about a tenth of a core."""


Key = TypeVar("Key", bound=Hashable)


class Rates(Generic[Key]):
    """A rate for each of some things; of too many, the one not asked for longest is forgotten."""

    __slots__ = ("_buckets", "_burst", "_rate")

    def __init__(self, rate: float, burst: float, bound: int) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: BoundedMap[Key, TokenBucket] = BoundedMap(bound)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Key, now: float) -> bool:
        """Admit one more of a thing, or not."""
        bucket = self._buckets.get(key) or TokenBucket(self._rate, self._burst)
        self._buckets.put(key, bucket)
        return bucket.take(1, now)


class HandshakeBudget:
    """What is left to spend on strangers."""

    __slots__ = ("_direct", "_routed", "_sources")

    def __init__(self) -> None:
        self._sources: Rates[Address] = Rates(SOURCE_RATE, SOURCE_BURST, MAX_SOURCES)
        self._direct = TokenBucket(TOTAL_RATE, TOTAL_BURST)
        self._routed = TokenBucket(TOTAL_RATE, TOTAL_BURST)

    def admit(self, source: Address, now: float) -> bool:
        """Take a message from a source, or not."""
        return self._sources.take(source, now)

    def afford_direct(self, now: float) -> bool:
        """Try a direct message for one expected node, or not."""
        return self._direct.take(1, now)

    def afford_routed(self, now: float) -> bool:
        """Try a routed message, or not."""
        return self._routed.take(1, now)
