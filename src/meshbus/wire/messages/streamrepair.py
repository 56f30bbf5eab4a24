"""Repair of reliable streams: NACK (0x0B01), RESET (0x0B02) and ranges (0x0B03) of net-mesh 0.27 and later.

Each message is one event on the control stream and has an exact length; anything else is dropped (dialects.md §2.2 to
§2.4). Acknowledgements themselves are part of the credit grant (wire/messages/window.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

BITMAP_BITS = 64
MAX_RANGES = 16

_NACK = Layout("stream nack", "<QQQ")
_RESET = Layout("stream reset", "<Q")
_RANGES = Layout("stream ranges", "<QQ")
_RANGE = Layout("stream range", "<QQ")


class StreamNack(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the sender for packets that are missing."""

    stream_id: int
    next_expected: int
    """The first sequence that is missing; everything below it arrived."""
    bitmap: int = 0
    """Bit `i` is set if `next_expected + 1 + i` is missing too."""

    @property
    def last(self) -> int:
        """The highest sequence that is named; something above it arrived."""
        return self.next_expected + self.bitmap.bit_length()

    def missing(self) -> Iterator[int]:
        """Yield the missing sequences, lowest first."""
        yield self.next_expected
        for place in range(BITMAP_BITS):
            if self.bitmap >> place & 1:
                yield self.next_expected + 1 + place

    @classmethod
    def of(cls, stream_id: int, next_expected: int, arrived: Iterable[int]) -> StreamNack:
        """Build the NACK of a receiver that has these sequences above the first missing one."""
        above = {sequence - next_expected - 1 for sequence in arrived}
        last = min(max(above, default=-1), BITMAP_BITS)
        bitmap = sum(1 << place for place in range(last) if place not in above)
        return cls(stream_id=stream_id, next_expected=next_expected, bitmap=bitmap)


class StreamReset(msgspec.Struct, frozen=True, kw_only=True):
    """Report that at least one packet was given up."""

    stream_id: int


class StreamRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Report what arrived above a gap."""

    stream_id: int
    ack_seq: int
    """The lowest sequence that did not arrive yet."""
    ranges: tuple[tuple[int, int], ...]
    """Start and end of what arrived, the end exclusive; the newest range first, none touching another."""


def encode_nack(nack: StreamNack) -> bytes:
    """Write a NACK."""
    return _NACK.pack(nack.stream_id, nack.next_expected, nack.bitmap)


def decode_nack(event: Buffer) -> StreamNack:
    """Read a NACK."""
    stream_id, next_expected, bitmap = _NACK.unpack(event)
    return StreamNack(stream_id=stream_id, next_expected=next_expected, bitmap=bitmap)


def encode_reset(reset: StreamReset) -> bytes:
    """Write a RESET."""
    return _RESET.pack(reset.stream_id)


def decode_reset(event: Buffer) -> StreamReset:
    """Read a RESET."""
    (stream_id,) = _RESET.unpack(event)
    return StreamReset(stream_id=stream_id)


def encode_ranges(ranges: StreamRanges) -> bytes:
    """Write what arrived above a gap; raise LocalProtocolError for ranges that a peer would refuse."""
    problem = _problem(ranges.ack_seq, ranges.ranges)
    if problem is not None:
        raise LocalProtocolError(f"stream ranges: {problem}")
    head = _RANGES.pack(ranges.stream_id, ranges.ack_seq)
    return head + b"".join(_RANGE.pack(start, end) for start, end in ranges.ranges)


def decode_ranges(event: Buffer) -> StreamRanges:
    """Read what arrived above a gap; wrong ranges are refused whole."""
    view = memoryview(event)
    stream_id, ack_seq = _RANGES.unpack_prefix(view)
    rest = view[_RANGES.size :]
    if len(rest) % _RANGE.size:
        raise MalformedPacket("stream ranges", Fault.BAD_LENGTH, f"{len(view)} bytes")
    ranges = tuple(
        (start, end) for start, end in (_RANGE.unpack_prefix(rest[at:]) for at in range(0, len(rest), _RANGE.size))
    )
    problem = _problem(ack_seq, ranges)
    if problem is not None:
        raise MalformedPacket("stream ranges", Fault.BAD_VALUE, problem)
    return StreamRanges(stream_id=stream_id, ack_seq=ack_seq, ranges=ranges)


def _problem(ack_seq: int, ranges: tuple[tuple[int, int], ...]) -> str | None:
    """Return what is wrong with ranges, or None (dialects.md §2.4)."""
    if not 1 <= len(ranges) <= MAX_RANGES:
        return f"{len(ranges)} ranges, expected 1 to {MAX_RANGES}"
    limit: int | None = None
    for start, end in ranges:
        if not ack_seq < start < end or (limit is not None and end >= limit):
            return f"range {start} to {end} is empty, out of order, or touches another or the acknowledged part"
        limit = start
    return None
