"""Sealed files of packets: standard Parquet, written from runs (log/packets/runs.py).

    "PAR1"                       per row group and column: a dictionary page, if there is one, and one data page
    pages
    footer                       the schema, and the row groups with the minimum and maximum of each column
    length of the footer u32
    "PAR1"

Not written with pyarrow, which processes every value of every column although nearly all equal the one before: that took
a fifth of a forwarder's time. The types are those that pyarrow gives the same schema, and the footer contains that schema
as pyarrow would write it. Every page has a checksum. Field numbers are those of Parquet's Thrift definitions.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshbus.log.arrow import has_arrow
from meshbus.log.packets.encoding import delta, hybrid, index
from meshbus.log.packets.packed import hashes_in, pack_rows
from meshbus.log.packets.row import ROW
from meshbus.log.packets.runs import Piece, RecordInfo, Runs, runs_of
from meshbus.log.packets.thrift import TRUE, Value, byte, i32, i64, sequence, struct, text
from meshbus.log.schema import PACKETS, SCHEMA_VERSION, Column, ColumnType, arrow_schema

if TYPE_CHECKING:
    from meshbus.log.packets.encoding import Numbers

MAGIC = b"PAR1"
_VERSION = 2
_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6
_REQUIRED, _OPTIONAL = 0, 1
_PLAIN, _RLE, _DELTA, _DICTIONARY = 0, 3, 5, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_UNCOMPRESSED = 0
_NOTHING = struct({})
_NOWHERE = i64(0)
"""Offset of the separate copy of a column's metadata: there is none."""
_WORTH = 8
"""If more than one in this many values is distinct, differences take less space than a dictionary."""


class _Kind(NamedTuple):
    """How Parquet stores the values of a column."""

    physical: int
    bits: int
    converted: int | None = None
    logical: Value | None = None


_KINDS = {
    ColumnType.BIGINT: _Kind(_INT64, 64),
    ColumnType.INT: _Kind(_INT32, 32),
    ColumnType.SMALLINT: _Kind(_INT32, 32, 16, struct({10: struct({1: byte(16), 2: TRUE})})),
    ColumnType.TIMESTAMP: _Kind(
        _INT64, 64, 10, struct({8: struct({1: TRUE, 2: struct({2: _NOTHING})})})
    ),  # microseconds in UTC
    ColumnType.STRING: _Kind(_BYTE_ARRAY, 0, 0, struct({1: _NOTHING})),
}
_COLUMNS = {column.name: column for column in PACKETS}


class _Pages(NamedTuple):
    """The pages of one column of a row group."""

    parts: tuple[bytes, ...]
    size: int
    data_at: int
    """Offset of the data page; 0 if there is no dictionary page before it."""
    described: dict[int, Value]
    """The metadata of the column, except the offsets of its pages."""
    bounds: Value


class _Encoded(NamedTuple):
    """The encoded values of one column of a row group."""

    encoding: int
    data: bytes
    dictionary: tuple[bytes, ...]
    """The dictionary page, if there is one."""
    bounds: dict[int, Value]
    """The maximum and the minimum."""


class ParquetFile:
    """Encodes one file; returns its parts in order, and the caller writes them."""

    def __init__(self, info: RecordInfo) -> None:
        self._info = info
        self._size = len(MAGIC)
        self._rows = 0
        self._groups: list[Value] = []

    def group(self, pieces: Sequence[Piece], names: Mapping[int, str]) -> bytes:
        """Return the bytes of a row group; `names` has the channels of its rows by canonical hash."""
        count = sum(piece.last - piece.first for piece in pieces)
        columns = runs_of(pieces, self._info, tuple(_COLUMNS))
        begin, parts, chunks = self._size, [] if self._groups else [MAGIC], []
        for column in PACKETS:
            pages = _pages(column, columns[column.name], count, names)
            chunks.append(_chunk(pages, self._size))
            parts += pages.parts
            self._size += pages.size
        self._rows += count
        self._groups.append(struct({1: sequence(chunks), 2: i64(self._size - begin), 3: i64(count)}))
        return b"".join(parts)

    def footer(self) -> bytes:
        """Return the end of the file, which must have at least one row group."""
        elements, metadata = _described()
        _, footer = struct(
            {
                1: i32(_VERSION),
                2: elements,
                3: i64(self._rows),
                4: sequence(self._groups),
                5: metadata,
                6: text(f"meshbus version {SCHEMA_VERSION}"),
                7: sequence([struct({1: _NOTHING})] * len(_COLUMNS)),  # minimum and maximum use the order of the type
            }
        )
        return footer + len(footer).to_bytes(4, "little") + MAGIC


def warm_sealing() -> None:
    """Load every kernel that sealing needs, and pyarrow, so that no packet waits for them later."""
    rows = np.zeros(2, ROW)
    rows["header"]["counter"] = 0, 1  # so that differences are encoded too; the other columns are constant
    packed = pack_rows(rows)
    hashes_in(packed)
    ParquetFile(RecordInfo(0, 1)).group([Piece(packed, 0, 2)], {})
    if has_arrow():
        _described()


@cache
def _described() -> tuple[Value, Value]:
    """Return the schema and the key-value metadata of the footer."""
    schema = arrow_schema(PACKETS)
    metadata = {**schema.metadata, b"ARROW:schema": base64.b64encode(schema.serialize())}
    return (
        sequence([struct({4: text("schema"), 5: i32(len(_COLUMNS))}), *map(_element, PACKETS)]),
        sequence([struct({1: text(key), 2: text(value)}) for key, value in metadata.items()]),
    )


