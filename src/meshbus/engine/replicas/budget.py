"""Bandwidth budget of a leader: a token bucket with three classes (redex.md §7).

- Foreground needs its cost. A cost above the capacity is admitted by a full bucket, and empties it.
- Background must leave a reserve. If it was denied for more than a minute, one small grant is given anyway.
- Realtime is always admitted, up to half of the capacity. What it takes beyond the tokens is a debt, which refunds
  repay first.
"""

from __future__ import annotations

from meshbus.wire.messages.redex import BandwidthClass

# redex.md §7: the reference assumes an interface of one gigabit.
NIC_PEAK_BYTES = 125_000_000
_STARVED_S = 60
_HATCH_SHARE = 0.1
_REALTIME_SHARE = 0.5


class BandwidthBudget:
    """How many bytes of responses a leader may send."""

    def __init__(
        self, fraction: float = 0.5, *, background_fraction: float = 0.3, nic_peak_bytes_per_s: float = NIC_PEAK_BYTES
    ) -> None:
        self.capacity = nic_peak_bytes_per_s * fraction
        self._reserve = (1 - background_fraction) * self.capacity
        self._tokens = self.capacity
        self._debt = 0.0
        self._updated: float | None = None
        self._denied_since: float | None = None

    @property
    def available(self) -> float:
        """Bytes that may be sent now."""
        return self._tokens

    def admit(self, cost: int, bandwidth_class: BandwidthClass, now: float) -> bool:
        """Take the tokens for a response, and return whether it may be sent."""
        self._refill(now)
        match bandwidth_class:
            case BandwidthClass.FOREGROUND:
                return self._admit_foreground(cost)
            case BandwidthClass.BACKGROUND:
                return self._admit_background(cost, now)
            case BandwidthClass.REALTIME:
                return self._admit_realtime(cost)

    def refund(self, cost: int) -> None:
        """Return the tokens of a response that could not be sent."""
        repaid = min(cost, self._debt)
        self._debt -= repaid
        self._tokens = min(self.capacity, self._tokens + cost - repaid)

    def _refill(self, now: float) -> None:
        elapsed = 0.0 if self._updated is None else max(0.0, now - self._updated)
        self._updated = now
        self._tokens = min(self.capacity, self._tokens + elapsed * self.capacity)

    def _admit_foreground(self, cost: int) -> bool:
        if cost > self.capacity and self._tokens >= self.capacity:
            self._tokens = 0.0
            return True
        return self._take(cost)

    def _admit_background(self, cost: int, now: float) -> bool:
        if not cost or (self._tokens - cost >= self._reserve and self._take(cost)):
            self._denied_since = None
            return True
        if self._denied_since is None:
            self._denied_since = now
        starved = now - self._denied_since > _STARVED_S
        if not starved or cost > _HATCH_SHARE * self.capacity:
            return False
        self._denied_since = None
        self._tokens = max(0.0, self._tokens - cost)
        return True

    def _admit_realtime(self, cost: int) -> bool:
        if cost > _REALTIME_SHARE * self.capacity:
            return False
        self._debt += cost
        self._tokens = max(0.0, self._tokens - cost)
        return True

    def _take(self, cost: int) -> bool:
        if cost > self._tokens:
            return False
        self._tokens -= cost
        return True
