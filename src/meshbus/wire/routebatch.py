"""Routing headers of many packets: parse them into columns, find runs that are handled alike, and count the hop.

A forwarder counts the hop in place: it decrements the ttl, increments the hop count, clears the reserved flags, and
increments the inner hop count if the origin set a limit. No other byte changes. The form for one packet is
wire/route.py; the inner headers are in wire/headerbatch.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshbus import jit
from meshbus.wire.constants import HEADER_BYTES, NET_MAGIC, ROUTE_BYTES, ROUTE_MAGIC, VERSION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]

ROUTE_DTYPE = np.dtype(
    [
        ("magic", "<u2"),
        ("ttl", "u1"),
        ("hop_count", "u1"),
        ("flags", "u1"),
        ("reserved", "u1"),
        ("src_id", "<u4"),
        ("dest_id", "<u8"),
    ]
)
"""One routing header, as on the wire."""

_KNOWN_FLAGS = 0x0F
# Offsets in a routing header (transport.md §7), and of hop_ttl and hop_count in the header after it (§3).
_TTL, _HOPS, _FLAGS = 2, 3, 4
_INNER_TTL, _INNER_HOPS = ROUTE_BYTES + 5, ROUTE_BYTES + 6
# The first three bytes of a packet, as one little-endian number: magic and version.
_FIRST = NET_MAGIC | VERSION << 16
_MAGIC, _NET = ROUTE_MAGIC.to_bytes(2, "little"), _FIRST.to_bytes(3, "little")
_LEAST = ROUTE_BYTES + HEADER_BYTES
_DEST = 10
_HEAD, _STREAM, _ORIGIN, _SUBNET = (ROUTE_BYTES + at for at in (12, 32, 48, 56))
"""Offsets of what a verdict depends on: everything up to the nonce, the stream, the origin and its subnet."""
_U8 = np.dtype(np.uint8)


def read_routes(data: Bytes, starts: Places) -> NDArray[np.void]:
    """Copy the routing headers of routed packets, whose length was checked, out of a buffer."""
    rows = np.empty(len(starts) * ROUTE_BYTES, _U8)
    _read.run(data, starts, rows)
    return rows.view(ROUTE_DTYPE)


def routed_stretch(data: Bytes, starts: Places, lengths: Places, first: int, last: int, node_id: int) -> int:
    """Count the consecutive routed packets from row `first` of a batch that are for other nodes.

    If the first one is for this node, returns the number of those for this node as a negative number; 0 if it is not
    routed.
    """
    return int(_stretch.run(data, starts, lengths, first, last, np.uint64(node_id)))


def alike_run(data: Bytes, starts: Places, lengths: Places, first: int, last: int) -> int:  # hot: bench_forward
    """Count the consecutive routed packets that are forwarded alike and are contiguous in memory, as a train is.

    They have the same routing header and the same fields that a verdict depends on, and the same length; the last one
    may be shorter. If there is no valid packet after the routing header, the count is 1.
    """
    return int(_alike.run(data, starts, lengths, first, last))


def count_hop(data: Bytes, starts: Places, first: int, last: int) -> None:  # hot: bench_forward
    """Count the hop in packets, in place."""
    _count.run(data, starts, first, last)


def _read_reference(data: Bytes, starts: Places, rows: Bytes) -> None:
    rows.reshape(-1, ROUTE_BYTES)[:] = data[starts[:, None] + np.arange(ROUTE_BYTES)]


@jit.kernel(_read_reference)
def _read(data: Bytes, starts: Places, rows: Bytes) -> None:
    source, target = data.ctypes.data, rows.ctypes.data
    for i in range(len(starts)):
        jit.copy_bytes(target + i * ROUTE_BYTES, source + starts[i], ROUTE_BYTES)


def _stretch_reference(data: Bytes, starts: Places, lengths: Places, first: int, last: int, node_id: np.uint64) -> int:
    count, ours = 0, False
    for row in range(first, last):
        packet = data[starts[row] : starts[row] + lengths[row]].tobytes()
        if len(packet) < _LEAST or packet[:2] != _MAGIC:
            break
        mine = int.from_bytes(packet[_DEST : _DEST + 8], "little") == int(node_id)
        if count and mine != ours:
            break
        ours = mine
        count += 1
    return -count if ours else count


@jit.kernel(_stretch_reference)
def _stretch(data: Bytes, starts: Places, lengths: Places, first: int, last: int, node_id: np.uint64) -> int:
    source = data.ctypes.data
    count, ours = 0, False
    for i in range(first, last):
        if lengths[i] < _LEAST or jit.load_u32(source + starts[i]) & 0xFFFF != ROUTE_MAGIC:
            break
        mine = jit.load_u64(source + starts[i] + _DEST) == node_id
        if count and mine != ours:
            break
        ours = mine
        count += 1
    return -count if ours else count


def _alike_reference(data: Bytes, starts: Places, lengths: Places, first: int, last: int) -> int:
    begin, size = int(starts[first]), int(lengths[first])
    model = signature(data.data[begin : begin + size])
    row = first + 1
    if model[ROUTE_BYTES : ROUTE_BYTES + 3] != _NET:
        return 1
    while row < last:
        start, length = int(starts[row]), int(lengths[row])
        if start != begin + (row - first) * size or length > size:
            break
        if signature(data.data[start : start + length]) != model:
            break
        row += 1
        # UDP segmentation offload allows a shorter datagram only at the end of a train.
        if length < size:
            break
    return row - first


@jit.kernel(_alike_reference)
def _alike(data: Bytes, starts: Places, lengths: Places, first: int, last: int) -> int:
    source = data.ctypes.data
    model, size = source + starts[first], lengths[first]
    if jit.load_u32(model + ROUTE_BYTES) & 0xFFFFFF != _FIRST:
        return 1
    row = first + 1
    while row < last:
        packet, length = source + starts[row], lengths[row]
        if packet != model + (row - first) * size or length > size:
            break
        # The routing header and the first 12 bytes behind it, then stream, origin and subnet: see `signature`.
        same = (
            jit.load_u64(packet) == jit.load_u64(model)
            and jit.load_u64(packet + 8) == jit.load_u64(model + 8)
            and jit.load_u64(packet + 16) == jit.load_u64(model + 16)
            and jit.load_u64(packet + 22) == jit.load_u64(model + 22)
            and jit.load_u64(packet + _STREAM) == jit.load_u64(model + _STREAM)
            and jit.load_u64(packet + _ORIGIN) == jit.load_u64(model + _ORIGIN)
            and jit.load_u32(packet + _SUBNET) == jit.load_u32(model + _SUBNET)
        )
        if not same:
            break
        row += 1
        if length < size:
            break
    return row - first


def signature(packet: memoryview) -> bytes:
    """Return the bytes of a routed packet that forwarding decisions depend on."""
    return bytes(packet[:_HEAD]) + bytes(packet[_STREAM : _STREAM + 8]) + bytes(packet[_ORIGIN : _SUBNET + 4])


def _count_reference(data: Bytes, starts: Places, first: int, last: int) -> None:
    going = starts[first:last]
    data[going + _TTL] -= 1
    hops = data[going + _HOPS]
    data[going + _HOPS] = hops + (hops < 0xFF)
    data[going + _FLAGS] &= _KNOWN_FLAGS
    parts = [data[going + ROUTE_BYTES + i].astype(np.uint32) << np.uint32(8 * i) for i in range(3)]
    # profile.md §9: the inner hop count changes only if the origin set hop_ttl. mesh.md §2.1: what follows the routing
    # header may be anything, so it must begin like a packet.
    limited = going[(parts[0] | parts[1] | parts[2] == _FIRST) & (data[going + _INNER_TTL] > 0)]
    hops = data[limited + _INNER_HOPS]
    data[limited + _INNER_HOPS] = hops + (hops < 0xFF)


@jit.kernel(_count_reference)
def _count(data: Bytes, starts: Places, first: int, last: int) -> None:
    source = data.ctypes.data
    for i in range(first, last):
        start = starts[i]
        data[start + _TTL] -= np.uint8(1)
        if data[start + _HOPS] < 0xFF:
            data[start + _HOPS] += np.uint8(1)
        data[start + _FLAGS] &= np.uint8(_KNOWN_FLAGS)
        inner = jit.load_u32(source + start + ROUTE_BYTES)
        if inner & 0xFFFFFF == _FIRST and data[start + _INNER_TTL] > 0 and data[start + _INNER_HOPS] < 0xFF:
            data[start + _INNER_HOPS] += np.uint8(1)
