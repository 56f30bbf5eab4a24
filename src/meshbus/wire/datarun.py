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
from meshbus.wire.messages.leadership import DATA_HEAD, DATA_ROOM, EVENT_COST, Data, check_size, pack_data_head

_SIZE = np.dtype("<u4")


def encode_data_run(data: Data) -> Packed:  # hot: bench_replication
    """Write events as messages that each fill one packet, in frames; raise LocalProtocolError for one that never fits."""
    payloads, count = data.payloads, len(data.payloads)
    if isinstance(payloads, ByteColumn):
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
