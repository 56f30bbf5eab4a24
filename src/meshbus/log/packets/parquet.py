"""Sealed files: Parquet that any reader of Parquet understands, written from runs (log/packets/runs.py).

    "PAR1"                       per row group and column a dictionary page, where there is one, and one data page
    pages
    footer                       the schema, the row groups with what each column has at least and at most
    length of the footer u32
    "PAR1"

Written here rather than by pyarrow, which looks at every value of every column, where nearly all of them are the same as
the one before: that took a fifth of the time of a forwarder. The types are those that pyarrow gives the same schema, which
is in the footer, too, as pyarrow leaves it there. Every page has a checksum. The numbers of fields are Parquet's.
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
from meshbus.log.packets.runs import Piece, Runs, Whose, runs_of
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
"""Where the description of a column is written once more: it is not."""
_WORTH = 8
"""Numbers of which one in so many is different are no dictionary: their differences take less."""


class _Kind(NamedTuple):
    """How Parquet has the values of a column."""

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
    """Where the data page begins; 0 when there is no dictionary before it."""
    described: dict[int, Value]
    """What is told about them, but for where they are."""
    bounds: Value


class _Encoded(NamedTuple):
    """The values of a column of a row group."""

    encoding: int
    data: bytes
    dictionary: tuple[bytes, ...]
    """The page before, if there is one."""
    bounds: dict[int, Value]
    """What is at most and at least in it."""


class ParquetFile:
    """One file as it is made: the bytes of each part in order, for whoever writes them."""

    def __init__(self, whose: Whose) -> None:
        self._whose = whose
        self._size = len(MAGIC)
        self._rows = 0
        self._groups: list[Value] = []

    def group(self, pieces: Sequence[Piece], names: Mapping[int, str]) -> bytes:
        """Give a row group of some rows; `names` has their channels by canonical hash."""
        count = sum(piece.last - piece.first for piece in pieces)
        columns = runs_of(pieces, self._whose, tuple(_COLUMNS))
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
        """Give what ends the file, which has a row group at least."""
        elements, told = _described()
        _, footer = struct(
            {
                1: i32(_VERSION),
                2: elements,
                3: i64(self._rows),
                4: sequence(self._groups),
                5: told,
                6: text(f"meshbus version {SCHEMA_VERSION}"),
                7: sequence([struct({1: _NOTHING})] * len(_COLUMNS)),  # at least and at most go by the type
            }
        )
        return footer + len(footer).to_bytes(4, "little") + MAGIC


def warm_sealing() -> None:
    """Load every kernel that rows need after they were filled, and pyarrow, so that no packet waits for them later."""
    rows = np.zeros(2, ROW)
    rows["header"]["counter"] = 0, 1  # by their difference; all else stays the same
    packed = pack_rows(rows)
    hashes_in(packed)
    ParquetFile(Whose(0, 1)).group([Piece(packed, 0, 2)], {})
    if has_arrow():
        _described()


@cache
def _described() -> tuple[Value, Value]:
    """Describe the table: its columns, and what is told beside them."""
    schema = arrow_schema(PACKETS)
    told = {**schema.metadata, b"ARROW:schema": base64.b64encode(schema.serialize())}
    return (
        sequence([struct({4: text("schema"), 5: i32(len(_COLUMNS))}), *map(_element, PACKETS)]),
        sequence([struct({1: text(key), 2: text(value)}) for key, value in told.items()]),
    )


def _element(column: Column) -> Value:
    """Describe a column for the schema."""
    kind = _KINDS[column.type]
    fields = {1: i32(kind.physical), 3: i32(_OPTIONAL if column.nullable else _REQUIRED), 4: text(column.name)}
    if kind.converted is not None and kind.logical is not None:
        fields |= {6: i32(kind.converted), 10: kind.logical}
    return struct(fields)


def _chunk(pages: _Pages, at: int) -> Value:
    """Describe the pages of a column, which begin at a place in the file."""
    where = {9: i64(at + pages.data_at)}
    if pages.data_at:
        where[11] = i64(at)
    return struct({2: _NOWHERE, 3: struct({**pages.described, **where, 12: pages.bounds})})


def _pages(column: Column, runs: Runs, count: int, names: Mapping[int, str]) -> _Pages:
    if len(runs.starts) > 1 or runs.steps.item(0):
        return _made(column, runs, count, names)
    value, there = runs.values.item(), runs.valid.item()
    name = names[value % (1 << 64)] if column.type is ColumnType.STRING and there else ""
    return _constant(column.name, value, there, count, name)


@lru_cache(maxsize=512)
def _constant(name: str, value: int, there: bool, count: int, word: str) -> _Pages:
    """Make the pages of a column that has one value, which is mostly the one that it had in the row group before."""
    runs = Runs(np.zeros(1, np.int32), np.array([value], np.int64), np.array([there]), np.zeros(1, np.int64))
    return _made(_COLUMNS[name], runs, count, {value % (1 << 64): word})


def _made(column: Column, runs: Runs, count: int, names: Mapping[int, str]) -> _Pages:
    """Make the pages of a column of so many rows."""
    lengths, values, steps, levels = runs.lengths(count), runs.values, runs.steps, b""
    if column.nullable:
        levels = hybrid(lengths, runs.valid.astype(np.int64), 1)
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
    """Encode the values that are not null as what takes least."""
    count = int(lengths.sum())
    if not count:
        return _Encoded(_PLAIN, b"", (), {})
    most = count if kind.physical == _BYTE_ARRAY else max(count // _WORTH, 1)
    indexed = None if steps.any() else index(values, most)
    if indexed is None:
        ends = np.concatenate([values, values + steps * (lengths - 1)])
        return _Encoded(_DELTA, delta(lengths, values, steps, kind.bits), (), _bounds(*_ends(ends, kind)))
    different, places = indexed
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
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    return struct({1: i32(kind), 2: size, 3: size, 4: i32(signed), field: header})[1], content
