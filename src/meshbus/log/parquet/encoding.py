"""Values of a Parquet page, encoded from runs: as a dictionary with indices, or as differences.

Only encodings of Parquet whose cost depends on the number of runs: a value that stays the same for a thousand rows
takes three bytes and no time. A column with few different values becomes a dictionary, with its indices as runs, or as
bits if runs are short; any other column becomes DELTA_BINARY_PACKED. Every Parquet reader supports both. Nothing is
compressed, because little is left to compress. Pages and their headers are in log/parquet/pages.py.
"""

from __future__ import annotations

from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Final

import numpy as np

from meshbus import jit
from meshbus.log.parquet.thrift import varint, zigzag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]

FEW: Final = 8
"""Runs shorter than this on average are written as bits, which take less space then."""
_BLOCK: Final = 128
_MINIS: Final = 4
_MINI: Final = 32
"""Differences per block, and per miniblock with a bit width of its own: the sizes that other Parquet writers use."""
_MOST_VARINT: Final = 10
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW_7 = np.uint64(0x7F)
_MORE = np.uint64(0x80)
_SEVEN = np.uint64(7)
_ONE = np.uint64(1)
_WORD: Final = 64


def index(values: Numbers, most: int) -> tuple[Numbers, Numbers] | None:
    """Return the distinct values of runs and the index of each run's value; None if there are more than `most`."""
    room = min(len(values), most)
    places, different = np.empty(len(values), np.int64), np.empty(room, np.int64)
    found = _index.run(values, places, different)
    return None if found > len(different) else (different[:found], places)


def hybrid(lengths: Numbers, values: Numbers, width: int) -> bytes:
    """Encode numbers of `width` bits, one per run, as runs, or as bits of every value if runs are short."""
    count = int(lengths.sum())
    # Upper bounds: a varint and a value for each run, or the bits of every value.
    room = max(len(lengths) * (_MOST_VARINT + 8), 0) if len(lengths) * FEW <= count else count * width // 8 + 1024
    out = np.empty(room, np.uint8)
    return out[: _hybrid.run(lengths, values, width, count, out)].tobytes()


