"""Congestion control of a reliable stream: retransmission timeout and congestion window.

The retransmission timeout is the smoothed round trip plus four times its variation (RFC 6298). It doubles with each
timeout until a packet that was sent only once is acknowledged: the acknowledgement of a repeated packet does not say
which copy it is for (Karn's algorithm). The window starts small, doubles per round trip until the first loss, then
grows by one packet per round trip; a loss halves it (RFC 5681). The numbers are those of profile.md §2 unless a
constant says otherwise. engine/streams/retransmit.py decides what counts as a loss.
"""

from __future__ import annotations

MIN_RTO_S = 0.010
"""Twice the time by which a receiver may delay an acknowledgement (streams/reorder.py)."""
MAX_RTO_S = 2.0
FIRST_RTO_S = 0.2
"""Timeout before the first measurement. Our choice."""

LOOPBACK_WINDOW = 64
"""Initial window in packets on loopback, where packets are lost only when a socket buffer is full."""
NETWORK_WINDOW = 10
"""Initial window in packets elsewhere; the same as TCP's (RFC 6928)."""
MIN_WINDOW = 2
MAX_WINDOW = 4096
"""Largest window in packets. Our choice: it bounds the memory of a sender to 32 MiB per stream."""


class RoundTrip:
    """Estimates the round trip of a stream, and the retransmission timeout that follows from it."""

    __slots__ = ("_patience", "_variation", "least", "smoothed")

    def __init__(self, guess_s: float | None = None) -> None:
        """Start with a round trip that was measured elsewhere, such as the handshake's, or with none."""
        self.smoothed: float | None = None
        """Smoothed round trip in seconds; None before the first sample."""
        self.least: float | None = None
        """The shortest round trip in seconds, without queues on the way; None before the first sample."""
        self._variation = 0.0
        self._patience = 1.0
        """Backoff factor of the timeout; each timeout doubles it."""
        if guess_s is not None:
            self.sample(guess_s)

    @property
    def rto(self) -> float:
        """Retransmission timeout in seconds."""
        timeout = FIRST_RTO_S if self.smoothed is None else max(self.smoothed + 4 * self._variation, MIN_RTO_S)
        return min(timeout * self._patience, MAX_RTO_S)

    def sample(self, round_trip_s: float) -> None:
        """Record the round trip of a packet that was sent only once."""
        self.least = round_trip_s if self.least is None else min(self.least, round_trip_s)
        if self.smoothed is None:
            self.smoothed = round_trip_s
            self._variation = round_trip_s / 2
        else:
            # RFC 6298 §2: weights 1/4 and 1/8.
            self._variation += (abs(self.smoothed - round_trip_s) - self._variation) / 4
            self.smoothed += (round_trip_s - self.smoothed) / 8
        self._patience = 1.0

    def timed_out(self) -> None:
        """Double the timeout."""
        # A larger factor has no effect: it would exceed the longest timeout even from the shortest one.
        self._patience = min(self._patience * 2, MAX_RTO_S / MIN_RTO_S)

    def renew(self) -> None:
        """Reset the backoff, but keep the measurements."""
        self._patience = 1.0


class Window:
    """Congestion window: the number of packets that may be on the way at once."""

    __slots__ = ("_size", "_threshold")

    def __init__(self, start: int) -> None:
        self._size = float(min(max(start, MIN_WINDOW), MAX_WINDOW))
        self._threshold = float(MAX_WINDOW)
        """Slow start threshold: below it the window doubles per round trip."""

    @property
    def packets(self) -> int:
        """The window in whole packets."""
        return int(self._size)

    def grow(self, arrived: int, on_the_way: int) -> None:
        """Grow by packets that arrived, while `on_the_way` of them were outstanding."""
        # A window that is less than half used tells nothing about the network, so it does not grow.
        if 2 * on_the_way < self._size:
            return
        if self._size < self._threshold:
            self._size = min(self._size + arrived, self._threshold)
        else:
            self._size = min(self._size + arrived / self._size, MAX_WINDOW)

    def shrink(self) -> None:
        """Halve the window after a loss."""
        self._size = self._threshold = max(self._size / 2, MIN_WINDOW)
