"""Large events (0x4D0A): the parts of an event that does not fit a packet, and the refusal of one.

A part is a packet of a reliable stream whose header counts no event: `size u32, offset u32, bytes`. Parts follow each other
in the order of their offsets, and the one that reaches `size` completes the event. The stream is that of the event, so the
event keeps its place among the small ones. engine/streams/large.py puts events together, engine/streams/largeload.py cuts
them. The bytes are in docs/wire/profile.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from meshbus import jit
from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.constants import MAX_LARGE_EVENT
from meshbus.wire.frames import Packed
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]

_PART = Layout("part", "<II")
_REFUSED = Layout("refused event", "<BQQII")
_SIZE_AND_OFFSET = np.dtype("<u4")
_U8, _I64 = np.dtype(np.uint8), np.dtype(np.int64)
_NO_NUMBER = 0xFFFFFFFFFFFFFFFF
_REFUSED_KIND = 1

PART_HEAD = _PART.size
"""8: what each part adds to its bytes."""
_HEAD_BYTES = np.arange(PART_HEAD)
REQUEST_OVERHEAD = 512
"""Bytes by which a message may be larger than the payload that it carries: a head and a channel name."""
MAX_MESSAGE = MAX_LARGE_EVENT + REQUEST_OVERHEAD
"""The largest thing that parts carry: a request with a payload of the largest size."""


class Part(NamedTuple):
    """One part of an event."""

    size: int
    """Bytes of the whole event."""
    offset: int
    """Where the bytes of this part belong."""
    body: memoryview


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Refuse a large event, so that its sender need not send the rest."""

    stream_id: int
    number: int | None
    """The publish number of the event; None if the events of the stream have none."""
    size: int
    limit: int
    """The largest event that the receiver takes on this stream, in bytes."""


def parts_of(size: int, body_bytes: int) -> int:
    """Return how many parts an event of `size` bytes has, of which each but the last carries `body_bytes`."""
    return -(-size // body_bytes)


def encode_parts(event: NDArray[np.uint8], body_bytes: int, start: int, stop: int, stamp: int) -> Packed:
    """Write the parts of an event from number `start` to `stop`, exclusive; each payload is one part."""
    first, last = start * body_bytes, min(stop * body_bytes, len(event))
    whole, rest = divmod(last - first, body_bytes)
    stride, count = body_bytes + PART_HEAD, stop - start
    data = np.empty(whole * stride + (PART_HEAD + rest if rest else 0), _U8)
    heads = np.empty((count, 2), _SIZE_AND_OFFSET)
    heads[:, 0] = len(event)
    heads[:, 1] = np.arange(start, stop, dtype=_I64) * body_bytes
    raw = heads.view(_U8)
    # All full parts are copied at once; only the last part of an event may be shorter.
    rows = data[: whole * stride].reshape(whole, stride)
    rows[:, :PART_HEAD] = raw[:whole]
    rows[:, PART_HEAD:] = event[first : first + whole * body_bytes].reshape(whole, body_bytes)
    if rest:
        data[whole * stride : whole * stride + PART_HEAD] = raw[whole]
        data[whole * stride + PART_HEAD :] = event[last - rest : last]
    bounds = np.arange(count + 1, dtype=_I64) * stride
    bounds[-1] = len(data)
    return Packed(data, bounds, np.zeros(count, _I64), stamp)


def decode_part(payload: Buffer) -> Part:
    """Read a part; its body is a view into the payload.

    Raises MalformedPacket for a part that is empty, beyond the size that it claims, or of an event that is too large.
    """
    view = memoryview(payload)
    size, offset = _PART.unpack_prefix(view)
    body = view[PART_HEAD:]
    if size > MAX_MESSAGE:
        raise MalformedPacket("part", Fault.BAD_VALUE, f"of {size} bytes, at most {MAX_MESSAGE}")
    if not body or offset + len(body) > size:
        raise MalformedPacket("part", Fault.BAD_LENGTH, f"{len(body)} bytes at {offset} of {size}")
    return Part(size, offset, body)


def read_heads(data: Bytes, starts: Places) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return size and offset of parts that are long enough to have them."""
    heads = data[starts[:, np.newaxis] + _HEAD_BYTES].view(_SIZE_AND_OFFSET)
    return heads[:, 0], heads[:, 1]


def join_parts(data: Bytes, starts: Places, lengths: Places, event: Bytes, filled: int) -> int:  # hot: bench_large
    """Write parts to their place in an event, as long as each continues it, and return how many did.

    `filled` is how much of the event is there already. Parts that are malformed continue nothing.
    """
    return _join.run(jit.writable(data), starts, lengths, event, filled)


def encode_refused(message: Refused) -> bytes:
    """Write a refusal."""
    number = _NO_NUMBER if message.number is None else message.number
    return _REFUSED.pack(_REFUSED_KIND, message.stream_id, number, message.size, message.limit)


def decode_refused(event: Buffer) -> Refused:
    """Read a refusal; raises MalformedPacket."""
    view = memoryview(event)
    if view and view[0] != _REFUSED_KIND:
        raise MalformedPacket("refused event", Fault.UNKNOWN_KIND, f"kind {view[0]}")
    _, stream_id, number, size, limit = _REFUSED.unpack(view)
    return Refused(stream_id=stream_id, number=None if number == _NO_NUMBER else number, size=size, limit=limit)


def _join_reference(data: Bytes, starts: Places, lengths: Places, event: Bytes, filled: int) -> int:
    view, target = data.data, event.data
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        try:
            part = decode_part(view[start : start + length])
        except MalformedPacket:
            return row
        end = filled + len(part.body)
        if part.size != len(event) or part.offset != filled:
            return row
        target[filled:end] = part.body
        filled = end
    return len(starts)


@jit.kernel(_join_reference)
def _join(data: Bytes, starts: Places, lengths: Places, event: Bytes, filled: int) -> int:
    source, target, size = data.ctypes.data, event.ctypes.data, len(event)
    for i in range(len(starts)):
        start, body = starts[i], lengths[i] - PART_HEAD
        # An event is never larger than MAX_MESSAGE, so a part of its size is not either.
        if body <= 0 or start < 0 or start + lengths[i] > len(data) or filled + body > size:
            return i
        if jit.load_u32(source + start) != size or jit.load_u32(source + start + 4) != filled:
            return i
        jit.copy_bytes(target + filled, source + start + PART_HEAD, body)
        filled += body
    return len(starts)
