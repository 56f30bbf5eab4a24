"""Rows become columns of numbers, as they are stored in Arrow and Parquet: signed, in the width of their type.

One kernel call does all fields of a block: a field at a time would fetch every row from memory once for each. Which of
the numbers are null is log/packets/arrow.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from meshbus import jit
from meshbus.log.packets.row import ROW, ROW_BYTES
from meshbus.log.schema import PACKETS, ColumnType
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]
    Fields = Mapping[str, NDArray[Any]]

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
PRESENT: Final = "present"
"""The one field that is no column: what a row has (log/packets/row.py)."""
_TYPES = {column.name: column.type for column in PACKETS}
_SHORT, _INT, _LONG = range(3)
_STORED: dict[ColumnType, int] = {ColumnType.BIGINT: _LONG, ColumnType.INT: _INT, ColumnType.SMALLINT: _SHORT}
_LOW_16, _ALL_32 = np.uint32(0xFFFF), np.uint32(0xFFFFFFFF)
_LOW_32, _ALL_64 = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)
_WIDTHS: Final = (2, 4, 8)
_AT_ONCE: Final = 128
"""Rows that stay in the nearest cache while their fields are read."""


def fields_of(blocks: Sequence[NDArray[np.void]], wanted: tuple[str, ...]) -> Fields:
    """Give fields of rows, by the names of the columns that they are stored in."""
    names, places = _plan_for(wanted)
    count = sum(map(len, blocks))
    shorts, ints, longs = (
        np.empty((len(place), count), f"u{width}") for place, width in zip(places, _WIDTHS, strict=True)
    )
    at = 0
    for block in blocks:
        rows = np.frombuffer(block, np.uint8)
        if not rows.flags.writeable:
            rows = rows.copy()  # for memory that may not be written to the kernel would be compiled anew
        _spread.run(rows, at, shorts, ints, longs, *places)
        at += len(block)
    found: dict[str, NDArray[Any]] = {}
    for each, values in zip(names, (shorts, ints, longs), strict=True):
        found.update(zip(each, values.view(values.dtype.str.replace("u", "i")), strict=True))
    return found


def warm_fields() -> None:
    """Load the kernel now, so that nobody waits for it later."""
    fields_of([np.zeros(1, ROW)], (PRESENT,))


class _Plan(NamedTuple):
    """Where the fields of some columns are in a row, by the width that they are stored with."""

    names: tuple[list[str], list[str], list[str]]
    places: tuple[Places, Places, Places]
    """Rows of offset and bytes."""


@lru_cache(maxsize=64)
def _plan_for(needed: tuple[str, ...]) -> _Plan:
    names: tuple[list[str], list[str], list[str]] = ([], [], [])
    places: tuple[list[tuple[int, int]], ...] = ([], [], [])
    for name in needed:
        kind = _SHORT if name == PRESENT else _STORED[_TYPES[name]]
        names[kind].append(name)
        places[kind].append(_place_of(name))
    shorts, ints, longs = (np.array(each, np.int64).reshape(-1, 2) for each in places)
    return _Plan(names, (shorts, ints, longs))


def _place_of(name: str) -> tuple[int, int]:
    """Give offset and size of a field in a row."""
    if name in IN_HEADER:
        return _place_in(HEADER_DTYPE, IN_HEADER[name], _place_in(ROW, "header")[0])
    if name in IN_ROUTE:
        return _place_in(ROUTE_DTYPE, IN_ROUTE[name], _place_in(ROW, "route")[0])
    return _place_in(ROW, name)


def _place_in(whole: np.dtype[np.void], name: str, base: int = 0) -> tuple[int, int]:
    assert whole.fields is not None
    kind, at = whole.fields[name][:2]
    return base + at, kind.itemsize


def _spread_reference(
    rows: NDArray[np.uint8],
    at: int,
    shorts: NDArray[np.uint16],
    ints: NDArray[np.uint32],
    longs: NDArray[np.uint64],
    short_places: Places,
    int_places: Places,
    long_places: Places,
) -> None:
    table = rows.reshape(-1, ROW_BYTES)
    for values, places in ((shorts, short_places), (ints, int_places), (longs, long_places)):
        for column, (offset, size) in enumerate(places.tolist()):
            field = np.ascontiguousarray(table[:, offset : offset + size]).view(f"<u{size}")
            values[column, at : at + len(table)] = field[:, 0]


@jit.kernel(_spread_reference)
def _spread(
    rows: NDArray[np.uint8],
    at: int,
    shorts: NDArray[np.uint16],
    ints: NDArray[np.uint32],
    longs: NDArray[np.uint64],
    short_places: Places,
    int_places: Places,
    long_places: Places,
) -> None:
    """Write fields of rows, of 1 byte, of 2 or 4, and of 4 or 8, into columns from one place on."""
    count, begin = len(rows) // ROW_BYTES, rows.ctypes.data
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count)
        for column in range(len(short_places)):
            offset = short_places[column, 0]
            for i in range(first, last):
                shorts[column, at + i] = rows[i * ROW_BYTES + offset]
        for column in range(len(int_places)):
            source = begin + int_places[column, 0]
            cut = _ALL_32 if int_places[column, 1] == 4 else _LOW_16
            for i in range(first, last):
                ints[column, at + i] = jit.load_u32(source + i * ROW_BYTES) & cut
        for column in range(len(long_places)):
            source = begin + long_places[column, 0]
            mask = _ALL_64 if long_places[column, 1] == 8 else _LOW_32
            for i in range(first, last):
                longs[column, at + i] = jit.load_u64(source + i * ROW_BYTES) & mask
