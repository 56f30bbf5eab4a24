"""Fill rows while packets pass: one kernel call per batch, because a forwarder can afford no more.

The kernel reads headers in place, so a train is recorded from the receive buffer. Everything else comes from a model
(log/packets/row.py): one for all packets with the same decision, or one per packet. The rows are packed after those
that are already in the arena (log/packets/packed.py). Arrays are passed as plain bytes and words, which saves a call.

Sampling happens here too, by a hash of a seed and of what stays the same on every hop (session and packet counter):
nodes with the same seed choose the same packets, so a chosen packet is recorded on its whole path. Packets without a
session have nothing that distinguishes them and are chosen by their number instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meshbus import jit
from meshbus.log.packets.packed import (
    BLOCK_ROWS,
    COUNTER,
    END,
    EXPECTED,
    HIGHEST,
    LOST,
    MASK_BYTES,
    NEXT,
    REPEAT,
    REPEATED,
    ROOM,
    ROWS,
    SEED,
    SEEN,
    SEQUENCE,
    STARTS,
    STEPS,
    TAKEN,
    Packer,
    data_of,
    words_of,
)
from meshbus.log.packets.row import ROW, ROW_BYTES, ROW_WORDS
from meshbus.policy.xxh3 import hash_pair
from meshbus.wire.constants import HEADER_BYTES, NET_MAGIC, ROUTE_BYTES, VERSION
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.routebatch import ROUTE_DTYPE

if TYPE_CHECKING:
    from meshbus.log.packets.packed import Memory
    from meshbus.log.packets.row import Bytes, Words

_ROUTE_AT: Final = 72
_TS_AT: Final = 104
_FIRST: Final = NET_MAGIC | VERSION << 16
_ALL: Final = (1 << 64) - 1
_EVERY = np.uint64(_ALL)


def sampling_rule(sampling: int, seed: int) -> tuple[int, int]:
    """Return the rule that chooses one in `sampling` packets: a seed, and the highest hash that is chosen."""
    return seed & _ALL, _ALL // sampling


def _strided(data: Bytes, at: int, step: int, count: int, size: int) -> Bytes:
    """Copy `count` parts of `size` bytes that start `step` bytes apart."""
    return np.ascontiguousarray(data[at + np.arange(count)[:, None] * step + np.arange(size)])


def _fill_reference(
    memory: Memory, packets: Bytes, begin: int, size: int, count: int, models: Words, ts_ns: int
) -> int:
    columns = _strided(packets, begin + ROUTE_BYTES, size, count, HEADER_BYTES).view(HEADER_DTYPE).reshape(-1)
    columns[(columns["magic"] != NET_MAGIC) | (columns["version"] != VERSION)] = np.zeros((), HEADER_DTYPE)
    seed, highest = memory[SEED : HIGHEST + 1].view(np.uint64)
    numbers = (memory[SEEN] + np.arange(count)).astype(np.uint64)
    counter = np.where(columns["session_id"] != 0, columns["counter"], numbers)
    # docs/decisions/0017: a hash of session and counter, so that all nodes choose the same packets.
    chosen = hash_pair(columns["session_id"] ^ seed, counter) <= highest
    # What finds no room is counted as lost.
    picked = np.flatnonzero(chosen)[: memory.item(ROOM) - memory.item(ROWS)]
    rows = np.broadcast_to(models.view(ROW), count)[picked]
    rows["header"] = columns[picked]
    rows["route"] = _strided(packets, begin, size, count, ROUTE_BYTES).view(ROUTE_DTYPE).reshape(-1)[picked]
    rows["ts_ns"] = ts_ns
    for row in words_of(rows):
        _append_reference(memory, row)
    memory[SEEN : LOST + 1] += count, len(rows), int(np.count_nonzero(chosen)) - len(rows)
    return memory.item(ROWS)


def _append_reference(memory: Memory, row: list[int]) -> None:
    """Pack a row after those in the arena."""
    end, there, data, packer = memory.item(END), memory.item(ROWS), data_of(memory), Packer()
    state = memory.view(np.uint64)
    if there % BLOCK_ROWS == 0:
        memory[STARTS + there // BLOCK_ROWS] = end
    else:
        packer.expected, packer.steps = state[EXPECTED:NEXT].tolist(), state[STEPS:EXPECTED].tolist()
        packer.repeated = memory.item(REPEATED)
        if packer.repeated:
            end -= MASK_BYTES
            packer.data += data[end : end + MASK_BYTES].tobytes()
    packer.add(row)
    data[end : end + len(packer.data)] = np.frombuffer(packer.data, np.uint8)
    state[EXPECTED:NEXT], state[STEPS:EXPECTED] = packer.expected, packer.steps
    memory[REPEATED], memory[END], memory[ROWS] = packer.repeated, end + len(packer.data), there + 1


@jit.helper
def _is_repetition(route: int, packet: int, expected: int) -> bool:
    """Return whether the headers at two addresses are those of the expected row; model and time are the same."""
    for at in range(0, HEADER_BYTES - 4, 8):
        if jit.load_u64(packet + at) != jit.load_u64(expected + at):
            return False
    return bool(
        jit.load_u32(packet + HEADER_BYTES - 4) == jit.load_u32(expected + HEADER_BYTES - 4)
        and jit.load_u64(route) == jit.load_u64(expected + _ROUTE_AT)
        and jit.load_u64(route + 8) == jit.load_u64(expected + _ROUTE_AT + 8)
        and jit.load_u32(route + ROUTE_BYTES - 4) == jit.load_u32(expected + _ROUTE_AT + ROUTE_BYTES - 4)
    )


@jit.helper
def _add_changes(memory: Memory, end: int) -> int:
    """Pack the words of the next row that differ from the last one, update the steps, and return the end address."""
    memory[EXPECTED + COUNTER] -= memory[STEPS]  # undo the step: this is the last row
    memory[EXPECTED + SEQUENCE] -= memory[STEPS + 1]
    memory[STEPS] = memory[NEXT + COUNTER] - memory[EXPECTED + COUNTER]
    memory[STEPS + 1] = memory[NEXT + SEQUENCE] - memory[EXPECTED + SEQUENCE]
    bits, place, row = 0, end, memory.ctypes.data + 8 * NEXT
    end += MASK_BYTES
    for word in range(ROW_WORDS):
        if memory[NEXT + word] != memory[EXPECTED + word]:
            memory[EXPECTED + word] = memory[NEXT + word]
            jit.copy_bytes(end, row + 8 * word, 8)
            bits |= 1 << word
            end += 8
    jit.store_u32(place, bits)
    return end


@jit.kernel(_fill_reference)
def fill(  # hot: bench_recorder
    memory: Memory, packets: Bytes, begin: int, size: int, count: int, models: Words, ts_ns: int
) -> int:
    """Choose packets and pack their rows into an arena while there is room; return the number of rows in it.

    `count` packets start at `begin`, `size` bytes apart: a routing header, zeros if there is none, and a header; bytes
    that are not a header are recorded as zeros. `models` has one row, or one per packet. Everything else is in the
    arena's memory, because each further array argument costs as much as twenty packets.
    """
    room, single = memory[ROOM], len(models) == ROW_WORDS
    state = memory.ctypes.data
    model, target, data = models.ctypes.data, state + 8 * NEXT, state + 8 * (STARTS + room // BLOCK_ROWS)
    route = packets.ctypes.data + begin - size
    # Kept in local variables during the loop, and written back once.
    there, end, repeated = memory[ROWS], data + memory[END], memory[REPEATED]
    before, seen, lost = there, memory[SEEN], 0
    seed, highest = np.uint64(memory[SEED]), np.uint64(memory[HIGHEST])
    every = highest == _EVERY
    for i in range(count):
        route += size
        packet = route + ROUTE_BYTES
        # Magic and version in one comparison.
        known = jit.load_u32(packet) & 0xFFFFFF == _FIRST
        # Without sampling no hash is needed.
        if not every:
            session = jit.load_u64(packet + 24) if known else np.uint64(0)
            counter = jit.load_u64(packet + 16) if session else np.uint64(seen + i)
            if hash_pair(session ^ seed, counter) > highest:
                continue
        if there == room:
            lost += 1
            continue
        first = there % BLOCK_ROWS == 0
        # The usual case in a train: compare with the expected row before anything is copied.
        again = single and there > before and not first and _is_repetition(route, packet, state + 8 * EXPECTED)
        if not again:
            jit.copy_bytes(target, model if single else model + i * ROW_BYTES, ROW_BYTES)
            jit.store_u32(target + _TS_AT, ts_ns & 0xFFFFFFFF)
            jit.store_u32(target + _TS_AT + 4, (ts_ns >> 32) & 0xFFFFFFFF)
            jit.copy_bytes(target + _ROUTE_AT, route, ROUTE_BYTES)
            if known:  # otherwise the header stays zero, as in the model
                jit.copy_bytes(target, packet, HEADER_BYTES)
            if first:
                memory[STARTS + there // BLOCK_ROWS] = end - data
                memory[STEPS:NEXT] = 0
            differs = np.int64(0)
            for word in range(ROW_WORDS):
                differs |= memory[NEXT + word] ^ memory[EXPECTED + word]
            again = differs == 0 and not first
        if again:
            if repeated == 0:
                end += MASK_BYTES
            repeated += 1
            jit.store_u32(end - MASK_BYTES, REPEAT | repeated)
        else:
            end = _add_changes(memory, end)
            repeated = 0
        memory[EXPECTED + COUNTER] += memory[STEPS]
        memory[EXPECTED + SEQUENCE] += memory[STEPS + 1]
        there += 1
    memory[ROWS], memory[END], memory[REPEATED] = there, end - data, repeated
    memory[SEEN] += count
    memory[TAKEN] += there - before
    memory[LOST] += lost
    return int(there)
