"""A large event on its way out: cut into parts as they are sent, so that an event is never copied as a whole.

It stands in the outbox where `Load` does (engine/streams/outbox.py). The memory of the event must not change until the last
part was sent; parts that were sent are copies, which retransmission keeps. The counterpart is engine/streams/large.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.wire.constants import PACKET_COST, Subprotocol
from meshbus.wire.frames import Packed
from meshbus.wire.header import Header
from meshbus.wire.messages.large import PART_HEAD, encode_parts, parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LargeLoad(msgspec.Struct, frozen=True, eq=False):
    """One large event or message, and the pattern of the headers of its parts."""

    header: Header
    """The pattern of a reliable stream: parts are never sent on another one."""
    event: NDArray[np.uint8]
    body_bytes: int
    """Bytes of the event in each part but the last."""
    pub_seq: int | None = None
    """The publisher's number of the event, on channels with numbered events."""
    stamp: int = 0
    """When it was published, in the form of wire/stamp.py; 0 if unknown."""

    needs = Subprotocol.LARGE
    """The subprotocol that the peer must have agreed on; nothing is sent to others."""

    @property
    def packets(self) -> int:
        """Number of packets, one for each part."""
        return parts_of(len(self.event), self.body_bytes)

    def cost(self, packet: int) -> int:
        """Return what one packet costs in credit."""
        body = min(self.body_bytes, len(self.event) - packet * self.body_bytes)
        return body + PART_HEAD + PACKET_COST

    def number_at(self, packet: int) -> int | None:
        """Return the publish number of a packet: that of the event, which every part belongs to."""
        return self.pub_seq

    def take(self, start: int, credit: int | None, packets: int) -> Packed | None:
        """Return the next packets for which there is credit, at most `packets`, or None if there is credit for none."""
        stop = min(start + packets, self.packets)
        if credit is not None:
            stop = min(stop, start + max(credit, 0) // self.cost(start))
        return encode_parts(self.event, self.body_bytes, start, stop, self.stamp) if stop > start else None
