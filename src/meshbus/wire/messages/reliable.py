"""Reliable streams (0x4D01): the messages between sender and receiver beside the data packets.

The receiver acknowledges (ACK, FIN_ACK), the sender numbers events and closes (BASE, FIN), either may give up (RESET).
Only the format is checked here. Whether a sequence was ever sent is checked by the sender
(engine/streams/retransmit.py); the receiver is engine/streams/reorder.py. docs/wire/profile.md has the bytes, and
docs/decisions/0006 the reasons.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

MAX_RANGES = 32
"""Ranges in one acknowledgement; further ones follow in a later acknowledgement. An ACK then has at most 406 bytes."""
NEW_STREAM_DISTANCE = 1 << 20
"""Sequences this far apart belong to different streams with the same id, because streams start at random sequences."""
FIRST_SEQUENCE = 1 << 61
"""The lowest sequence of a reliable stream. A packet with RELIABLE below it is a plain one, as 0.23 nodes send it, and
meshbus nodes before they have agreed. So the side that agreed later can still distinguish the two."""
CLOCK_NUMBERS = 1 << 60
"""The lowest publish number of a channel that its publisher does not log. Such numbers start at the wall clock in each
run, so they can be compared only within a session; those of a log start at 0 and continue over all sessions."""

_ACK = Layout("ack", "<BQQIB")
_RANGE = Struct("<QI")
_FIN = Layout("fin", "<BQQ")
_FIN_ACK = Layout("fin ack", "<BQQ")
_RESET = Layout("reset", "<BQH")
_BASE = Layout("base", "<BQQQ")
_NO_NUMBER = 0xFFFFFFFFFFFFFFFF
"""Stands for a publish number if the following events have none."""


class _Kind(IntEnum):
    ACK = 1
    FIN = 2
    FIN_ACK = 3
    RESET = 4
    BASE = 5
    START = 6


class ResetReason(IntEnum):
    """Why a stream ended early; a peer may name reasons that are not listed here.

    Codes below 0x100 come from the sender of the stream's packets, the others from their receiver. A stream id names
    one stream in each direction, so the code says which one is meant.
    """

    GAVE_UP = 1
    """Too many tries without an acknowledgement."""
    CANCELED = 2
    """The sender ended the stream."""
    REFUSED = 0x100
    """The receiver does not want this stream."""


FIRST_RECEIVER_REASON = 0x100


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledge packets. Numbers are absolute, so acknowledgements may be lost, merged or repeated."""

    stream_id: int
    cumulative: int
    """All sequences below it have arrived; 0 if the receiver does not know where the stream starts."""
    free: int
    """Packets that the receiver can still buffer."""
    ranges: tuple[tuple[int, int], ...] = ()
    """First sequence and count of what arrived above `cumulative`."""


class Fin(msgspec.Struct, frozen=True, kw_only=True):
    """Close a stream of which everything was acknowledged."""

    stream_id: int
    total: int
    """The sequence after the last packet."""


class FinAck(msgspec.Struct, frozen=True, kw_only=True):
    """Confirm the close."""

    stream_id: int
    total: int


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """End a stream early."""

    stream_id: int
    reason: int
    """Usually a ResetReason."""

    @property
    def by_receiver(self) -> bool:
        """Whether the receiver of the stream's packets sent this, not their sender."""
        return self.reason >= FIRST_RECEIVER_REASON


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """Set the number of the first event of a packet. It uses the sequence before that packet.

    A BASE that starts a stream is of the separate kind START: a receiver without state must not start where only the
    numbers jump.
    """

    stream_id: int
    sequence: int
    """The data packet that it is about; the sequence before it carries no data."""
    pub_seq: int | None
    """The publisher's number of the first event in that packet; None when events are not numbered."""
    start: bool = False
    """Nothing before that packet is for this receiver."""


ReliableMessage: TypeAlias = Ack | Fin | FinAck | Reset | Base


