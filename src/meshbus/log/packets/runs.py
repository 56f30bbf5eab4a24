"""Rows become columns: of each column, where its value changes, and to what.

Most of 38 columns stay the same for thousands of packets, so a column is told as *runs* of equal values, signed and in
the meaning of the table (log/schema.py). They are found from what packed rows say themselves (log/packets/packed.py): a
word that did not change is not looked at. Here a row gets its nulls, too: what played no part in a decision is null,
whatever is in the row. A subnet played a part when a gateway with a configuration judged a publication and got as far
as looking at it, which is after the hops. What runs become is log/packets/arrow.py and log/packets/pages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.packets.packed import MASK_BYTES, Packed, unpack_rows
from meshbus.log.packets.row import JUDGED, NOT_ASKED, ROUTED, ROW, ROW_WORDS
from meshbus.log.schema import PACKETS
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.policy.fate import BEFORE_GATEWAY
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.policy.verdict import DropReason
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.packets.row import Bytes

    Plan = NDArray[np.int64]
    Flags = NDArray[np.bool_]

IN_HEADER = {
    "ttl": "hop_ttl",
    "hops": "hop_count",
    "chash": "channel_hash",
    "packet_seq": "sequence",
    "origin": "origin_hash",
    **{
        name: name
        for name in (
            "version", "flags", "priority", "frag_flags", "subprotocol_id", "nonce_prefix", "counter", "session_id",
            "stream_id", "subnet_id", "fragment_id", "fragment_offset", "payload_len", "event_count",
        )
    },
}  # fmt: skip
"""Columns of the header, and what the wire calls them."""
IN_ROUTE = {
    "route_src": "src_id",
    "route_dst": "dest_id",
    "route_ttl": "ttl",
    "route_hops": "hop_count",
    "route_flags": "flags",
}
_MADE_OF = {"ts": "ts_ns", "channel": "chash64"}
"""Columns whose runs are those of another."""
_IN_NO_ROW = ("recorder", "sampling_rate")
_US: Final = 1_000

# When a cell is null.
_NEVER, _IF_ZERO, _IF_NOT_ASKED, _IF_UNROUTED, _IF_UNJUDGED = range(5)
_NULLS = {
    "previous_hop": _IF_ZERO,
    "next_hop": _IF_ZERO,
    "chash64": _IF_ZERO,
    "guard": _IF_NOT_ASKED,
    "src": _IF_UNJUDGED,
    "dst": _IF_UNJUDGED,
    **dict.fromkeys(IN_ROUTE, _IF_UNROUTED),
}
_OFFSET, _BITS, _SIGN, _NULL, _WORDS = range(5)
"""What a plan says of a column: its place and bits in a row, its sign bit if it is bit-cast, when it is null, and which
words of a row it depends on, as bits."""
_BIT_CAST = {column.name for column in PACKETS if column.bit_cast}
_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)
_BYTE = np.uint64(0xFF)
_IDS_AT, _STREAM_AT, _REASON_AT, _PRESENT_AT = 8, 32, 101, 103
_LOOKED_AT = np.ones(256, np.bool_)
"""By reason: whether subnets are looked at before it is found."""
_LOOKED_AT[[DropReason.TTL_EXPIRED, *BEFORE_GATEWAY]] = False
_BITS_OF_ALL: Final = (1 << ROW_WORDS) - 1


class Whose(NamedTuple):
    """What all rows of a file have in common."""

    recorder: int
    sampling: int


class Piece(NamedTuple):
    """Some rows of a block."""

    rows: Packed
    first: int
    last: int
    """One past the last."""


class Runs(NamedTuple):
    """A column: one value from each start to the next, or to the end."""

    starts: NDArray[np.int32]
    values: NDArray[np.int64]
    """0 where it is null."""
    valid: Flags

    def lengths(self, count: int) -> NDArray[np.int64]:
        """Give the rows of each run, of so many in all."""
        lengths = np.empty(len(self.starts), np.int64)
        lengths[:-1] = self.starts[1:] - self.starts[:-1]
        lengths[-1] = count - self.starts[-1]
        return lengths


def runs_of(pieces: Sequence[Piece], whose: Whose, columns: Sequence[str]) -> dict[str, Runs]:
    """Give columns of rows; that of channels has their canonical hashes."""
    names = tuple(dict.fromkeys(_MADE_OF.get(name, name) for name in columns if name not in _IN_NO_ROW))
    found = _gathered(pieces, names)
    if "ts" in columns:
        times = found["ts_ns"]
        found["ts"] = times._replace(values=times.values // _US)
    if "channel" in columns:
        found["channel"] = found["chash64"]
    found["recorder"] = _constant(np.uint64(whose.recorder).astype(np.int64))
    found["sampling_rate"] = _constant(np.int64(whose.sampling))
    return {name: found[name] for name in columns}


def _constant(value: np.int64) -> Runs:
    return Runs(np.zeros(1, np.int32), np.array([value]), np.ones(1, np.bool_))


def _gathered(pieces: Sequence[Piece], names: tuple[str, ...]) -> dict[str, Runs]:
    count, plan = sum(piece.last - piece.first for piece in pieces), _plan_for(names)
    # Memory that is not written to costs nothing: as much as there are changes.
    starts = np.empty((len(names), count), np.int32)
    values, valid = np.empty(starts.shape, np.int64), np.empty(starts.shape, np.bool_)
    used = np.zeros(len(names), np.int64)
    at = 0
    for rows, first, last in pieces:
        _gather.run(jit.writable(rows.data), first, last, at, plan, _LOOKED_AT, starts, values, valid, used)
        at += last - first
    return {
        name: Runs(starts[row, :runs], values[row, :runs], valid[row, :runs])
        for row, (name, runs) in enumerate(zip(names, used.tolist(), strict=True))
    }


@lru_cache(maxsize=64)
def _plan_for(names: tuple[str, ...]) -> Plan:
    plan = np.zeros((len(names), 5), np.int64)
    for row, name in enumerate(names):
        offset, size = _place_of(name)
        rule = _NULLS.get(name, _NEVER)
        words = _words_at(offset, size)
        if rule == _IF_UNJUDGED:
            words |= _words_at(_IDS_AT, 4) | _words_at(_STREAM_AT, 8)
        if rule in {_IF_UNJUDGED, _IF_UNROUTED}:
            words |= _words_at(_REASON_AT, 1) | _words_at(_PRESENT_AT, 1)
        sign = 1 << 31 if name in _BIT_CAST and size == 4 else 0
        plan[row] = offset, 8 * size, sign, rule, words
    return plan


def _words_at(offset: int, size: int) -> int:
    return 1 << offset // 8 | 1 << (offset + size - 1) // 8


def _place_of(name: str) -> tuple[int, int]:
    """Give offset and size of a column in a row."""
    if name in IN_HEADER:
        return _place_in(HEADER_DTYPE, IN_HEADER[name], _place_in(ROW, "header")[0])
    if name in IN_ROUTE:
        return _place_in(ROUTE_DTYPE, IN_ROUTE[name], _place_in(ROW, "route")[0])
    return _place_in(ROW, name)


def _place_in(whole: np.dtype[np.void], name: str, base: int = 0) -> tuple[int, int]:
    assert whole.fields is not None
    kind, at = whole.fields[name][:2]
    return base + at, kind.itemsize


def _gather_reference(
    data: Bytes,
    first: int,
    last: int,
    at: int,
    plan: Plan,
    looked_at: Flags,
    starts: NDArray[np.int32],
    values: NDArray[np.int64],
    valid: Flags,
    used: NDArray[np.int64],
) -> None:
    rows = unpack_rows(Packed(data, last))[first:]
    table = np.frombuffer(rows.tobytes(), np.uint8).reshape(len(rows), -1)
    routed, judged = rows["present"] & ROUTED != 0, _judged(rows, looked_at)
    for column, (offset, bits, sign, rule, _) in enumerate(plan.tolist()):
        cells = np.ascontiguousarray(table[:, offset : offset + bits // 8]).view(f"<u{bits // 8}")[:, 0]
        known = {
            _NEVER: np.ones(len(rows), np.bool_),
            _IF_ZERO: cells != 0,
            _IF_NOT_ASKED: cells != NOT_ASKED,
            _IF_UNROUTED: routed,
            _IF_UNJUDGED: judged,
        }[rule]
        numbers = np.where(known, (cells.astype(np.int64) ^ sign) - sign, 0)
        for row, (number, there) in enumerate(zip(numbers.tolist(), known.tolist(), strict=True)):
            runs = used[column]
            if runs and (values[column, runs - 1], valid[column, runs - 1]) == (number, there):
                continue
            starts[column, runs], values[column, runs], valid[column, runs] = at + row, number, there
            used[column] += 1


def _judged(rows: NDArray[np.void], looked_at: Flags) -> Flags:
    """Say for which packets a gateway looked at the subnets."""
    streams = rows["header"]["stream_id"]
    publication = (rows["header"]["subprotocol_id"] == 0) & (streams & _PUBLISH_BIT != 0)
    publication &= (streams & _WIRE_MASK) == rows["header"]["channel_hash"]
    return np.asarray(publication & (rows["present"] & JUDGED != 0) & looked_at[rows["reason"]])


@jit.helper
def _is_there(row: int, value: np.int64, rule: int, looked_at: Flags) -> bool:
    """Say whether a cell is not null, by its rule and by the row at an address."""
    if rule == _IF_ZERO:
        return bool(value != 0)
    if rule == _IF_NOT_ASKED:
        return bool(value != NOT_ASKED)
    if rule == _IF_UNROUTED:
        return bool(jit.load_u64(row + _PRESENT_AT) & np.uint64(ROUTED))
    if rule == _IF_UNJUDGED:
        stream, ids = jit.load_u64(row + _STREAM_AT), jit.load_u32(row + _IDS_AT)
        if ids & 0xFFFF != 0 or stream & _PUBLISH_BIT == 0 or stream & _WIRE_MASK != ids >> 16:
            return False
        if jit.load_u64(row + _PRESENT_AT) & np.uint64(JUDGED) == 0:
            return False
        return bool(looked_at[jit.load_u64(row + _REASON_AT) & _BYTE])
    return True


@jit.kernel(_gather_reference)
def _gather(
    data: Bytes,
    first: int,
    last: int,
    at: int,
    plan: Plan,
    looked_at: Flags,
    starts: NDArray[np.int32],
    values: NDArray[np.int64],
    valid: Flags,
    used: NDArray[np.int64],
) -> None:
    """Add rows of a block to the runs of columns; the first of these rows is row `at` there.

    The block is whole (`hashes_in`): nothing is checked here.
    """
    image = np.zeros(ROW_WORDS + 1, np.uint64)  # one more: a column is read as eight bytes
    row, place = image.ctypes.data, data.ctypes.data
    words, columns = np.empty(ROW_WORDS, np.int64), np.empty(len(plan), np.int64)
    word_count = column_count = 0
    known = np.int64(-1)
    for i in range(last):
        mask = np.int64(jit.load_u32(place))
        place += MASK_BYTES
        if mask != known or first <= i <= first + 1:  # rows mostly differ in what the rows before did
            known, word_count, column_count = mask, 0, 0
            for word in range(ROW_WORDS):
                if mask >> word & 1:
                    words[word_count] = word
                    word_count += 1
            seen = np.int64(_BITS_OF_ALL) if i == first else mask
            for column in range(len(plan)):
                if plan[column, _WORDS] & seen:
                    columns[column_count] = column
                    column_count += 1
        for word in range(word_count):
            image[words[word]] = jit.load_u64(place)
            place += 8
        if i < first:
            continue
        for number in range(column_count):
            column = columns[number]
            bits, sign, rule = plan[column, _BITS], plan[column, _SIGN], plan[column, _NULL]
            value = np.int64(jit.load_u64(row + plan[column, _OFFSET]))
            if bits < 64:
                value &= (np.int64(1) << bits) - np.int64(1)
            there = _is_there(row, value, rule, looked_at)
            value = (value ^ sign) - sign if there else np.int64(0)
            runs = used[column]
            if runs == 0 or values[column, runs - 1] != value or valid[column, runs - 1] != there:
                starts[column, runs], values[column, runs], valid[column, runs] = at + i - first, value, there
                used[column] = runs + 1
