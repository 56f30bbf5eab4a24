"""What a daemon has observed: the exact map of origins to sequences, and the bloom filter that its links carry."""

from __future__ import annotations

from collections.abc import Iterable

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.wire.messages.causal import origin_bits
from meshbus.wire.messages.checkpoint import MAX_OBSERVED


class Horizon:
    """The highest sequence seen of each origin. At most 65 536 origins; the one seen first is forgotten."""

    def __init__(self, observed: Iterable[tuple[int, int]] = ()) -> None:
        self._highest: BoundedMap[int, int] = BoundedMap(MAX_OBSERVED)
        self.encoded = 0
        """The bloom filter of the origins. Bits of a forgotten origin stay: it was observed."""
        for origin, sequence in observed:
            self.observe(origin, sequence)

    def observe(self, origin: int, sequence: int) -> None:
        """Record an event of an origin; sequence 0 records the origin alone."""
        known = self._highest.get(origin)
        if known is None:
            self.encoded |= origin_bits(origin)
            self._highest.put(origin, sequence)
        elif sequence > known:
            self._highest.put(origin, sequence)

    def seen(self, origin: int) -> int | None:
        """Return the highest sequence of an origin, or None if it was not observed."""
        return self._highest.get(origin)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return all origins with their sequences, by origin."""
        return tuple(sorted((origin, self._highest.get(origin) or 0) for origin in self._highest))
