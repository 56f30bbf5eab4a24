"""Application headers of many events in one buffer, laid out like an Arrow map.

    rows u32, entries u32, key bytes u32, value bytes u32
    validity bits · row offsets i32 × (rows + 1) · key offsets i32 × (entries + 1) · value offsets i32 × (entries + 1)
    · keys · values

Each part is padded to 8 bytes. One row for many events means that all of them have the same headers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIXED = struct.Struct("<IIII")


def padded(size: int) -> int:
    """Round a size up to a multiple of 8."""
    return (size + 7) & ~7


class Headers:
    """The packed headers of some rows; reading them copies nothing."""

    __slots__ = ("packed", "rows")

    def __init__(self, packed: bytes | memoryview) -> None:
        self.packed = packed
        """The buffer; its size is a multiple of 8."""
        self.rows = int(_FIXED.unpack_from(packed)[0])

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, bytes] | None]) -> Headers:
        """Pack one mapping per row; None stands for no headers."""
        try:
            keys = [key.encode() for row in rows if row for key in row]
            values = [bytes(memoryview(value)) for row in rows if row for value in row.values()]
        except (AttributeError, TypeError, UnicodeError):
            raise ConfigError("headers", "keys must be str and values bytes") from None
        # None and an empty mapping differ: the first is null in tables.
        valid = np.packbits([row is not None for row in rows], bitorder="little")
        counts = [len(row) if row else 0 for row in rows]
        parts = [
            valid.tobytes(),
            _offsets(counts),
            _offsets(list(map(len, keys))),
            _offsets(list(map(len, values))),
            b"".join(keys),
            b"".join(values),
        ]
        fixed = _FIXED.pack(len(rows), len(keys), len(parts[4]), len(parts[5]))
        return cls(fixed + b"".join(part + bytes(padded(len(part)) - len(part)) for part in parts))

    @staticmethod
    def size_at(buffer: memoryview, at: int) -> int:
        """Return the size of the packed headers that start at an offset."""
        return _FIXED.size + sum(map(padded, _sizes(buffer, at)))

    def parts(self) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], Any, Any]:
        """Return validity bits, row, key and value offsets, keys and values as views; raises ValueError if damaged."""
        sizes = _sizes(self.packed, 0)
        at, views = _FIXED.size, []
        whole = memoryview(self.packed)
        for size in sizes:
            views.append(whole[at : at + size])
            at += padded(size)
        if at != len(whole):
            raise ValueError("the sizes of the headers' parts do not add up")
        numbers = [np.frombuffer(view, "<i4") for view in views[1:4]]
        return np.frombuffer(views[0], np.uint8), numbers[0], numbers[1], numbers[2], views[4], views[5]

    def check(self, count: int) -> None:
        """Raise ValueError unless these are whole headers of so many events, whose offsets lead nowhere else."""
        if self.rows not in {1, count}:
            raise ValueError(f"headers of {self.rows} events in a block of {count}")
        _, rows, keys, values, key_data, value_data = self.parts()
        for offsets, end in ((rows, len(keys) - 1), (keys, len(key_data)), (values, len(value_data))):
            if offsets[0] or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
                raise ValueError("the offsets of the headers do not ascend to their end")
        bytes(key_data).decode()
        starts = keys[:-1][keys[:-1] < len(key_data)]
        if (np.frombuffer(key_data, np.uint8)[starts] & 0xC0 == 0x80).any():
            raise ValueError("a key of the headers begins within a character")

    def row(self, index: int) -> dict[str, bytes] | None:
        """Return the headers of one event; a single row stands for every event."""
        index = 0 if self.rows == 1 else index
        valid, rows, keys, values, key_data, value_data = self.parts()
        if not valid[index >> 3] >> (index & 7) & 1:
            return None
        return {
            bytes(key_data[keys[entry] : keys[entry + 1]]).decode(): bytes(
                value_data[values[entry] : values[entry + 1]]
            )
            for entry in range(rows[index], rows[index + 1])
        }


def _sizes(buffer: bytes | memoryview, at: int) -> list[int]:
    rows, entries, key_bytes, value_bytes = _FIXED.unpack_from(buffer, at)
    return [(rows + 7) // 8, 4 * (rows + 1), 4 * (entries + 1), 4 * (entries + 1), key_bytes, value_bytes]


def _offsets(lengths: Sequence[int]) -> bytes:
    offsets = np.zeros(len(lengths) + 1, "<i4")
    np.cumsum(lengths, out=offsets[1:])
    return offsets.tobytes()
