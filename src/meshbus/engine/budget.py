"""How much handshake work strangers may cause: each costs curve operations before anything about its sender is known.

A source's address can be forged, so it is the bound on all of them together that holds; the one for each source keeps a
single noisy node from using it up. A direct message costs a try for each node that is expected, so direct ones have a
bound of their own and cannot use up what routed ones need.
"""

from __future__ import annotations

from meshbus.engine.packets import Address
from meshbus.engine.recent import Recent
from meshbus.policy.limits import TokenBucket

MAX_SOURCES = 4096
SOURCE_RATE, SOURCE_BURST = 20.0, 40.0
"""Messages a second from one source."""
TOTAL_RATE, TOTAL_BURST = 500.0, 1000.0
"""Tries a second, each direct and routed: about a tenth of a core."""


class HandshakeBudget:
    """What is left to spend on strangers."""

    __slots__ = ("_direct", "_routed", "_sources")

    def __init__(self) -> None:
        self._sources: Recent[Address, TokenBucket] = Recent(MAX_SOURCES)
        self._direct = TokenBucket(TOTAL_RATE, TOTAL_BURST)
        self._routed = TokenBucket(TOTAL_RATE, TOTAL_BURST)

    def admit(self, source: Address, now: float) -> bool:
        """Take a message from a source, or not; of too many sources the one not heard for longest is forgotten."""
        bucket = self._sources.get(source) or TokenBucket(SOURCE_RATE, SOURCE_BURST)
        self._sources.put(source, bucket)
        return bucket.take(1, now)

    def afford_direct(self, now: float) -> bool:
        """Try a direct message for one expected node, or not."""
        return self._direct.take(1, now)

    def afford_routed(self, now: float) -> bool:
        """Try a routed message, or not."""
        return self._routed.take(1, now)
