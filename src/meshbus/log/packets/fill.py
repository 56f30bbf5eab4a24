"""Rows are filled while packets pass: one kernel call per batch, because that is all that a record may cost then.

The kernel reads headers where they lie, so that a train is recorded from the receive buffer, takes all else from a model
(log/packets/row.py), one for all packets that were decided alike or one each, and packs what it made behind what is there
(log/packets/packed.py). Memory is handed over as plain bytes and words, which costs a call less.

Sampling is decided here too, by a hash over what stays the same on every hop (session and packet counter) and a seed:
nodes with one seed choose the same packets, so a chosen packet is seen along its whole way. Packets without a session
have nothing to tell them apart and are chosen by their number instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meshbus import jit
from meshbus.log.packets.packed import BLOCK_ROWS, END, LAST, MASK_BYTES, NEXT, ROWS, STARTS, pack_rows
from meshbus.log.packets.row import ROW, ROW_BYTES, ROW_WORDS
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.policy.xxh3 import hash_pair
from meshbus.wire.constants import HEADER_BYTES, NET_MAGIC, ROUTE_BYTES, VERSION
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.packets.row import Bytes, Words

SEEN, TAKEN, LOST = range(3)
"""What is counted: packets, rows that were chosen and found room, and rows that were chosen and found none."""

_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)
_ROUTE_AT: Final = 72
_TS_AT: Final = 104
_HASH_AT: Final = 128
_FIRST: Final = NET_MAGIC | VERSION << 16
_ALL: Final = (1 << 64) - 1
_EVERY = np.uint64(_ALL)


def chooser(sampling: int, seed: int) -> Words:
    """Give the rule by which one in so many packets is chosen: a seed, and the highest hash that is."""
    return np.array([seed & _ALL, _ALL // sampling], np.uint64)


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
    data: Bytes,
    state: NDArray[np.int64],
    packets: Bytes,
    begin: int,
    size: int,
    count: int,
    models: Words,
    table: Words,
    rule: Words,
    tally: NDArray[np.int64],
    ts_ns: int,
) -> int:
    columns = _lying(packets, begin + ROUTE_BYTES, size, count, HEADER_BYTES).view(HEADER_DTYPE).reshape(-1)
    columns[(columns["magic"] != NET_MAGIC) | (columns["version"] != VERSION)] = np.zeros((), HEADER_DTYPE)
    numbers = (tally[SEEN] + np.arange(count)).astype(np.uint64)
    counter = np.where(columns["session_id"] != 0, columns["counter"], numbers)
    chosen = hash_pair(columns["session_id"] ^ rule[0], counter) <= rule[1]
    picked = np.flatnonzero(chosen)
    room = (len(state) - STARTS) * BLOCK_ROWS - state.item(ROWS)
    picked = picked[:room]
    rows = np.broadcast_to(models.view(ROW), count)[picked]
    rows["header"] = columns[picked]
    rows["route"] = _lying(packets, begin, size, count, ROUTE_BYTES).view(ROUTE_DTYPE).reshape(-1)[picked]
    rows["ts_ns"] = ts_ns
    rows["chash64"] = _hashes_of(columns[picked], table)
    _append_reference(data, state, rows)
    tally += count, len(rows), int(np.count_nonzero(chosen)) - len(rows)
    return state.item(ROWS)


def _append_reference(data: Bytes, state: NDArray[np.int64], rows: NDArray[np.void]) -> None:
    """Pack rows behind those that are there; a block that begins has zeros before it."""
    while len(rows):
        end, there = state.item(END), state.item(ROWS)
        if there % BLOCK_ROWS == 0:
            state[STARTS + there // BLOCK_ROWS] = end
            state[LAST : LAST + ROW_WORDS] = 0
        part, rows = np.split(rows, [BLOCK_ROWS - there % BLOCK_ROWS])
        packed = pack_rows(part, state[LAST : LAST + ROW_WORDS].view(np.uint64))
        data[end : end + len(packed.data)] = packed.data
        state[LAST : LAST + ROW_WORDS] = np.frombuffer(part[-1:].tobytes(), np.int64)
        state[END], state[ROWS] = end + len(packed.data), there + len(part)


@jit.kernel(_fill_reference)
def fill(  # hot: bench_recorder
    data: Bytes,
    state: NDArray[np.int64],
    packets: Bytes,
    begin: int,
    size: int,
    count: int,
    models: Words,
    table: Words,
    rule: Words,
    tally: NDArray[np.int64],
    ts_ns: int,
) -> int:
    """Choose packets and pack their rows into an arena, as far as there is room; gives how many rows are there then.

    The packets lie from `begin` on, every `size` bytes, `count` of them: a routing header, which is zeros where there is
    none, and a header; what is no header is blanked. `models` has one row, or one each. `tally` is what was ever SEEN,
    TAKEN and LOST, and is kept.
    """
    mask = np.uint64(len(table) - 1)
    room, single = (len(state) - STARTS) * BLOCK_ROWS, len(models) == ROW_WORDS
    model, target = models.ctypes.data, state.ctypes.data + 8 * NEXT
    route = packets.ctypes.data + begin - size
    there, end = int(state[ROWS]), data.ctypes.data + state[END]
    before, seen, lost, every = there, tally[SEEN], 0, rule[1] == _EVERY
    for i in range(count):
        route += size
        packet = route + ROUTE_BYTES
        known = jit.load_u32(packet) & 0xFFFFFF == _FIRST
        if not every:
            session = jit.load_u64(packet + 24) if known else np.uint64(0)
            counter = jit.load_u64(packet + 16) if session else np.uint64(seen + i)
            if hash_pair(session ^ rule[0], counter) > rule[1]:
                continue
        if there == room:
            lost += 1
            continue
        jit.copy_bytes(target, model if single else model + i * ROW_BYTES, ROW_BYTES)
        jit.store_u32(target + _TS_AT, ts_ns & 0xFFFFFFFF)
        jit.store_u32(target + _TS_AT + 4, (ts_ns >> 32) & 0xFFFFFFFF)
        jit.copy_bytes(target + _ROUTE_AT, route, ROUTE_BYTES)
        if known:  # otherwise it stays blank, as it is in a model
            jit.copy_bytes(target, packet, HEADER_BYTES)
            stream, ids = jit.load_u64(packet + 32), jit.load_u32(packet + 8)
            if ids & 0xFFFF == 0 and stream & _PUBLISH_BIT and stream & _WIRE_MASK == ids >> 16:
                slot = stream & mask
                while table[slot, 0] != 0 and table[slot, 0] != stream:
                    slot = (slot + np.uint64(1)) & mask
                if table[slot, 0] == stream:
                    jit.store_u32(target + _HASH_AT, table[slot, 1] & 0xFFFFFFFF)
                    jit.store_u32(target + _HASH_AT + 4, table[slot, 1] >> 32)
        if there % BLOCK_ROWS == 0:
            state[STARTS + there // BLOCK_ROWS] = end - data.ctypes.data
            state[LAST : LAST + ROW_WORDS] = 0
        bits, place = 0, end
        end += MASK_BYTES
        for word in range(ROW_WORDS):
            if state[NEXT + word] != state[LAST + word]:
                state[LAST + word] = state[NEXT + word]
                jit.copy_bytes(end, target + 8 * word, 8)
                bits |= 1 << word
                end += 8
        jit.store_u32(place, bits)
        there += 1
    state[ROWS], state[END] = there, end - data.ctypes.data
    tally[SEEN] += count
    tally[TAKEN] += there - before
    tally[LOST] += lost
    return there
