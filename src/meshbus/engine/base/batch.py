"""Events as they leave the engine: columns for a whole batch, single objects only on demand.

A batch holds events of one sender on one stream, in order. Payloads are one data array with offsets (Arrow's binary
layout); where each event was on the wire is kept per packet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from meshbus.names.channel import ChannelName
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Header

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Event(msgspec.Struct, frozen=True):
    """One event."""

    payload: bytes
    channel: ChannelName | None
    """None for events that were not published on a channel we know."""
    publisher: int
    """Node id of the sender."""
    pub_seq: int | None = None
    """The publisher's number of this event on the channel, where it is known."""
    subprotocol_id: int = Subprotocol.EVENTS
    """Not 0 for opaque messages, which are never mixed with plain events."""
    ts_ns: int | None = None
    """When the publisher logged it, where it was read from the publisher's log."""


class Stamp(NamedTuple):
    """What the header of a packet says about its way; of a batch, as the packet that came last on its stream says."""

    flags: int = 0
    hop_ttl: int = 0
    hop_count: int = 0
    subnet_id: int = 0
    """The subnet of the sender, as it says."""

    @classmethod
    def of(cls, header: Header) -> Stamp:
        """Take it from a header."""
        return cls(header.flags, header.hop_ttl, header.hop_count, header.subnet_id)

    @classmethod
    def of_row(cls, row: bytes) -> Stamp:
        """Take it from the bytes of a header."""
        return cls(row[3], row[5], row[6], int.from_bytes(row[56:60], "little"))


class EventBatch(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Events of one sender on one stream, in order."""

    offsets: NDArray[np.int64]
    """Event `i` is `data[offsets[i] : offsets[i + 1]]`."""
    data: NDArray[np.uint8]
    publisher: int
    session_id: int
    stream_id: int
    channel: ChannelName | None = None
    subprotocol_id: int = Subprotocol.EVENTS
    origin_hash: int = 0
    packet_seqs: NDArray[np.uint64]
    """Sequence numbers of the packets the events came in; none where they came from a log."""
    packet_events: NDArray[np.int64]
    """Events in each of those packets."""
    pub_seq: int | None = None
    """The publisher's number of the first event, where it is known; the others count on."""
    stamp: Stamp = Stamp()
    received_ns: int = 0
    """Wall clock at receipt."""
    reading: int | None = None
    """The reading of a publisher's log that the events came by; None for those published to us."""
    times: NDArray[np.int64] | None = None
    """When each event was logged by its publisher (unix nanoseconds), where it came from a log."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads together."""
        return int(self.offsets[-1] - self.offsets[0])

    def payload(self, index: int) -> memoryview:
        """Give one payload as a view into the batch."""
        return self.data.data[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def payloads(self) -> list[bytes]:
        """Give all payloads as bytes; costs an object per event."""
        raw, edges = self.data.tobytes(), self.offsets.tolist()
        return [raw[start:end] for start, end in pairwise(edges)]

    def __iter__(self) -> Iterator[Event]:
        """Go through the events one by one; costs an object per event."""
        times = repeat(None) if self.times is None else self.times.tolist()
        for number, (payload, ts_ns) in enumerate(zip(self.payloads(), times, strict=False)):
            pub_seq = None if self.pub_seq is None else self.pub_seq + number
            yield Event(payload, self.channel, self.publisher, pub_seq, self.subprotocol_id, ts_ns)

    def slice(self, start: int, stop: int) -> EventBatch:
        """Give some of the events, sharing their memory."""
        packets = np.cumsum(self.packet_events)
        first = int(np.searchsorted(packets, start, side="right"))
        last = int(np.searchsorted(packets, stop, side="left")) + 1
        counts = self.packet_events[first:last].copy()
        if len(counts):
            counts[-1] -= max(int(packets[min(last, len(packets)) - 1]) - stop, 0)
            counts[0] -= start - (int(packets[first]) - int(self.packet_events[first]))
        return msgspec.structs.replace(
            self,
            offsets=self.offsets[start : stop + 1],
            packet_seqs=self.packet_seqs[first:last],
            packet_events=counts,
            pub_seq=None if self.pub_seq is None else self.pub_seq + start,
            times=None if self.times is None else self.times[start:stop],
        )

    def to_arrow(self) -> Any:
        """Give the payloads as a pyarrow LargeBinaryArray that shares the memory of the batch."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)
