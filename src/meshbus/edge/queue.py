"""What waits for one peer: encoded messages, bounded in number and in bytes, never a part of a message.

A *parcel* is one or more messages as they go on the wire. It is made once and the same object lies in the queue of
every peer it is for, so a message costs its bytes once, however many peers are slow. A message that finds the queue
full is dropped for this peer alone, the newest first, as libzmq does; a place that becomes free is used at once.
Nothing here knows a socket: whoever writes takes buffers, and keeps what the socket did not accept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

import msgspec

HIGH_WATER = 1_000
"""Messages that may wait for one peer; the default of libzmq."""
QUEUE_BYTES = 64 << 20
"""Bytes that may wait for one peer. One message alone may be larger: it must be able to pass."""


class Loss(StrEnum):
    """Why a message that was for a peer did not reach it."""

    HIGH_WATER = "high_water"
    """So many messages waited already."""
    QUEUE_BYTES = "queue_bytes"
    """So many bytes waited already."""
    PEER_GONE = "peer_gone"
    """It waited when the peer left."""


class Parcel(msgspec.Struct, frozen=True, eq=False):
    """Messages as they go on the wire, shared by every queue that holds them."""

    buffers: Sequence[bytes]
    messages: int
    size: int
    """Bytes of all buffers."""


def pack_parcel(messages: Sequence[Sequence[bytes]]) -> Parcel:
    """Make a parcel of messages, each given by its buffers; several are joined to one buffer."""
    if len(messages) == 1:
        buffers = messages[0]
        return Parcel(buffers, 1, len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers)))
    joined = b"".join([buffer for buffers in messages for buffer in buffers])
    return Parcel((joined,), len(messages), len(joined))


class QueueStats(msgspec.Struct, frozen=True):
    """What became of the messages for a peer: `matched` is the sum of the others, always."""

    matched: int
    taken: int
    pending: int
    dropped: dict[Loss, int]
    pending_bytes: int


class PeerQueue:
    """The messages that wait for one peer, oldest first."""

    __slots__ = ("_dropped", "_high_water", "_max_bytes", "_parcels", "_taken", "pending", "pending_bytes")

    def __init__(self, *, high_water: int = HIGH_WATER, max_bytes: int = QUEUE_BYTES) -> None:
        self._high_water = high_water
        self._max_bytes = max_bytes
        self._parcels: deque[Parcel] = deque()
        self.pending = 0
        """Messages that wait."""
        self.pending_bytes = 0
        self._taken = 0
        self._dropped = dict.fromkeys(Loss, 0)

    def obstacle(self, parcel: Parcel) -> Loss | None:
        """Say why a parcel does not fit as a whole; None when it does."""
        if self.pending + parcel.messages > self._high_water:
            return Loss.HIGH_WATER
        if self.pending_bytes + parcel.size > self._max_bytes and (self.pending or parcel.messages > 1):
            return Loss.QUEUE_BYTES
        return None

    def offer(self, parcel: Parcel) -> bool:  # hot: bench_edge
        """Add a parcel when all of it fits, else drop all of it; says which."""
        pending, size = self.pending + parcel.messages, self.pending_bytes + parcel.size
        if pending > self._high_water or size > self._max_bytes:
            obstacle = self.obstacle(parcel)
            if obstacle is not None:
                self._dropped[obstacle] += parcel.messages
                return False
        self._parcels.append(parcel)
        self.pending, self.pending_bytes = pending, size
        return True

    def take(self, max_bytes: int) -> list[bytes]:  # hot: bench_edge
        """Take buffers to write: about `max_bytes`, whole parcels, and at least one when any waits."""
        parcels = self._parcels
        if self.pending_bytes <= max_bytes:
            self._taken += self.pending
            self.pending = self.pending_bytes = 0
            buffers = [buffer for parcel in parcels for buffer in parcel.buffers]
            parcels.clear()
            return buffers
        buffers, size = list[bytes](), 0
        while parcels and (not buffers or size + parcels[0].size <= max_bytes):
            parcel = parcels.popleft()
            buffers += parcel.buffers
            size += parcel.size
            self.pending -= parcel.messages
            self._taken += parcel.messages
        self.pending_bytes -= size
        return buffers

    def close(self) -> None:
        """Drop everything that waits, because the peer is gone."""
        self._dropped[Loss.PEER_GONE] += self.pending
        self.pending = self.pending_bytes = 0
        self._parcels.clear()

    def stats(self) -> QueueStats:
        """Count what became of the messages for this peer."""
        matched = self._taken + self.pending + sum(self._dropped.values())
        return QueueStats(matched, self._taken, self.pending, dict(self._dropped), self.pending_bytes)
