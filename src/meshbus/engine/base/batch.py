"""Event batches: the columns in which events leave the engine; single event objects are made only on demand.

A batch holds events of one sender on one stream, in order. Payloads are one data array with offsets, which is Arrow's
binary layout. Sequence numbers are kept per packet, not per event. An event that comes alone is kept as it is: making
its arrays takes longer than opening its packet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meshbus.names.channel import ChannelName
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.messages.reliable import FIRST_SEQUENCE
from meshbus.wire.stamp import restore_time, restore_times

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Event(msgspec.Struct, frozen=True):
    """One event."""

    payload: bytes
    channel: ChannelName | None
    """None if the event was not published on a channel that this node subscribed to."""
    publisher: int
    """Node id of the sender."""
    pub_seq: int | None = None
    """The publisher's number of this event on the channel, if known."""
    subprotocol_id: int = Subprotocol.EVENTS
    """0 for plain events; otherwise an opaque message of this subprotocol, never mixed with plain events."""
    ts_ns: int | None = None
    """When the publisher logged the event (Unix nanoseconds), if it was read from the publisher's log."""


class Stamp(msgspec.Struct, frozen=True):
    """Header fields about a packet's path. The stamp of a batch is from the packet of its stream that came last."""

    flags: int = 0
    hop_ttl: int = 0
    hop_count: int = 0
    subnet_id: int = 0
    """The subnet that the sender claims; 0.23 nodes always send 0 (transport.md §3)."""

    @classmethod
    def of(cls, header: Header) -> Stamp:
        """Build the stamp of a parsed header."""
        return cls(header.flags, header.hop_ttl, header.hop_count, header.subnet_id)

    @classmethod
    def of_row(cls, row: bytes) -> Stamp:
        """Build the stamp of a packed header."""
        # transport.md §3: flags at byte 3, hop_ttl at 5, hop_count at 6, subnet_id at 56.
        return cls(row[3], row[5], row[6], int.from_bytes(row[56:60], "little"))


