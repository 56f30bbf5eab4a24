"""Slices: how many parts of large events are sent in one call into the engine, to all peers together.

Sealing and sending a part takes about ten microseconds, and a node does nothing else meanwhile. A large event for twenty
subscribers would hold up everything for as long as all its first parts take, although a flight of them to one peer is short.
So a call sends one slice; the rest follows with the next call, at the latest after `SLICE_S`. In between, a node reads its
sockets and publishes small events. engine/streams/traffic.py asks before it sends.
"""

from __future__ import annotations

from math import inf

SLICE_PARTS = 64
"""Parts of one slice. Our choice: the flight of one peer (streams/traffic.py), which takes less than a millisecond."""
SLICE_S = 0.0005
"""When the rest is sent, if no acknowledgement causes it earlier. Our choice: the shortest delay of the driver's timer."""


class PartSlice:
    """The slice of this moment; calls at one time share it."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._at = -inf
        self._left = 0

    def left(self, now: float) -> int:
        """Return how many parts may still be sent now."""
        if now != self._at:
            self._at, self._left = now, SLICE_PARTS
        return self._left

    def take(self, parts: int) -> None:
        """Count parts that are being sent; `left` was asked for them."""
        self._left -= parts
