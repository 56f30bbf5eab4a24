"""Convert rows to columns, as runs of equal values.

Most of the 38 columns stay the same for thousands of packets, so a column is a list of *runs* of equal values, with signs
and meaning as in the table (log/schema.py). Packet counters and sequences increase by one with each packet of a train, so
their runs have equal steps. Runs are found from the packed rows (log/packets/packed.py): a word that did not change is
not examined. Nulls are added here too: a value that played no part in a decision is null, whatever the row contains.
Subnets play a part if a gateway with a configuration judged a publication and got as far as comparing them, which is
after the hop check. Runs become Arrow arrays in log/packets/arrow.py and Parquet pages in log/parquet/pages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.packets.packed import COUNTER, MASK_BYTES, REPEAT, SEQUENCE, STEPPING, Packed, unpack_rows
from meshbus.log.packets.row import JUDGED, NOT_ASKED, ROUTED, ROW, ROW_WORDS
from meshbus.log.parquet.runs import Runs, one_run
from meshbus.log.schema import PACKETS
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.policy.reason import BEFORE_GATEWAY, Reason
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.routebatch import ROUTE_DTYPE

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
"""Columns from the header, and their names on the wire."""
IN_ROUTE = {
    "route_src": "src_id",
    "route_dst": "dest_id",
    "route_ttl": "ttl",
    "route_hops": "hop_count",
    "route_flags": "flags",
}
_MADE_OF = {"ts": "ts_ns", "channel": "chash64"}
"""Columns whose runs are those of another column."""
_IN_NO_ROW = ("recorder", "sampling_rate")
_US: Final = 1_000

# Rules: when a cell is null.
_NEVER, _IF_ZERO, _IF_NOT_ASKED, _IF_UNROUTED, _IF_UNJUDGED = range(5)
# Unknown is null, never 0: a table must not show a value that played no part.
_NULLS = {
    "previous_hop": _IF_ZERO,
    "next_hop": _IF_ZERO,
    "chash64": _IF_ZERO,
    "guard": _IF_NOT_ASKED,
    "src": _IF_UNJUDGED,
    "dst": _IF_UNJUDGED,
    **dict.fromkeys(IN_ROUTE, _IF_UNROUTED),
}
_OFFSET, _BITS, _SIGN, _NULL, _WORDS, _IN_STEPS = range(6)
"""Fields of a plan, per column: offset and bits in a row, sign bit if it is bit-cast, null rule, the words of a row that
it depends on as bits, and whether its runs have steps."""
_STEPPED = {"counter": COUNTER, "packet_seq": SEQUENCE}
"""Columns whose runs have steps, and their words in a row."""
_BIT_CAST = {column.name for column in PACKETS if column.bit_cast}
_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)
_BYTE = np.uint64(0xFF)
_IDS_AT, _STREAM_AT, _REASON_AT, _PRESENT_AT = 8, 32, 101, 103
_LOOKED_AT = np.ones(256, np.bool_)
"""By reason: whether the gateway compares subnets before it finds that reason."""
_LOOKED_AT[[Reason.TTL_EXPIRED.code, *BEFORE_GATEWAY]] = False
_HIGHEST: Final = (1 << 63) - 1
_FEW: Final = 4_096
"""Runs per column that are allocated first; to allocate one per row would cost more than finding the runs."""
_FAR: Final = 1 << 48
"""Larger steps could overflow more than once within a block."""


class RecordInfo(NamedTuple):
    """What all rows of a file have in common: who recorded them, and one in how many."""

    recorder: int
    sampling: int


class Piece(NamedTuple):
    """A range of the rows of a block."""

    rows: Packed
    first: int
    last: int
    """One past the last."""


def runs_of(pieces: Sequence[Piece], info: RecordInfo, columns: Sequence[str]) -> dict[str, Runs]:
    """Return columns of rows; the channel column holds canonical hashes."""
    names = tuple(dict.fromkeys(_MADE_OF.get(name, name) for name in columns if name not in _IN_NO_ROW))
    found = _gathered(pieces, names)
    if "ts" in columns:
        # A timestamp has no steps, so dividing the values of its runs is enough.
        times = found["ts_ns"]
        found["ts"] = times._replace(values=times.values // _US)
    if "channel" in columns:
        found["channel"] = found["chash64"]
    found["recorder"] = one_run(np.uint64(info.recorder).astype(np.int64).item())
    found["sampling_rate"] = one_run(info.sampling)
    return {name: found[name] for name in columns}


def _gathered(pieces: Sequence[Piece], names: tuple[str, ...]) -> dict[str, Runs]:
    count = sum(piece.last - piece.first for piece in pieces)
    # Most columns have few runs; allocate for all rows only if that was not enough.
    found = _gathered_in(min(count, _FEW), pieces, names)
    if found is None:
        found = _gathered_in(count, pieces, names)
        assert found is not None  # a column never has more runs than rows
    return found


def _gathered_in(room: int, pieces: Sequence[Piece], names: tuple[str, ...]) -> dict[str, Runs] | None:
    """Gather columns with at most `room` runs each; return None if one has more."""
    plan, shape = _plan_for(names), (len(names), room)
    starts, valid = np.empty(shape, np.int32), np.empty(shape, np.bool_)
    values, steps = np.empty(shape, np.int64), np.empty(shape, np.int64)
    used = np.zeros(len(names), np.int64)
    at = 0
    for rows, first, last in pieces:
        data = jit.writable(rows.data)
        if not _gather.run(data, first, last, at, plan, _LOOKED_AT, starts, values, valid, steps, used):
            return None
        at += last - first
    return {
        name: Runs(starts[row, :runs], values[row, :runs], valid[row, :runs], steps[row, :runs])
        for row, (name, runs) in enumerate(zip(names, used.tolist(), strict=True))
    }


@lru_cache(maxsize=64)
def _plan_for(names: tuple[str, ...]) -> Plan:
    plan = np.zeros((len(names), 6), np.int64)
    for row, name in enumerate(names):
        offset, size = _place_of(name)
        rule = _NULLS.get(name, _NEVER)
        words = _words_at(offset, size)
        if rule == _IF_UNJUDGED:
            words |= _words_at(_IDS_AT, 4) | _words_at(_STREAM_AT, 8)
        if rule in {_IF_UNJUDGED, _IF_UNROUTED}:
            words |= _words_at(_REASON_AT, 1) | _words_at(_PRESENT_AT, 1)
        # Only 32-bit values need it: 64-bit ones are read as signed, and narrower ones are widened.
        sign = 1 << 31 if name in _BIT_CAST and size == 4 else 0
        plan[row] = offset, 8 * size, sign, rule, words, name in _STEPPED
    return plan


def _words_at(offset: int, size: int) -> int:
    return 1 << offset // 8 | 1 << (offset + size - 1) // 8


def _place_of(name: str) -> tuple[int, int]:
    """Return the offset and size of a column in a row."""
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
    steps: NDArray[np.int64],
    used: NDArray[np.int64],
) -> bool:
    rows = unpack_rows(Packed(data, last))[first:]
    table = np.frombuffer(rows.tobytes(), np.uint8).reshape(len(rows), -1)
    routed, judged = rows["present"] & ROUTED != 0, _judged(rows, looked_at)
    for column, (offset, bits, sign, rule, _, in_steps) in enumerate(plan.tolist()):
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
            run = used.item(column) - 1
            if run >= 0:
                length, value, step = (
                    at + row - starts.item(column, run),
                    values.item(column, run),
                    steps.item(column, run),
                )
                if in_steps and length == 1 and (number < 0) == (value < 0):
                    steps[column, run] = step = number - value
                if (value + length * step, value < 0, valid.item(column, run)) == (number, number < 0, there):
                    continue
            if run + 1 == starts.shape[1]:
                return False
            starts[column, run + 1], values[column, run + 1], valid[column, run + 1] = at + row, number, there
            steps[column, run + 1] = 0
            used[column] += 1
    return True


def _judged(rows: NDArray[np.void], looked_at: Flags) -> Flags:
    """Return for which packets a gateway compared subnets."""
    streams = rows["header"]["stream_id"]
    publication = (rows["header"]["subprotocol_id"] == 0) & (streams & _PUBLISH_BIT != 0)
    publication &= (streams & _WIRE_MASK) == rows["header"]["channel_hash"]
    return np.asarray(publication & (rows["present"] & JUDGED != 0) & looked_at[rows["reason"]])


@jit.helper
def _is_valid(row: int, value: np.int64, rule: int, looked_at: Flags) -> bool:
    """Return whether a cell is not null, by its rule and the row at an address."""
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


@jit.helper
def _stays(value: np.int64, step: np.int64, ahead: np.int64) -> bool:
    """Return whether a value keeps its sign for `ahead` steps."""
    if not -_FAR <= step <= _FAR:
        return False
    if (step < 0) == (value < 0):
        return bool(abs(step) * ahead <= _HIGHEST - (value if value >= 0 else -(value + 1)))
    return bool((value + step * ahead < 0) == (value < 0))


@jit.helper
def _affected(
    mask: np.int64, whole: bool, plan: Plan, words: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[int, int]:
    """List the words that follow a mask and the columns that depend on them; all columns if `whole`."""
    word_count = column_count = 0
    for word in range(ROW_WORDS):
        if mask >> word & 1 and mask & REPEAT == 0:
            words[word_count] = word
            word_count += 1
    for column in range(len(plan)):
        if whole or plan[column, _WORDS] & mask or plan[column, _IN_STEPS]:
            columns[column_count] = column
            column_count += 1
    return word_count, column_count


@jit.helper
def _cell(row: int, plan: NDArray[np.int64], looked_at: Flags) -> tuple[np.int64, bool]:
    """Return a cell of the row at an address: its value, and whether it is valid."""
    bits, sign = plan[_BITS], plan[_SIGN]
    value = np.int64(jit.load_u64(row + plan[_OFFSET]))
    if bits < 64:
        value &= (np.int64(1) << bits) - np.int64(1)
    there = _is_valid(row, value, plan[_NULL], looked_at)
    return (value ^ sign) - sign if there else np.int64(0), there


@jit.helper
def _continues(
    value: np.int64, at_row: np.int64, in_steps: bool, start: np.int32, first: np.int64, steps: NDArray[np.int64]
) -> bool:
    """Return whether a run continues with a value; the second row of a run sets its step."""
    length = at_row - start
    newest = first + (length - 1) * steps[0]
    if (value < 0) != (newest < 0):  # their difference could overflow
        return False
    if in_steps and length == 1:
        steps[0] = value - newest
    return bool(value - newest == steps[0])


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
    steps: NDArray[np.int64],
    used: NDArray[np.int64],
) -> bool:
    """Add rows of a block to the runs of columns; the first of them is row `at` of the columns.

    The block must have passed `hashes_in`: nothing is checked here. Returns False if a column has more runs than fit.
    """
    image = np.zeros(ROW_WORDS + 1, np.int64)  # one word more, because every column is read as eight bytes
    row, place = image.ctypes.data, data.ctypes.data
    words, columns = np.empty(ROW_WORDS, np.int64), np.empty(len(plan), np.int64)
    word_count = column_count = 0
    mask = known = np.int64(-1)
    repeats = np.int64(0)
    counter_step = sequence_step = np.int64(0)
    i = np.int64(0)
    while i < last:
        if repeats == 0:
            mask = np.int64(jit.load_u32(place))
            place += MASK_BYTES
            if mask & REPEAT:
                repeats = mask ^ REPEAT
                mask = np.int64(REPEAT | STEPPING)
        if mask != known or first <= i <= first + 1:  # usually a row changes the same words as the one before
            known = mask
            word_count, column_count = _affected(mask, i == first, plan, words, columns)
        if repeats:
            repeats -= 1
            image[COUNTER] += counter_step
            image[SEQUENCE] += sequence_step
        else:
            # Keep the old values, to compute the steps after the words are replaced.
            counter_step, sequence_step = image[COUNTER], image[SEQUENCE]
            for word in words[:word_count]:
                jit.copy_bytes(row + 8 * word, place, 8)
                place += 8
            counter_step, sequence_step = image[COUNTER] - counter_step, image[SEQUENCE] - sequence_step
        i += np.int64(1)
        if i <= first:
            continue
        for column in columns[:column_count]:
            value, there = _cell(row, plan[column], looked_at)
            run, at_row, in_steps = used[column] - 1, at + i - 1 - first, plan[column, _IN_STEPS] != 0
            if (
                run >= 0
                and valid[column, run] == there
                and _continues(value, at_row, in_steps, starts[column, run], values[column, run], steps[column, run:])
            ):
                continue
            run += 1
            if run == starts.shape[1]:
                return False
            starts[column, run], values[column, run], valid[column, run] = at_row, value, there
            steps[column, run] = 0
            used[column] = run + 1
        if repeats and i > first + 1:  # the rest of a repetition continues all runs: skip it
            ahead = repeats if repeats < last - i else np.int64(last - i)
            for column in columns[:column_count]:
                word = plan[column, _OFFSET] // 8
                step = counter_step if word == COUNTER else sequence_step
                if steps[column, used[column] - 1] != step or not _stays(image[word], step, ahead):
                    ahead = np.int64(0)
            image[COUNTER] += ahead * counter_step
            image[SEQUENCE] += ahead * sequence_step
            repeats -= ahead
            i += ahead
    return True
