"""The services that repair reliable streams of net-mesh peers from 0.27 on: NACK, RESET and ranges (0x0B01 to 0x0B03).

They read the messages and pass them to the traffic with the peer: NACKs and ranges are about what this node sends
(engine/streams/repeating.py), a RESET about what it receives (engine/streams/ordering.py). Whoever sends one is not of
level A.
"""

from __future__ import annotations

from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.streams import Streams
from meshbus.errors import RemoteProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.messages.streamrepair import decode_nack, decode_ranges, decode_reset


class _Repair(Service):
    """What the three have in common."""

    def __init__(self, context: Context, streams: Streams) -> None:
        self._counters = context.counters
        self._streams = streams

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message; count it if it cannot be read."""
        try:
            self.take(peer, message, now, out)
        except RemoteProtocolError:
            self._counters.count(Reason.REPAIR_MALFORMED)
            return
        peer.dialect.learn(Level.B)

    def take(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Read the message and pass it on."""
        raise NotImplementedError


class StreamNacks(_Repair):
    """Repeats the packets that a receiver misses (0x0B01)."""

    def take(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Read a NACK and pass it on."""
        nack = decode_nack(message)
        self._streams.traffic_of(peer).on_nack(nack, now, out)


class StreamResets(_Repair):
    """Skips what a sender gave up (0x0B02)."""

    def take(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Read a RESET and pass it on."""
        reset = decode_reset(message)
        self._streams.traffic_of(peer).on_reset(reset.stream_id, now)


class AcknowledgedRanges(_Repair):
    """Records what a receiver has above a gap (0x0B03)."""

    def take(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Read ranges and pass them on."""
        ranges = decode_ranges(message)
        self._streams.traffic_of(peer).on_ranges(ranges, now, out)