def encode_reliable(message: ReliableMessage) -> bytes:
    """Write a message about a reliable stream."""
    match message:
        case Ack():
            return _encode_ack(message)
        case Fin(stream_id=stream_id, total=total):
            return _FIN.pack(_Kind.FIN, stream_id, total)
        case FinAck(stream_id=stream_id, total=total):
            return _FIN_ACK.pack(_Kind.FIN_ACK, stream_id, total)
        case Reset(stream_id=stream_id, reason=reason):
            return _RESET.pack(_Kind.RESET, stream_id, reason)
        case Base(stream_id=stream_id, sequence=sequence, pub_seq=pub_seq, start=start):
            if pub_seq == _NO_NUMBER:
                raise LocalProtocolError(f"base: {pub_seq} is not a publish number, it means 'not numbered'")
            kind = _Kind.START if start else _Kind.BASE
            return _BASE.pack(kind, stream_id, sequence, _NO_NUMBER if pub_seq is None else pub_seq)


def decode_reliable(event: Buffer) -> ReliableMessage:
    """Read a message about a reliable stream."""
    if not len(event):
        raise MalformedPacket("reliable", Fault.TRUNCATED, "empty")
    match event[0]:
        case _Kind.ACK:
            return _decode_ack(event)
        case _Kind.FIN:
            _, stream_id, total = _FIN.unpack(event)
            return Fin(stream_id=stream_id, total=total)
        case _Kind.FIN_ACK:
            _, stream_id, total = _FIN_ACK.unpack(event)
            return FinAck(stream_id=stream_id, total=total)
        case _Kind.RESET:
            _, stream_id, reason = _RESET.unpack(event)
            return Reset(stream_id=stream_id, reason=reason)
        case _Kind.BASE | _Kind.START:
            kind, stream_id, sequence, number = _BASE.unpack(event)
            pub_seq = None if number == _NO_NUMBER else number
            return Base(stream_id=stream_id, sequence=sequence, pub_seq=pub_seq, start=kind == _Kind.START)
        case kind:
            raise MalformedPacket("reliable", Fault.UNKNOWN_KIND, f"kind {kind}")


def _encode_ack(ack: Ack) -> bytes:
    count = len(ack.ranges)
    if count > MAX_RANGES:
        raise LocalProtocolError(f"ack: {count} ranges, at most {MAX_RANGES} fit")
    head = _ACK.pack(_Kind.ACK, ack.stream_id, ack.cumulative, ack.free, count)
    if not count:
        return head
    for first, size in ack.ranges:
        # Checked here, because `struct.error` would not name the range.
        if not (0 <= first <= 0xFFFFFFFFFFFFFFFF and 0 < size <= 0xFFFFFFFF):
            raise LocalProtocolError(f"ack: a range of {size} packets from {first} on cannot be written")
    return head + b"".join(_RANGE.pack(first, size) for first, size in ack.ranges)


def _decode_ack(event: Buffer) -> Ack:
    _, stream_id, cumulative, free, count = _ACK.unpack_prefix(event)
    if count > MAX_RANGES:
        raise MalformedPacket("ack", Fault.BAD_VALUE, f"{count} ranges, at most {MAX_RANGES} are legal")
    size = _ACK.size + count * _RANGE.size
    if len(event) != size:
        fault = Fault.TRUNCATED if len(event) < size else Fault.TRAILING
        raise MalformedPacket("ack", fault, f"{len(event)} bytes for {count} ranges")
    ranges = tuple(_RANGE.iter_unpack(memoryview(event)[_ACK.size :])) if count else ()
    # An empty range acknowledges nothing, so no honest receiver sends one.
    if any(length == 0 for _, length in ranges):
        raise MalformedPacket("ack", Fault.BAD_VALUE, "an empty range")
    return Ack(stream_id=stream_id, cumulative=cumulative, free=free, ranges=ranges)
