"""Routing headers of many packets as columns, and the one change a forwarder makes to them.

A forwarder counts the hop in place: ttl down, hop count up, the reserved flags cleared, and the inner hop count where
the origin set a limit. Every other byte leaves as it came. The one-packet form is wire/route.py; the inner headers are
policy/columns.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshbus import jit
from meshbus.wire.constants import NET_MAGIC, ROUTE_BYTES, VERSION

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
_TTL, _HOPS, _FLAGS = 2, 3, 4
_INNER_TTL, _INNER_HOPS = ROUTE_BYTES + 5, ROUTE_BYTES + 6
_FIRST = NET_MAGIC | VERSION << 16
_U8 = np.dtype(np.uint8)


def read_routes(data: Bytes, starts: Places) -> NDArray[np.void]:
    """Copy the routing headers of routed packets, whose length was checked, out of a buffer."""
    rows = np.empty(len(starts) * ROUTE_BYTES, _U8)
    _read.run(data, starts, rows)
    return rows.view(ROUTE_DTYPE)


def count_hop(data: Bytes, starts: Places, verdicts: Bytes) -> None:  # hot: bench_forward
    """Count the hop in the packets whose verdict is 0, where they lie."""
    _count.run(data, starts, verdicts)


def _read_reference(data: Bytes, starts: Places, rows: Bytes) -> None:
    rows.reshape(-1, ROUTE_BYTES)[:] = data[starts[:, None] + np.arange(ROUTE_BYTES)]


@jit.kernel(_read_reference)
def _read(data: Bytes, starts: Places, rows: Bytes) -> None:
    source, target = data.ctypes.data, rows.ctypes.data
    for i in range(len(starts)):
        jit.copy_bytes(target + i * ROUTE_BYTES, source + starts[i], ROUTE_BYTES)


def _count_reference(data: Bytes, starts: Places, verdicts: Bytes) -> None:
    going = starts[verdicts == 0]
    data[going + _TTL] -= 1
    hops = data[going + _HOPS]
    data[going + _HOPS] = hops + (hops < 0xFF)
    data[going + _FLAGS] &= _KNOWN_FLAGS
    first = [data[going + ROUTE_BYTES + i].astype(np.uint32) << np.uint32(8 * i) for i in range(3)]
    limited = going[(first[0] | first[1] | first[2] == _FIRST) & (data[going + _INNER_TTL] > 0)]
    hops = data[limited + _INNER_HOPS]
    data[limited + _INNER_HOPS] = hops + (hops < 0xFF)


@jit.kernel(_count_reference)
def _count(data: Bytes, starts: Places, verdicts: Bytes) -> None:
    source = data.ctypes.data
    for i in range(len(starts)):
        if verdicts[i]:
            continue
        start = starts[i]
        data[start + _TTL] -= np.uint8(1)
        if data[start + _HOPS] < 0xFF:
            data[start + _HOPS] += np.uint8(1)
        data[start + _FLAGS] &= np.uint8(_KNOWN_FLAGS)
        first = jit.load_u32(source + start + ROUTE_BYTES)
        if first & 0xFFFFFF == _FIRST and data[start + _INNER_TTL] > 0 and data[start + _INNER_HOPS] < 0xFF:
            data[start + _INNER_HOPS] += np.uint8(1)
