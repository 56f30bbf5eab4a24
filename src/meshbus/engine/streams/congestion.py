"""How fast a reliable stream may go: the round trip it sees, and the packets it dares to have on the way.

The retransmission timeout is the smoothed round trip plus four times its variation, and doubles with each timeout
until a packet that was sent only once is acknowledged: the answer to a repeated packet does not tell which copy it
answers. The window starts small, doubles per round trip until the first loss, then grows by one per round trip; a
loss halves it. engine/streams/retransmit.py decides what counts as a loss.
"""

from __future__ import annotations

MIN_RTO_S = 0.010
"""Twice the time a receiver may hold back an acknowledgement."""
MAX_RTO_S = 2.0
FIRST_RTO_S = 0.2
"""Before anything was measured."""

LOOPBACK_WINDOW = 64
"""Packets a stream starts with where packets are lost only by a full socket."""
NETWORK_WINDOW = 10
"""Packets a stream starts with elsewhere."""
MIN_WINDOW = 2
MAX_WINDOW = 4096
"""Packets; what a sender keeps in memory for one stream is bounded by it."""


class RoundTrip:
    """The time an answer takes, and how long to wait for one."""

    __slots__ = ("_patience", "_variation", "smoothed")

    def __init__(self, guess_s: float | None = None) -> None:
        """Start from a round trip seen elsewhere, such as the handshake's, or from nothing."""
        self.smoothed: float | None = None
        """Seconds; None before the first sample."""
        self._variation = 0.0
        self._patience = 1.0
        """The timeout is this many times longer: doubled by each timeout."""
        if guess_s is not None:
            self.sample(guess_s)

    @property
    def rto(self) -> float:
        """Seconds without an answer after which a packet counts as lost."""
        timeout = FIRST_RTO_S if self.smoothed is None else max(self.smoothed + 4 * self._variation, MIN_RTO_S)
        return min(timeout * self._patience, MAX_RTO_S)

    def sample(self, round_trip_s: float) -> None:
        """Take in one measurement, of a packet that was sent only once."""
        if self.smoothed is None:
            self.smoothed = round_trip_s
            self._variation = round_trip_s / 2
        else:
            # The weights of RFC 6298.
            self._variation += (abs(self.smoothed - round_trip_s) - self._variation) / 4
            self.smoothed += (round_trip_s - self.smoothed) / 8
        self._patience = 1.0

    def timed_out(self) -> None:
        """Wait twice as long from now on."""
        # Beyond the largest timeout more patience has no effect.
        self._patience = min(self._patience * 2, MAX_RTO_S / MIN_RTO_S)

    def renew(self) -> None:
        """Forget the timeouts so far, but not the measurements."""
        self._patience = 1.0


class Window:
    """Packets that may be on the way at once."""

    __slots__ = ("_size", "_threshold")

    def __init__(self, start: int) -> None:
        self._size = float(min(max(start, MIN_WINDOW), MAX_WINDOW))
        self._threshold = float(MAX_WINDOW)
        """Below it the window doubles per round trip."""

    @property
    def packets(self) -> int:
        """The window in whole packets."""
        return int(self._size)

    def grow(self, arrived: int, on_the_way: int) -> None:
        """Count packets that arrived while so many were on the way; a window that is not used does not grow."""
        if 2 * on_the_way < self._size:
            return
        if self._size < self._threshold:
            self._size = min(self._size + arrived, self._threshold)
        else:
            self._size = min(self._size + arrived / self._size, MAX_WINDOW)

    def shrink(self) -> None:
        """Halve the window after a loss."""
        self._size = self._threshold = max(self._size / 2, MIN_WINDOW)
