"""The footer of a Parquet file is Thrift in its compact form: the few kinds of values that it takes, as bytes.

Only writes, and only what log/packets/parquet.py needs. A value is its kind and its bytes, because a structure names the
kind in front of each field and a list once for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = tuple[int, bytes]

TRUE: Value = (1, b"")
_BYTE, _I32, _I64, _BINARY, _LIST, _STRUCT = 3, 5, 6, 8, 9, 12
_SHORT_LIST = 15


def varint(number: int) -> bytes:
    """Write a number that is not negative, seven bits a byte."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Write a number of 64 bits, small ones of either sign in few bytes."""
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def byte(number: int) -> Value:
    """Give a number of eight bits."""
    return _BYTE, bytes([number])


def i32(number: int) -> Value:
    """Give a number of 32 bits."""
    return _I32, zigzag(number)


def i64(number: int) -> Value:
    """Give a number of 64 bits."""
    return _I64, zigzag(number)


def text(value: str | bytes) -> Value:
    """Give text or bytes."""
    data = value.encode() if isinstance(value, str) else value
    return _BINARY, varint(len(data)) + data


def sequence(values: Sequence[Value]) -> Value:
    """Give a list of values of one kind, of which there is at least one."""
    kind, size = values[0][0], len(values)
    head = bytes([size << 4 | kind]) if size < _SHORT_LIST else bytes([_SHORT_LIST << 4 | kind]) + varint(size)
    return _LIST, head + b"".join(data for _, data in values)


def struct(fields: Mapping[int, Value]) -> Value:
    """Give a structure of fields by their numbers, which ascend by fifteen at most."""
    out, before = bytearray(), 0
    for number, (kind, data) in fields.items():
        out.append(number - before << 4 | kind)
        out += data
        before = number
    out.append(0)
    return _STRUCT, bytes(out)