def delta(lengths: Numbers, values: Numbers, steps: Numbers, bits: int) -> bytes:
    """Encode numbers of 32 or 64 bits by their differences; the values of a run change by its step."""
    count = int(lengths.sum())
    blocks = -(-count // _BLOCK)
    out = np.empty(4 * _MOST_VARINT + blocks * (_MOST_VARINT + _MINIS + _BLOCK * bits // 8), np.uint8)
    return out[: _delta.run(lengths, values, steps, bits, count, out)].tobytes()


# ── a dictionary ────────────────────────────────────────────────────────────────────────────


def _index_reference(values: Numbers, places: Numbers, different: Numbers) -> int:
    known: dict[int, int] = {}
    for number, value in enumerate(values.tolist()):
        if value not in known:
            if len(known) == len(different):
                return len(different) + 1
            different[len(known)] = value
        places[number] = known.setdefault(value, len(known))
    return len(known)


@jit.kernel(_index_reference)
def _index(values: Numbers, places: Numbers, different: Numbers) -> int:
    """Find distinct values with a hash table that is at most half full; return one more than fit if there are too many."""
    size = 2
    while size < 2 * len(different):
        size *= 2
    table, mask, found = np.zeros(size, np.int64), np.uint64(size - 1), 0
    for number in range(len(values)):
        value = values[number]
        # Multiplicative hashing; neighbors such as counters spread over the table.
        slot = (np.uint64(value) * _SPREAD >> _HALF) & mask
        while table[slot] != 0 and different[table[slot] - 1] != value:
            slot = (slot + _ONE) & mask
        if table[slot] == 0:
            if found == len(different):
                return found + 1
            different[found] = value
            found += 1
            table[slot] = found
        places[number] = table[slot] - 1
    return found


# ── runs and bits ───────────────────────────────────────────────────────────────────────────


def _put(out: Bytes, data: bytes) -> int:
    out[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def _packed(values: Sequence[int], width: int) -> bytes:
    """Return the low bits of numbers one after the other; their count is a multiple of eight."""
    whole = sum((value & (1 << width) - 1) << number * width for number, value in enumerate(values))
    return whole.to_bytes(len(values) * width // 8, "little")


def _expanded(lengths: Numbers, values: Numbers) -> list[int]:
    return list(chain.from_iterable(map(repeat, values.tolist(), lengths.tolist())))


def _hybrid_reference(lengths: Numbers, values: Numbers, width: int, count: int, out: Bytes) -> int:
    if len(lengths) * FEW > count:
        numbers = _expanded(lengths, values)
        groups = -(-count // 8)
        return _put(out, varint(groups << 1 | 1) + _packed(numbers + [0] * (groups * 8 - count), width))
    runs = zip(lengths.tolist(), values.tolist(), strict=True)
    return _put(out, b"".join(varint(length << 1) + value.to_bytes(-(-width // 8), "little") for length, value in runs))


@jit.helper
def _put_varint(out: Bytes, at: int, value: int | np.int64) -> int:
    number = np.uint64(value)
    while number > _LOW_7:
        out[at] = np.uint8((number & _LOW_7) | _MORE)
        number >>= _SEVEN
        at += 1
    out[at] = np.uint8(number)
    return at + 1


@jit.helper
def _put_bits(
    out: Bytes, at: int, values: NDArray[np.uint64], count: int, width: int, words: NDArray[np.uint64]
) -> int:
    """Write the low bits of numbers one after the other; `words` is scratch space for all of them and one more."""
    words[:] = 0
    bit = 0
    for number in range(count):
        word, shift = bit // _WORD, bit % _WORD
        words[word] |= values[number] << np.uint64(shift)
        if shift + width > _WORD:
            words[word + 1] |= values[number] >> np.uint64(_WORD - shift)
        bit += width
    jit.copy_bytes(out.ctypes.data + at, words.ctypes.data, bit // 8)
    return at + bit // 8


@jit.kernel(_hybrid_reference)
def _hybrid(lengths: Numbers, values: Numbers, width: int, count: int, out: Bytes) -> int:
    """Write runs in Parquet's hybrid of runs and bits and return the number of bytes."""
    at = 0
    if len(lengths) * FEW <= count:
        for number in range(len(lengths)):
            at = _put_varint(out, at, lengths[number] << 1)
            for byte in range((width + 7) // 8):
                out[at] = values[number] >> (8 * byte) & 0xFF
                at += 1
        return at
    groups = (count + 7) // 8
    at = _put_varint(out, at, groups << 1 | 1)
    held, words = np.zeros(_MINI, np.uint64), np.empty(_MINI + 1, np.uint64)
    waiting = 0
    for number in range(len(lengths)):
        for _ in range(lengths[number]):
            held[waiting] = values[number]
            waiting += 1
            if waiting == _MINI:
                at = _put_bits(out, at, held, _MINI, width, words)
                waiting = 0
    if waiting:
        held[waiting:] = 0
        at = _put_bits(out, at, held, (waiting + 7) // 8 * 8, width, words)
    return at


# ── differences ─────────────────────────────────────────────────────────────────────────────


def _wrapped(number: int, bits: int) -> int:
    """Return a number wrapped to a signed number of `bits` bits."""
    low = number & (1 << bits) - 1
    return low - (1 << bits) if low >> bits - 1 else low


def _delta_reference(lengths: Numbers, values: Numbers, steps: Numbers, bits: int, count: int, out: Bytes) -> int:
    numbers = [
        value + row * step
        for length, value, step in zip(lengths.tolist(), values.tolist(), steps.tolist(), strict=True)
        for row in range(length)
    ]
    data = varint(_BLOCK) + varint(_MINIS) + varint(count) + zigzag(numbers[0])
    apart = [_wrapped(after - before, bits) for before, after in pairwise(numbers)]
    for block in (apart[at : at + _BLOCK] for at in range(0, len(apart), _BLOCK)):
        least = min(block)
        minis = [[step - least for step in block[at : at + _MINI]] for at in range(0, _BLOCK, _MINI)]
        widths = [max(mini, default=0).bit_length() for mini in minis]
        data += zigzag(least) + bytes(widths)
        for mini, width in zip(minis, widths, strict=True):
            data += _packed(mini + [0] * (_MINI - len(mini)), width)
    return _put(out, data)


@jit.kernel(_delta_reference)
def _delta(lengths: Numbers, values: Numbers, steps: Numbers, bits: int, count: int, out: Bytes) -> int:
    """Write runs as DELTA_BINARY_PACKED and return the number of bytes."""
    at = _put_varint(out, 0, _BLOCK)
    at = _put_varint(out, at, _MINIS)
    at = _put_varint(out, at, count)
    last = values[0]
    at = _put_varint(out, at, (last << 1) ^ (last >> 63))
    apart, held = np.zeros(_BLOCK, np.int64), np.zeros(_MINI, np.uint64)
    words, shift = np.empty(_MINI + 1, np.uint64), 64 - bits
    waiting, left = 0, count - 1
    for number in range(len(lengths)):
        length, step = lengths[number], steps[number] << shift >> shift
        row = 1 if number == 0 else 0
        while row < length:
            if waiting == 0 and row and length - row >= _BLOCK:  # a whole block of equal steps
                at = _put_varint(out, at, (step << 1) ^ (step >> 63))
                out[at : at + _MINIS] = 0
                at += _MINIS
                row += _BLOCK
                left -= _BLOCK
                continue
            apart[waiting] = step if row else (values[number] - last) << shift >> shift
            row += 1
            waiting += 1
            left -= 1
            if waiting < _BLOCK and left:
                continue
            least = apart[:waiting].min()
            at = _put_varint(out, at, (least << 1) ^ (least >> 63))
            apart[waiting:] = least  # padding takes no bits
            widths_at = at
            at += _MINIS
            for mini in range(_MINIS):
                highest = np.uint64(0)
                for place in range(_MINI):
                    held[place] = np.uint64(apart[mini * _MINI + place] - least)
                    highest |= held[place]
                width = 0
                while highest:
                    width += 1
                    highest >>= _ONE
                out[widths_at + mini] = width
                if width:
                    at = _put_bits(out, at, held, _MINI, width, words)
            waiting = 0
        # The difference to the next run is taken from the last value of this one.
        last = values[number] + (length - 1) * step
    return at
