"""Queue of encoded messages for one peer, bounded in messages and in bytes.

A *parcel* is one or more whole messages, encoded for the wire. It is encoded once, and every peer's queue holds the same
object, so a message takes memory once, however many peers are slow. If a queue is full, the new message is dropped for
this peer only, as libzmq does (pubsub.md §4); unlike there, free space is used at once. The queue knows no socket: the
caller of `take` keeps what the socket did not accept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

import msgspec

HIGH_WATER = 1_000
"""Messages that may wait for one peer; the default of libzmq (pubsub.md §4)."""
QUEUE_BYTES = 64 << 20
"""Bytes that may wait for one peer: 1000 messages of 64 KiB. A single message may be larger."""


class Loss(StrEnum):
    """Why a message for a peer was dropped."""

    HIGH_WATER = "high_water"
    """The queue held the maximum number of messages."""
    QUEUE_BYTES = "queue_bytes"
    """The queue held the maximum number of bytes."""
    PEER_GONE = "peer_gone"
    """The message was in the queue when the peer disconnected."""


class Parcel(msgspec.Struct, frozen=True, eq=False):
    """Messages encoded for the wire, shared by all queues that hold them."""

    buffers: Sequence[bytes]
    messages: int
    size: int
    """Total bytes of the buffers."""


def pack_parcel(messages: Sequence[Sequence[bytes]]) -> Parcel:
    """Make a parcel of messages, each a sequence of buffers; several messages are joined into one buffer."""
    if len(messages) == 1:
        buffers = messages[0]
        return Parcel(buffers, 1, len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers)))
    joined = b"".join([buffer for buffers in messages for buffer in buffers])
    return Parcel((joined,), len(messages), len(joined))


class QueueStats(msgspec.Struct, frozen=True):
    """Message counts of one peer; `matched` is always the sum of `taken`, `pending` and all `dropped`."""

    matched: int
    taken: int
    pending: int
    dropped: dict[Loss, int]
    pending_bytes: int


class PeerQueue:
    """Messages waiting for one peer, oldest first."""

    __slots__ = ("_dropped", "_high_water", "_max_bytes", "_parcels", "_taken", "pending", "pending_bytes")

    def __init__(self, *, high_water: int = HIGH_WATER, max_bytes: int = QUEUE_BYTES) -> None:
        self._high_water = high_water
        self._max_bytes = max_bytes
        self._parcels: deque[Parcel] = deque()
        self.pending = 0
        """Number of waiting messages."""
        self.pending_bytes = 0
        self._taken = 0
        self._dropped = dict.fromkeys(Loss, 0)

    def obstacle(self, parcel: Parcel) -> Loss | None:
        """Return why the whole parcel does not fit, or None if it fits."""
        if self.pending + parcel.messages > self._high_water:
            return Loss.HIGH_WATER
        # A single message larger than the limit may enter an empty queue, because it could never be sent otherwise.
        if self.pending_bytes + parcel.size > self._max_bytes and (self.pending or parcel.messages > 1):
            return Loss.QUEUE_BYTES
        return None

    def offer(self, parcel: Parcel) -> bool:  # hot: bench_edge
        """Add a parcel if all of it fits, else drop all of it; return whether it was added."""
        pending, size = self.pending + parcel.messages, self.pending_bytes + parcel.size
        # Two comparisons in the common case; only a parcel that may not fit is examined by `obstacle`.
        if pending > self._high_water or size > self._max_bytes:
            obstacle = self.obstacle(parcel)
            if obstacle is not None:
                self._dropped[obstacle] += parcel.messages
                return False
        self._parcels.append(parcel)
        self.pending, self.pending_bytes = pending, size
        return True

    def take(self, max_bytes: int) -> list[bytes]:  # hot: bench_edge
        """Remove and return buffers to write: whole parcels, about `max_bytes`, at least one parcel if any waits."""
        parcels = self._parcels
        # Everything fits one write: no need to add up the parcels.
        if self.pending_bytes <= max_bytes:
            self._taken += self.pending
            self.pending = self.pending_bytes = 0
            buffers = [buffer for parcel in parcels for buffer in parcel.buffers]
            parcels.clear()
            return buffers
        buffers, size = list[bytes](), 0
        # At least one parcel, or a message above `max_bytes` would never leave.
        while parcels and (not buffers or size + parcels[0].size <= max_bytes):
            parcel = parcels.popleft()
            buffers += parcel.buffers
            size += parcel.size
            self.pending -= parcel.messages
            self._taken += parcel.messages
        self.pending_bytes -= size
        return buffers

    def close(self) -> None:
        """Drop and count all waiting messages, because the peer disconnected."""
        self._dropped[Loss.PEER_GONE] += self.pending
        self.pending = self.pending_bytes = 0
        self._parcels.clear()

    def stats(self) -> QueueStats:
        """Return the message counts of this peer."""
        matched = self._taken + self.pending + sum(self._dropped.values())
        return QueueStats(matched, self._taken, self.pending, dict(self._dropped), self.pending_bytes)