class EventBatch(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Events of one sender on one stream, in order: as columns (`EventColumns`), or just one (`SingleEvent`).

    The columns can be read from both; a single event makes them only when they are asked for.
    """

    publisher: int
    session_id: int
    stream_id: int
    channel: ChannelName | None = None
    subprotocol_id: int = Subprotocol.EVENTS
    origin_hash: int = 0
    pub_seq: int | None = None
    """The publisher's number of the first event, if known; the following events are numbered consecutively."""
    stamp: Stamp = Stamp()
    received_ns: int = 0
    """Wall clock at receipt (Unix nanoseconds)."""
    reading: int | None = None
    """The reading of a publisher's log that returned the events; None for events that were published to this node."""
    lost: int = 0
    """Packets of a best-effort stream found missing since the batch before; negative if more came late than are missing."""
    publisher_clock_ns: int | None = None
    """The publisher's clock at receipt (Unix nanoseconds), by which the stamps are restored; None if not known."""
    times: NDArray[np.int64] | None = None
    """When the publisher logged each event (Unix nanoseconds), for events from a log."""

    if TYPE_CHECKING:  # each form has them in its own way

        @property
        def offsets(self) -> NDArray[np.int64]:
            """Where events begin and end: event `i` is `data[offsets[i] : offsets[i + 1]]`."""

        @property
        def data(self) -> NDArray[np.uint8]:
            """The payloads, one after the other."""

        @property
        def packet_seqs(self) -> NDArray[np.uint64]:
            """Sequence numbers of the packets that carried the events; empty for events from a log."""

        @property
        def packet_events(self) -> NDArray[np.int64]:
            """Number of events in each of those packets."""

        @property
        def packet_stamps(self) -> NDArray[np.uint32] | None:
            """When the events of each packet were published, as wire/stamp.py writes it; None if the publisher does not say."""

        def slice(self, start: int, stop: int) -> EventBatch:
            """Return a range of the events as a batch that shares the memory of this one."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Total size of the payloads in bytes."""
        return self.offsets.item(-1) - self.offsets.item(0)

    @property
    def is_best_effort(self) -> bool:
        """Whether the events came in packets that are not sent again if they are lost."""
        # docs/wire/profile.md: sequences of reliable streams start at 2^61. Events from a log have no packets.
        return len(self.packet_seqs) > 0 and self.packet_seqs.item(0) < FIRST_SEQUENCE

    def payloads(self) -> list[bytes]:
        """Return all payloads as bytes objects; costs one object per event."""
        # Slices of bytes by plain numbers: slicing an array for each event is slower.
        raw, edges = self.data.tobytes(), self.offsets.tolist()
        return [raw[start:end] for start, end in pairwise(edges)]

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events; costs one object per event."""
        known = self.event_times()
        times = repeat(None) if known is None else known.tolist()
        for number, (payload, ts_ns) in enumerate(zip(self.payloads(), times, strict=False)):
            pub_seq = None if self.pub_seq is None else self.pub_seq + number
            yield Event(payload, self.channel, self.publisher, pub_seq, self.subprotocol_id, ts_ns)

    def event_times(self) -> NDArray[np.int64] | None:
        """Return when each event was published or logged by its publisher (Unix nanoseconds); None if unknown."""
        stamps, clock_ns = self.packet_stamps, self.publisher_clock_ns
        if self.times is not None or stamps is None or clock_ns is None:
            return self.times
        # Restored only for those who ask: most subscribers never look at the time. 0 is a packet without one.
        if np.count_nonzero(stamps) < len(stamps):
            return None
        # All events of a packet were published together, so they share its time.
        return np.repeat(restore_times(stamps, clock_ns), self.packet_events)

    def payload(self, index: int) -> memoryview:
        """Return one payload as a view into the batch."""
        return self.data.data[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def to_arrow(self) -> Any:
        """Return the payloads as a pyarrow LargeBinaryArray that shares the memory of the batch."""
        # Imported here: the engine must work without pyarrow.
        import pyarrow as pa

        # No validity bitmap: a payload is never null. Offsets need not start at 0.
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)


class EventColumns(EventBatch, frozen=True, eq=False, kw_only=True):
    """Any number of events, as columns."""

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]
    packet_seqs: NDArray[np.uint64]
    packet_events: NDArray[np.int64]
    packet_stamps: NDArray[np.uint32] | None = None

    def slice(self, start: int, stop: int) -> EventBatch:
        """Return a range of the events as a batch that shares the memory of this one."""
        packets = np.cumsum(self.packet_events)
        # The packet that holds event `start`, and one past the packet that holds event `stop - 1`.
        first = int(np.searchsorted(packets, start, side="right"))
        last = int(np.searchsorted(packets, stop, side="left")) + 1
        counts = self.packet_events[first:last].copy()
        # The first and the last packet may be cut: count only their events within the range.
        if len(counts):
            counts[-1] -= max(int(packets[min(last, len(packets)) - 1]) - stop, 0)
            counts[0] -= start - (int(packets[first]) - int(self.packet_events[first]))
        return msgspec.structs.replace(
            self,
            offsets=self.offsets[start : stop + 1],
            packet_seqs=self.packet_seqs[first:last],
            packet_events=counts,
            pub_seq=None if self.pub_seq is None else self.pub_seq + start,
            # The loss was found before the first event, so only the first slice reports it.
            lost=self.lost if start == 0 else 0,
            packet_stamps=None if self.packet_stamps is None else self.packet_stamps[first:last],
            times=None if self.times is None else self.times[start:stop],
        )


class SingleEvent(EventBatch, frozen=True, eq=False, kw_only=True):
    """One event that came in a packet of its own. Its arrays are made when they are read: most readers never do."""

    event: bytes
    sequence: int
    """Sequence number of the packet."""
    packet_stamp: int | None = None
    """When the event was published, as wire/stamp.py writes it; None if the publisher does not say."""

    def __len__(self) -> int:
        return 1

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
        return len(self.event)

    @property
    def is_best_effort(self) -> bool:
        """Whether the event came in a packet that is not sent again if it is lost."""
        return self.sequence < FIRST_SEQUENCE

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the event begins and ends in `data`."""
        return np.array((0, len(self.event)), np.int64)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The payload."""
        return np.frombuffer(self.event, np.uint8)

    @property
    def packet_seqs(self) -> NDArray[np.uint64]:
        """Sequence number of the packet."""
        return np.array((self.sequence,), np.uint64)

    @property
    def packet_events(self) -> NDArray[np.int64]:
        """Number of events in the packet: 1."""
        return np.ones(1, np.int64)

    @property
    def packet_stamps(self) -> NDArray[np.uint32] | None:
        """When the event was published, as wire/stamp.py writes it; None if the publisher does not say."""
        return None if self.packet_stamp is None else np.array((self.packet_stamp,), np.uint32)

    def payloads(self) -> list[bytes]:
        """Return the payload, in a list."""
        return [self.event]

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the event."""
        yield Event(self.event, self.channel, self.publisher, self.pub_seq, self.subprotocol_id, self._time_ns())

    def slice(self, start: int, stop: int) -> EventBatch:
        """Return a range of the events: this one, or none."""
        if start < stop:
            return self
        fields = {name: getattr(self, name) for name in EventColumns.__struct_fields__}
        return EventColumns(**fields).slice(start, stop)

    def _time_ns(self) -> int | None:
        # 0 is a packet without a time.
        if not self.packet_stamp or self.publisher_clock_ns is None:
            return None
        return restore_time(self.packet_stamp, self.publisher_clock_ns)
