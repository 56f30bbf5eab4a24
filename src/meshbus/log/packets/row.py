"""One recorded packet: 136 bytes in memory and in hot files, and how many of them are filled at once.

A row is the header and the routing header byte for byte, and beside them what was known and decided. It is filled by
one kernel call per batch, because that is all that a record may cost while packets pass; everything else (names,
nulls, signs) waits until rows become Arrow columns (log/packets/arrow.py).

Sampling is decided here too, by a hash over what stays the same on every hop (session and packet counter) and a seed:
nodes with one seed choose the same packets, so a chosen packet is seen along its whole way. Packets without a session
have nothing to tell them apart and are chosen by their number instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from meshbus import jit
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.fate import Fate
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.policy.xxh3 import hash_pair
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Subnets = NDArray[np.uint32]
    Words = NDArray[np.uint64]

ROW = np.dtype(
    [
        ("header", HEADER_DTYPE),
        ("verdict", "u1"),
        ("reason", "u1"),
        ("guard", "u1"),
        ("present", "u1"),
        ("route", ROUTE_DTYPE),
        ("unused", "<u2"),
        ("src", "<u4"),
        ("dst", "<u4"),
        ("policy_version", "<u4"),
        ("ts_ns", "<i8"),
        ("previous_hop", "<u8"),
        ("next_hop", "<u8"),
        ("chash64", "<u8"),
    ]
)
"""A hop or hash of 0 is none, a guard of NOT_ASKED too."""
ROW_BYTES: Final = 136
NOT_ASKED: Final = 0xFF
ROUTED: Final = 1
"""In `present`: there was a routing header."""
JUDGED: Final = 2
"""In `present`: the subnets are those that a gateway had before it."""

_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)
_ROUTE_AT: Final = 72
_ALL: Final = (1 << 64) - 1
_SMALLEST: Final = 4


def chooser(sampling: int, seed: int) -> Words:
    """Give the rule by which one in so many packets is chosen: a seed, and the highest hash that is."""
    return np.array([seed & _ALL, _ALL // sampling], np.uint64)


def name_table(channels: Iterable[ChannelName]) -> Words:
    """Lay out which stream carries which channel, for `fill`: rows of stream id and canonical hash, open-addressed."""
    streams: dict[int, int] = {}
    for channel in channels:
        # Two names on one stream: a packet cannot say which it is.
        streams[channel.stream_id] = 0 if streams.get(channel.stream_id, channel.hash) != channel.hash else channel.hash
    size = max(_SMALLEST, 1 << (4 * len(streams) - 1).bit_length())
    table = np.zeros((size, 2), np.uint64)
    for stream, canonical in streams.items():
        at = stream & (size - 1)
        while table[at, 0]:
            at = at + 1 & (size - 1)
        table[at] = stream, canonical
    return table


def _hashes_of(headers: NDArray[np.void], table: Words) -> Words:
    """Find the canonical hash of each publication; 0 where it is not known, or the packet is none."""
    streams = headers["stream_id"]
    publication = (headers["subprotocol_id"] == 0) & (streams & _PUBLISH_BIT != 0)
    publication &= (streams & _WIRE_MASK) == headers["channel_hash"]
    known = dict(table.tolist())
    found = [known.get(stream, 0) if stream else 0 for stream in streams.tolist()]
    return np.where(publication, np.array(found, np.uint64), np.uint64(0))


def _fill_reference(
    rows: NDArray[np.void],
    at: int,
    headers: Bytes,
    routes: Bytes,
    reasons: Bytes,
    here: int,
    previous: Words,
    following: Words,
    source: Subnets,
    dest: Subnets,
    guard: Bytes,
    table: Words,
    rule: Words,
    number: int,
    ts_ns: int,
    policy: int,
) -> int:
    columns = headers.view(HEADER_DTYPE)
    count = len(columns)
    numbers = np.arange(number, number + count).astype(np.uint64)
    counter = np.where(columns["session_id"] != 0, columns["counter"], numbers)
    chosen = hash_pair(columns["session_id"] ^ rule[0], counter) <= rule[1]
    picked = np.flatnonzero(chosen)
    target = rows[at : at + len(picked)]
    picked = picked[: len(target)]
    target["header"] = columns[picked]
    reasons = np.broadcast_to(reasons, count)[picked]
    target["reason"] = reasons
    kept = Fate.DELIVERED if here else Fate.FORWARDED
    target["verdict"] = np.where(reasons == 0, kept, Fate.DROPPED)
    target["present"] = (ROUTED if len(routes) else 0) | (JUDGED if len(source) else 0)
    target["route"] = routes.view(ROUTE_DTYPE)[picked] if len(routes) else np.zeros((), ROUTE_DTYPE)
    target["unused"] = 0
    target["src"] = np.broadcast_to(source, count)[picked] if len(source) else 0
    target["dst"] = np.broadcast_to(dest, count)[picked] if len(dest) else 0
    target["guard"] = np.broadcast_to(guard, count)[picked] if len(guard) else NOT_ASKED
    target["policy_version"], target["ts_ns"] = policy, ts_ns
    target["previous_hop"] = np.broadcast_to(previous, count)[picked]
    forwarded = (reasons == 0) & (not here)
    target["next_hop"] = np.where(forwarded, np.broadcast_to(following, count)[picked], np.uint64(0))
    target["chash64"] = _hashes_of(columns[picked], table)
    return int(np.count_nonzero(chosen))


@jit.kernel(_fill_reference)
def fill(  # hot: bench_recorder
    rows: NDArray[np.void],
    at: int,
    headers: Bytes,
    routes: Bytes,
    reasons: Bytes,
    here: int,
    previous: Words,
    following: Words,
    source: Subnets,
    dest: Subnets,
    guard: Bytes,
    table: Words,
    rule: Words,
    number: int,
    ts_ns: int,
    policy: int,
) -> int:
    """Choose packets and write their rows from one place on, as far as there is room; gives how many were chosen.

    `reasons`, `previous` and `following` have one entry, or one each; `source`, `dest` and `guard` none, one, or one
    each; `routes` none, or one each.
    `number` is that of the first packet among all that were ever seen.
    """
    mask = np.uint64(len(table) - 1)
    begin, head, road = rows.ctypes.data, headers.ctypes.data, routes.ctypes.data
    chosen = 0
    for i in range(len(headers) // HEADER_BYTES):
        packet = head + i * HEADER_BYTES
        session = jit.load_u64(packet + 24)
        counter = jit.load_u64(packet + 16) if session else np.uint64(number + i)
        if hash_pair(session ^ rule[0], counter) > rule[1]:
            continue
        chosen += 1
        place = at + chosen - 1
        if place >= len(rows):
            continue
        target = begin + place * ROW_BYTES
        jit.copy_bytes(target, packet, HEADER_BYTES)
        row, reason = rows[place], reasons[i if len(reasons) > 1 else 0]
        row["verdict"] = 2 if reason else here
        row["reason"] = reason
        row["guard"] = guard[i if len(guard) > 1 else 0] if len(guard) else 0xFF
        row["present"] = (1 if len(routes) else 0) | (2 if len(source) else 0)
        for word in range(5):  # the routing header and what is unused behind it
            jit.store_u32(target + _ROUTE_AT + 4 * word, 0)
        if len(routes):
            jit.copy_bytes(target + _ROUTE_AT, road + i * ROUTE_BYTES, ROUTE_BYTES)
        row["src"] = source[i if len(source) > 1 else 0] if len(source) else np.uint32(0)
        row["dst"] = dest[i if len(dest) > 1 else 0] if len(dest) else np.uint32(0)
        row["policy_version"] = policy
        row["ts_ns"] = ts_ns
        row["previous_hop"] = previous[i if len(previous) > 1 else 0]
        row["next_hop"] = np.uint64(0) if reason or here else following[i if len(following) > 1 else 0]
        stream, ids = jit.load_u64(packet + 32), jit.load_u32(packet + 8)
        canonical = np.uint64(0)
        if ids & 0xFFFF == 0 and stream & _PUBLISH_BIT and stream & _WIRE_MASK == ids >> 16:
            slot = stream & mask
            while table[slot, 0] != 0 and table[slot, 0] != stream:
                slot = (slot + np.uint64(1)) & mask
            if table[slot, 0] == stream:
                canonical = table[slot, 1]
        row["chash64"] = canonical
    return chosen
