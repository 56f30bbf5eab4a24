"""Runs of DATA messages: many events of a replicated channel, cut into consecutive messages and put together again.

A packet has room for a few events of a kilobyte, and members exchange thousands at a time. A leader writes a run once for
all its followers; a follower reads one without an object for each event. Every message of a run is an ordinary DATA
message (wire/messages/leadership.py): whatever is lost, the others are read as they are.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate

import numpy as np

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.column import ByteColumn, column_of
from meshbus.wire.constants import FRAME_PREFIX_BYTES
from meshbus.wire.frames import Packed
from meshbus.wire.layout import SIZE_BYTES
from meshbus.wire.messages.leadership import (
    DATA_FIRST_AT,
    DATA_HEAD,
    DATA_PREV_AT,
    DATA_ROOM,
    EVENT_COST,
    MAX_REPLICATED,
    Data,
    check_size,
    pack_data_head,
)

_SIZE = np.dtype("<u4")
_PREV_AT, _FIRST_AT = FRAME_PREFIX_BYTES + DATA_PREV_AT, FRAME_PREFIX_BYTES + DATA_FIRST_AT
"""Where the epoch before the first event, and its sequence, are in the frame of a message."""


def encode_data_run(data: Data) -> Packed:  # hot: bench_replication
    """Write events as messages that each fill one packet, in frames; raise LocalProtocolError for one that never fits."""
    payloads, count = data.payloads, len(data.payloads)
    if isinstance(payloads, ByteColumn):
        size = payloads.only_size()
        if size is not None and size <= MAX_REPLICATED:
            return _encode_equal(data, payloads, size)
        sizes = np.diff(payloads.edges).astype(_SIZE)
        view, edges = payloads.data, payloads.edges.tolist()
    else:
        sizes = np.array([len(payload) for payload in payloads], _SIZE)
        view, edges = memoryview(b"".join(payloads)), list(accumulate(map(len, payloads), initial=0))
    packed_sizes = sizes.data.cast("B")
    # What the events up to each one take in messages.
    costs = [edge + EVENT_COST * place for place, edge in enumerate(edges)]
    start, prev = 0, data.prev_epoch
    parts: list[bytes | memoryview] = []
    bounds = [0]
    while start < count:
        end = max(start + 1, bisect_right(costs, costs[start] + DATA_ROOM) - 1)
        size = DATA_HEAD + costs[end] - costs[start]
        check_size(size)
        head = pack_data_head(data, prev, data.first_seq + start, end - start)
        parts += (
            size.to_bytes(FRAME_PREFIX_BYTES, "little") + head,
            packed_sizes[SIZE_BYTES * start : SIZE_BYTES * end],
            view[edges[start] : edges[end]],
        )
        bounds.append(bounds[-1] + FRAME_PREFIX_BYTES + size)
        start, prev = end, data.entry_epoch
    joined = np.frombuffer(b"".join(parts), np.uint8)
    return Packed(joined, np.array(bounds, np.int64), np.ones(len(bounds) - 1, np.int64))


def _encode_equal(data: Data, payloads: ByteColumn, size: int) -> Packed:
    """Write events of one size: all messages but the last have the same form, and are written as a matrix."""
    per, head = DATA_ROOM // (EVENT_COST + size), FRAME_PREFIX_BYTES + DATA_HEAD
    whole, rest = divmod(len(payloads), per)
    stride = head + per * (EVENT_COST + size)
    bounds = np.arange(whole + 1 + (rest > 0), dtype=np.int64) * stride
    if rest:
        bounds[-1] = bounds[-2] + head + rest * (EVENT_COST + size)
    out = np.empty(bounds.item(-1), np.uint8)
    raw = np.frombuffer(payloads.data, np.uint8)[payloads.edges.item(0) : payloads.edges.item(-1)]
    sizes = np.full(per, size, _SIZE).view(np.uint8)
    for start, count, events in ((0, whole, per), (whole, 1, rest)):
        if not count or not events:
            continue
        rows = out[bounds.item(start) : bounds.item(start + count)].reshape(count, -1)
        message = DATA_HEAD + events * (EVENT_COST + size)
        first = pack_data_head(data, data.entry_epoch, data.first_seq + start * per, events)
        rows[:, :head] = np.frombuffer(message.to_bytes(FRAME_PREFIX_BYTES, "little") + first, np.uint8)
        numbers = data.first_seq + per * np.arange(start, start + count)
        rows[:, _FIRST_AT : _FIRST_AT + 8] = numbers.astype("<u8").view(np.uint8).reshape(count, 8)
        rows[:, head : head + EVENT_COST * events] = sizes[: EVENT_COST * events]
        taken = raw[start * per * size : (start * per + count * events) * size]
        rows[:, head + EVENT_COST * events :] = taken.reshape(count, events * size)
    # Only the first message follows an event of another epoch.
    out[_PREV_AT : _PREV_AT + 8] = np.frombuffer(data.prev_epoch.to_bytes(8, "little"), np.uint8)
    return Packed(out, bounds, np.ones(len(bounds) - 1, np.int64))


class DataBodies:
    """The events of several messages, not looked at yet."""

    __slots__ = ("_payloads", "_sizes", "count")

    def __init__(self) -> None:
        self._sizes: list[memoryview] = []
        self._payloads: list[memoryview] = []
        self.count = 0

    def add(self, body: memoryview, count: int) -> None:
        """Add what follows the head of a message; raise MalformedPacket if its sizes do not fit it."""
        data_at = count * SIZE_BYTES
        if len(body) < data_at:
            raise MalformedPacket(
                "leadership data", Fault.TRUNCATED, f"the sizes of {count} events in {len(body)} bytes"
            )
        found = data_at + sum(struct.unpack_from(f"<{count}I", body))
        if found != len(body):
            fault = Fault.TRUNCATED if found > len(body) else Fault.TRAILING
            raise MalformedPacket("leadership data", fault, f"{len(body)} bytes, expected {found}")
        self._sizes.append(body[:data_at])
        self._payloads.append(body[data_at:])
        self.count += count

    def column(self) -> ByteColumn:
        """Return all events; they are copied."""
        sizes = np.frombuffer(b"".join(self._sizes), _SIZE)
        return column_of(memoryview(b"".join(self._payloads)), sizes)
