"""The compact protocol of Thrift, as far as the footer of a Parquet file needs it.

Only writes, and only what this folder needs. A value is its type and its bytes, because a structure names the
type before each field, and a list once for all elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = tuple[int, bytes]

TRUE: Value = (1, b"")
_BYTE, _I32, _I64, _BINARY, _LIST, _STRUCT = 3, 5, 6, 8, 9, 12
_SHORT_LIST = 15
_SINGLE = [bytes([number]) for number in range(256)]


def varint(number: int) -> bytes:
    """Encode a non-negative number with seven bits per byte."""
    if number <= 0x7F:  # most of them
        return _SINGLE[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Encode a signed 64-bit number; small ones of either sign take few bytes."""
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def byte(number: int) -> Value:
    """Return an 8-bit number."""
    return _BYTE, bytes([number])


def i32(number: int) -> Value:
    """Return a 32-bit number."""
    return _I32, zigzag(number)


def i64(number: int) -> Value:
    """Return a 64-bit number."""
    return _I64, zigzag(number)


def text(value: str | bytes) -> Value:
    """Return text or bytes."""
    data = value.encode() if isinstance(value, str) else value
    return _BINARY, varint(len(data)) + data


def sequence(values: Sequence[Value]) -> Value:
    """Return a list of values of one type; there must be at least one."""
    kind, size = values[0][0], len(values)
    # Up to 14 elements the size shares a byte with the type; 15 means that it follows as a varint.
    head = bytes([size << 4 | kind]) if size < _SHORT_LIST else bytes([_SHORT_LIST << 4 | kind]) + varint(size)
    return _LIST, head + b"".join(data for _, data in values)


def struct(fields: Mapping[int, Value]) -> Value:
    """Return a structure of fields by number; each number is at most 15 above the one before."""
    parts: list[bytes] = []
    before = 0
    for number, (kind, data) in fields.items():
        # Thrift's compact protocol: field numbers are stored as differences, in the same byte as the type.
        parts += _SINGLE[number - before << 4 | kind], data
        before = number
    return _STRUCT, b"".join([*parts, b"\0"])
