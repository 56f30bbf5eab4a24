"""One recorded packet: 136 bytes in memory and in hot files, and how many of them are filled at once.

A row is the header and the routing header byte for byte, and beside them what was known and decided. It is filled by
one kernel call per batch, because that is all that a record may cost while packets pass; everything else (names,
nulls, signs) waits until rows become Arrow columns (log/packets/arrow.py). The kernel reads headers where they lie, so
that a train is recorded from the receive buffer, and takes all else from a *model*: a row without them, one for all
packets that were decided alike, or one each. Memory is handed over as plain bytes and words, which costs a call less.

Sampling is decided here too, by a hash over what stays the same on every hop (session and packet counter) and a seed:
nodes with one seed choose the same packets, so a chosen packet is seen along its whole way. Packets without a session
have nothing to tell them apart and are chosen by their number instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meshbus import jit
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.fate import Fate
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.policy.xxh3 import hash_pair
from meshbus.wire.constants import HEADER_BYTES, NET_MAGIC, ROUTE_BYTES, VERSION
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
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
ROW_WORDS: Final = 17
NOT_ASKED: Final = 0xFF
ROUTED: Final = 1
"""In `present`: there was a routing header."""
JUDGED: Final = 2
"""In `present`: the subnets are those that a gateway had before it."""

_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)
_ROUTE_AT: Final = 72
_TS_AT: Final = 104
_HASH_AT: Final = 128
_FIRST: Final = NET_MAGIC | VERSION << 16
_ALL: Final = (1 << 64) - 1
_EVERY = np.uint64(_ALL)
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


def models(
    count: int,
    reasons: Bytes | int,
    *,
    here: bool,
    routed: bool,
    previous_hops: Words | int,
    next_hops: Words | int,
    subnets: tuple[Any, Any] | None,
    guard: Any,
    policy: int,
) -> Words:
    """Make models for `fill`, with everything but the packets themselves and the time; every fact one for all, or one each.

    `subnets` are source and destination as judged, None when nothing was judged by them.
    """
    words = np.zeros(count * ROW_WORDS, np.uint64)
    rows = words.view(ROW)
    kept = np.equal(reasons, 0)
    rows["verdict"] = np.where(kept, Fate.DELIVERED if here else Fate.FORWARDED, Fate.DROPPED)
    rows["reason"] = reasons
    rows["guard"] = guard
    rows["present"] = (ROUTED if routed else 0) | (JUDGED if subnets is not None else 0)
    if subnets is not None:
        rows["src"], rows["dst"] = subnets
    rows["policy_version"] = policy
    rows["previous_hop"] = previous_hops
    rows["next_hop"] = np.where(kept & (not here), np.asarray(next_hops, np.uint64), np.uint64(0))
    return words


def _hashes_of(headers: NDArray[np.void], table: Words) -> Words:
    """Find the canonical hash of each publication; 0 where it is not known, or the packet is none."""
    streams = headers["stream_id"]
    publication = (headers["subprotocol_id"] == 0) & (streams & _PUBLISH_BIT != 0)
    publication &= (streams & _WIRE_MASK) == headers["channel_hash"]
    known = dict(table.tolist())
    found = [known.get(stream, 0) if stream else 0 for stream in streams.tolist()]
    return np.where(publication, np.array(found, np.uint64), np.uint64(0))


def _lying(data: Bytes, at: int, step: int, count: int, size: int) -> Bytes:
    """Copy what lies every so many bytes."""
    return np.ascontiguousarray(data[at + np.arange(count)[:, None] * step + np.arange(size)])


def _fill_reference(
    rows: Bytes,
    at: int,
    packets: Bytes,
    head_at: int,
    step: int,
    count: int,
    routes: Bytes,
    route_at: int,
    route_step: int,
    models: Words,
    table: Words,
    rule: Words,
    number: int,
    ts_ns: int,
) -> int:
    columns = _lying(packets, head_at, step, count, HEADER_BYTES).view(HEADER_DTYPE).reshape(-1)
    columns[(columns["magic"] != NET_MAGIC) | (columns["version"] != VERSION)] = np.zeros((), HEADER_DTYPE)
    numbers = np.arange(number, number + count).astype(np.uint64)
    counter = np.where(columns["session_id"] != 0, columns["counter"], numbers)
    chosen = hash_pair(columns["session_id"] ^ rule[0], counter) <= rule[1]
    picked = np.flatnonzero(chosen)
    target = rows.view(ROW)[at : at + len(picked)]
    picked = picked[: len(target)]
    target[:] = np.broadcast_to(models.view(ROW), count)[picked]
    target["header"] = columns[picked]
    if len(routes):
        target["route"] = _lying(routes, route_at, route_step, count, ROUTE_BYTES).view(ROUTE_DTYPE).reshape(-1)[picked]
    target["ts_ns"] = ts_ns
    target["chash64"] = _hashes_of(columns[picked], table)
    return int(np.count_nonzero(chosen))


@jit.kernel(_fill_reference)
def fill(  # hot: bench_recorder
    rows: Bytes,
    at: int,
    packets: Bytes,
    head_at: int,
    step: int,
    count: int,
    routes: Bytes,
    route_at: int,
    route_step: int,
    models: Words,
    table: Words,
    rule: Words,
    number: int,
    ts_ns: int,
) -> int:
    """Choose packets and write their rows from one place on, as far as there is room; gives how many were chosen.

    Headers lie in `packets` from `head_at`, every `step` bytes, `count` of them; what is no header is blanked. Routing
    headers lie in `routes` the same way, unless that is empty. `models` has one row, or one each. `number` is that of
    the first packet among all that were ever seen.
    """
    mask = np.uint64(len(table) - 1)
    room, single = len(rows) // ROW_BYTES, len(models) == ROW_WORDS
    begin, model = rows.ctypes.data, models.ctypes.data
    head, road = packets.ctypes.data + head_at, routes.ctypes.data + route_at
    chosen, every = 0, rule[1] == _EVERY
    for i in range(count):
        packet = head + i * step
        known = jit.load_u32(packet) & 0xFFFFFF == _FIRST
        if not every:
            session = jit.load_u64(packet + 24) if known else np.uint64(0)
            counter = jit.load_u64(packet + 16) if session else np.uint64(number + i)
            if hash_pair(session ^ rule[0], counter) > rule[1]:
                continue
        chosen += 1
        place = at + chosen - 1
        if place >= room:
            continue
        target = begin + place * ROW_BYTES
        jit.copy_bytes(target, model if single else model + i * ROW_BYTES, ROW_BYTES)
        jit.store_u32(target + _TS_AT, ts_ns & 0xFFFFFFFF)
        jit.store_u32(target + _TS_AT + 4, (ts_ns >> 32) & 0xFFFFFFFF)
        if len(routes):
            jit.copy_bytes(target + _ROUTE_AT, road + i * route_step, ROUTE_BYTES)
        if not known:
            continue  # the header of a model is blank
        jit.copy_bytes(target, packet, HEADER_BYTES)
        stream, ids = jit.load_u64(packet + 32), jit.load_u32(packet + 8)
        if ids & 0xFFFF == 0 and stream & _PUBLISH_BIT and stream & _WIRE_MASK == ids >> 16:
            slot = stream & mask
            while table[slot, 0] != 0 and table[slot, 0] != stream:
                slot = (slot + np.uint64(1)) & mask
            if table[slot, 0] == stream:
                jit.store_u32(target + _HASH_AT, table[slot, 1] & 0xFFFFFFFF)
                jit.store_u32(target + _HASH_AT + 4, table[slot, 1] >> 32)
    return chosen
