"""Event frames in a payload: `u32 length ‖ bytes`, as many as the header's event_count says (transport.md §5).

`pack_frames` and `unpack_frames` take single payloads. `encode_frames` and `decode_frames` take whole columns in
Arrow's binary layout (offsets and data), many packets at once. Packing is greedy. Reading is as lenient as in net-mesh:
it stops at a frame that runs past the end, and keeps what was read before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meshbus import jit
from meshbus.errors import LocalProtocolError
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENT, MAX_EVENTS, MAX_PAYLOAD
from meshbus.wire.header import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Offsets = NDArray[np.int64]
    Bytes = NDArray[np.uint8]


_I64 = np.dtype(np.int64)
_U8 = np.dtype(np.uint8)


class Packed(msgspec.Struct, frozen=True):
    """Payloads of many packets, one after the other."""

    data: Bytes
    bounds: Offsets
    """Payload `i` is `data[bounds[i] : bounds[i + 1]]`."""
    counts: NDArray[np.int64]
    """Events in each payload."""
    stamp: int = 0
    """When they were published, in the form of wire/stamp.py; 0 if unknown."""

    def __len__(self) -> int:
        return len(self.counts)


def pack_frames(events: Iterable[Buffer]) -> bytes:
    """Frame a few events into one payload.

    Raises LocalProtocolError when they do not fit one packet.
    """
    parts: list[Buffer] = []
    for event in events:
        check_event_size(len(event))
        parts.append(len(event).to_bytes(FRAME_PREFIX_BYTES, "little"))
        parts.append(event)
    payload = b"".join(parts)
    if len(payload) > MAX_PAYLOAD:
        raise LocalProtocolError(f"{len(payload)} framed bytes do not fit one packet of {MAX_PAYLOAD}")
    return payload


def unpack_frames(payload: Buffer, count: int) -> list[memoryview]:
    """Read up to `count` events as views into the payload; bytes after the last counted frame are ignored."""
    view = memoryview(payload)
    events: list[memoryview] = []
    position, end = 0, len(view)
    while len(events) < count and position + FRAME_PREFIX_BYTES <= end:
        start = position + FRAME_PREFIX_BYTES
        position = start + int.from_bytes(view[position:start], "little")
        # transport.md §5: a length that runs past the end stops the reader, and earlier events count.
        if position > end:
            break
        events.append(view[start:position])
    return events


def check_event_size(size: int) -> None:
    """Raise LocalProtocolError for an event that no receiver would accept."""
    if size > MAX_EVENT:
        raise LocalProtocolError(f"an event of {size} bytes is too large; at most {MAX_EVENT} fit one packet")


def columns_of(events: Sequence[Buffer]) -> tuple[Offsets, Bytes]:
    """Turn a list of events into offsets and data."""
    offsets = np.zeros(len(events) + 1, np.int64)
    np.cumsum([len(event) for event in events], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(events), np.uint8)


def encode_frames(  # hot: bench_kernels
    offsets: Offsets, data: Bytes, *, max_payload: int = MAX_PAYLOAD, out: Bytes | None = None
) -> Packed:
    """Frame a column of events into as few payloads as greedy packing gives.

    An event larger than `max_payload` travels alone, as long as it fits a packet at all; one that does not raises
    LocalProtocolError. `out` is memory to reuse, because new pages cost more than the framing.
    """
    offsets = np.asarray(offsets, _I64)
    count = len(offsets) - 1
    if count < 1:
        return Packed(np.empty(0, _U8), np.zeros(1, _I64), np.empty(0, _I64))
    first, last = offsets.item(0), offsets.item(-1)
    if not 0 <= first <= last <= len(data):
        raise LocalProtocolError(f"event offsets from {first} to {last} do not fit {len(data)} bytes of data")
    size = last - first + FRAME_PREFIX_BYTES * count
    if out is None or len(out) < size:
        out = np.empty(size, _U8)
    # A payload is closed when the next event does not fit, so any two neighbors hold more than max_payload bytes.
    most = min(count, 2 * (size // max_payload) + 2)
    # One array for both results: each further array makes the call of a kernel slower (docs/decisions/0001).
    edges = np.empty(2 * most + 1, _I64)  # first the bounds, then the counts
    packets = _pack.run(offsets, np.ascontiguousarray(data), max_payload, out, edges)
    if packets < 0:
        # The kernel only reports that something is wrong; find out what for the error.
        check_event_size(int(np.diff(offsets).max()))
        raise LocalProtocolError("event offsets must ascend")
    return Packed(out[:size], edges[: packets + 1], edges[most + 1 : most + 1 + packets])


def decode_frames(  # hot: bench_kernels
    data: Bytes, starts: Offsets, lengths: Offsets, counts: Offsets, *, out: Bytes | None = None
) -> tuple[Offsets, Bytes, Offsets]:
    """Read the events of many payloads in one buffer.

    Returns the offsets and data of all events, and how many events each payload held. A payload outside the buffer
    holds none.
    """
    # Upper bounds from the headers. They are not trusted for anything but the size of the arrays.
    most, size = _measure.run(lengths, counts)
    if out is None or len(out) < size:
        out = np.empty(size, _U8)
    edges = np.empty(most + 1 + len(starts), _I64)  # first the offsets, then what each payload held
    count = _unpack.run(data, starts, lengths, counts, out, edges)
    return edges[: count + 1], out[: edges.item(count)], edges[most + 1 :]


@jit.helper
def _copy(target: Any, source: Any, size: Any) -> None:
    """Copy an event: short ones as two or four overlapping blocks, which needs no call."""
    if 32 <= size <= 128:
        jit.copy_bytes(target, source, 32)
        jit.copy_bytes(target + size - 32, source + size - 32, 32)
        if size > 64:
            jit.copy_bytes(target + 32, source + 32, 32)
            jit.copy_bytes(target + size - 64, source + size - 64, 32)
    else:
        jit.copy_bytes(target, source, size)


def _pack_reference(offsets: Offsets, data: Bytes, max_payload: int, out: Bytes, edges: Offsets) -> int:
    positions = offsets.tolist()
    source, target = data.data.cast("B"), out.data
    counts = edges[len(edges) // 2 + 1 :]
    packets, written, start, held = 0, 0, 0, 0
    edges[0] = 0
    for begin, end in pairwise(positions):
        size = end - begin
        body = written + FRAME_PREFIX_BYTES
        if not 0 <= size <= MAX_EVENT or end > positions[-1]:
            return -1
        # transport.md §5: greedy, so a packet is closed when the next event does not fit. An event above max_payload
        # gets a packet of its own, because `held` is 0 then.
        if held and (body + size - start > max_payload or held == MAX_EVENTS):
            counts[packets] = held
            packets += 1
            edges[packets] = start = written
            held = 0
        target[written:body] = size.to_bytes(FRAME_PREFIX_BYTES, "little")
        target[body : body + size] = source[begin:end]
        written = body + size
        held += 1
    counts[packets] = held
    edges[packets + 1] = written
    return packets + 1


@jit.kernel(_pack_reference)
def _pack(offsets: Offsets, data: Bytes, max_payload: int, out: Bytes, edges: Offsets) -> int:
    source, target, last = data.ctypes.data, out.ctypes.data, offsets[-1]
    counts = len(edges) // 2 + 1
    packets, written, start, held = 0, 0, 0, 0
    edges[0] = 0
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        size = end - begin
        body = written + FRAME_PREFIX_BYTES
        if size < 0 or size > MAX_EVENT or end > last:  # an offset above the last would run out of `out`
            return -1
        if held > 0 and (body + size - start > max_payload or held == MAX_EVENTS):
            edges[counts + packets] = held
            packets += 1
            start = written
            edges[packets] = start
            held = 0
        jit.store_u32(target + written, size)
        _copy(target + body, source + begin, size)
        written = body + size
        held += 1
    edges[counts + packets] = held
    edges[packets + 1] = written
    return packets + 1


def _measure_reference(lengths: Offsets, counts: Offsets) -> tuple[int, int]:
    return int(counts.clip(0).sum()), int(lengths.clip(0).sum())


@jit.kernel(_measure_reference)
def _measure(lengths: Offsets, counts: Offsets) -> tuple[int, int]:
    events, size = 0, 0
    for i in range(len(lengths)):
        events += max(counts[i], 0)
        size += max(lengths[i], 0)
    return events, size


def _unpack_reference(
    data: Bytes, starts: Offsets, lengths: Offsets, counts: Offsets, out: Bytes, edges: Offsets
) -> int:
    view = data.data.cast("B")
    payloads = [
        unpack_frames(view[start : start + length], count if 0 <= start <= start + length <= len(view) else 0)
        for start, length, count in zip(starts.tolist(), lengths.tolist(), counts.tolist(), strict=True)
    ]
    edges[len(edges) - len(starts) :] = [len(payload) for payload in payloads]
    offsets, joined = columns_of([event for payload in payloads for event in payload])
    edges[: len(offsets)] = offsets
    out[: len(joined)] = joined
    return len(offsets) - 1


@jit.kernel(_unpack_reference)
def _unpack(data: Bytes, starts: Offsets, lengths: Offsets, counts: Offsets, out: Bytes, edges: Offsets) -> int:
    source, target = data.ctypes.data, out.ctypes.data
    found = len(edges) - len(starts)
    total, written = 0, 0
    edges[0] = 0
    for i in range(len(starts)):
        position = starts[i]
        # Outside the buffer: no byte is left to read, so the loop below does not run.
        end = position + lengths[i]
        first = total
        if position < 0 or end < position or end > len(data):
            end = position
        most = first + counts[i]
        while total < most and position + FRAME_PREFIX_BYTES <= end:
            size: Any = np.int64(jit.load_u32(source + position))
            step = FRAME_PREFIX_BYTES + size
            if step > end - position:
                break
            _copy(target + written, source + position + FRAME_PREFIX_BYTES, size)
            position += step
            written += size
            total += 1
            edges[total] = written
            if step > end - position or jit.load_u32(source + position) != size:
                continue
            # A run of equal sizes: the next place follows from `size`, so the processor need not wait for the load.
            last = total + min(most - total, (end - position) // step)
            while total < last and jit.load_u32(source + position) == size:
                _copy(target + written, source + position + FRAME_PREFIX_BYTES, size)
                position += step
                written += size
                total += 1
                edges[total] = written
        edges[found + i] = total - first
    return total