def _element(column: Column) -> Value:
    """Return the schema element of a column."""
    kind = _KINDS[column.type]
    fields = {1: i32(kind.physical), 3: i32(_OPTIONAL if column.nullable else _REQUIRED), 4: text(column.name)}
    if kind.converted is not None and kind.logical is not None:
        fields |= {6: i32(kind.converted), 10: kind.logical}
    return struct(fields)


def _chunk(pages: _Pages, at: int) -> Value:
    """Return the column chunk of pages that start at an offset in the file."""
    where = {9: i64(at + pages.data_at)}
    if pages.data_at:
        where[11] = i64(at)
    return struct({2: _NOWHERE, 3: struct({**pages.described, **where, 12: pages.bounds})})


def _pages(column: Column, runs: Runs, count: int, names: Mapping[int, str]) -> _Pages:
    if len(runs.starts) > 1 or runs.steps.item(0):
        return _encode_pages(column, runs, count, names)
    value, there = runs.values.item(), runs.valid.item()
    name = names[value % (1 << 64)] if column.type is ColumnType.STRING and there else ""
    return _constant(column.name, value, there, count, name)


@lru_cache(maxsize=512)
def _constant(name: str, value: int, there: bool, count: int, word: str) -> _Pages:
    """Return the pages of a column with one value; cached, because it is usually that of the last row group."""
    runs = Runs(np.zeros(1, np.int32), np.array([value], np.int64), np.array([there]), np.zeros(1, np.int64))
    return _encode_pages(_COLUMNS[name], runs, count, {value % (1 << 64): word})


def _encode_pages(column: Column, runs: Runs, count: int, names: Mapping[int, str]) -> _Pages:
    """Return the pages of a column with `count` rows."""
    lengths, values, steps, levels = runs.lengths(count), runs.values, runs.steps, b""
    if column.nullable:
        levels = hybrid(lengths, runs.valid.astype(np.int64), 1)
        # Definition levels, with their length in front, as data pages of version 1 have them.
        levels = len(levels).to_bytes(4, "little") + levels
        lengths, values, steps = lengths[runs.valid], values[runs.valid], steps[runs.valid]
    kind = _KINDS[column.type]
    encoded = _encoded(kind, lengths, values, steps, names)
    header = struct({1: i32(count), 2: i32(encoded.encoding), 3: i32(_RLE), 4: i32(_RLE)})
    parts = (*encoded.dictionary, *_page(_DATA_PAGE, levels + encoded.data, 5, header))
    encodings = dict.fromkeys((_RLE, _PLAIN, encoded.encoding) if encoded.dictionary else (_RLE, encoded.encoding))
    size = sum(map(len, parts))
    described = {
        1: i32(kind.physical),
        2: sequence([i32(encoding) for encoding in encodings]),
        3: sequence([text(column.name)]),
        4: i32(_UNCOMPRESSED),
        5: i64(count),
        6: i64(size),
        7: i64(size),
    }
    bounds = struct({3: i64(count - int(lengths.sum())), **encoded.bounds})
    return _Pages(parts, size, sum(map(len, encoded.dictionary)), described, bounds)


def _encoded(kind: _Kind, lengths: Numbers, values: Numbers, steps: Numbers, names: Mapping[int, str]) -> _Encoded:
    """Encode the values that are not null in the form that takes the least space."""
    count = int(lengths.sum())
    if not count:
        return _Encoded(_PLAIN, b"", (), {})
    # Text is always a dictionary: its values are indices into the names.
    most = count if kind.physical == _BYTE_ARRAY else max(count // _WORTH, 1)
    indexed = None if steps.any() else index(values, most)
    if indexed is None:
        ends = np.concatenate([values, values + steps * (lengths - 1)])
        return _Encoded(_DELTA, delta(lengths, values, steps, kind.bits), (), _bounds(*_ends(ends, kind)))
    different, places = indexed
    # Bits of the highest index, at least one.
    width = max(len(different) - 1, 1).bit_length()
    data = bytes([width]) + hybrid(lengths, places, width)
    if kind.physical == _BYTE_ARRAY:
        words = [names[number].encode() for number in different.view(np.uint64).tolist()]
        content, bounds = (
            b"".join(len(word).to_bytes(4, "little") + word for word in words),
            _bounds(max(words), min(words)),
        )
    else:
        content, bounds = different.astype(f"<i{kind.bits // 8}").tobytes(), _bounds(*_ends(different, kind))
    header = struct({1: i32(len(different)), 2: i32(_PLAIN)})
    return _Encoded(_DICTIONARY, data, _page(_DICTIONARY_PAGE, content, 7, header), bounds)


def _ends(values: Numbers, kind: _Kind) -> Iterator[bytes]:
    for number in (values.max(), values.min()):
        yield number.item().to_bytes(kind.bits // 8, "little", signed=True)


def _bounds(highest: bytes, lowest: bytes) -> dict[int, Value]:
    return {5: text(highest), 6: text(lowest)}


def _page(kind: int, content: bytes, field: int, header: Value) -> tuple[bytes, bytes]:
    size, checksum = i32(len(content)), zlib.crc32(content)
    # Thrift has no unsigned numbers, so the CRC is stored as a signed 32-bit one.
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    return struct({1: i32(kind), 2: size, 3: size, 4: i32(signed), field: header})[1], content
