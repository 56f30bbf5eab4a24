"""Pages and footers of Parquet files, written from runs (log/parquet/runs.py).

    "PAR1"                       per row group and column: a dictionary page, if there is one, and data pages
    pages
    footer                       the schema, and the row groups with the minimum and maximum of each column
    length of the footer u32
    "PAR1"

Not written with pyarrow, which processes every value of every column although nearly all equal the one before: that took
a fifth of a forwarder's time. The types are those that pyarrow gives the same schema, and the footer contains that schema
as pyarrow would write it. Every page has a checksum. Field numbers are those of Parquet's Thrift definitions.

Packets are written with this by log/packets/parquet.py and events by log/embedded/sealing.py.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from meshbus.log.parquet.checksum import crc32
from meshbus.log.parquet.encoding import delta, hybrid, index
from meshbus.log.parquet.runs import Runs, one_run
from meshbus.log.parquet.thrift import TRUE, Value, byte, i32, i64, sequence, struct, text
from meshbus.log.schema import SCHEMA_VERSION, Column, ColumnType, Table, arrow_schema

if TYPE_CHECKING:
    from meshbus.log.parquet.encoding import Numbers

MAGIC = b"PAR1"
PLAIN, RLE, _DELTA, _DICTIONARY = 0, 3, 5, 8
UNCOMPRESSED, ZSTD = 0, 6
_VERSION = 2
_INT32, _INT64, _BYTE_ARRAY, _FIXED_BYTES = 1, 2, 6, 7
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_MAP = 1
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_NOTHING = struct({})
_NOWHERE = i64(0)
"""Offset of the separate copy of a column's metadata: there is none."""
_WORTH = 8
"""If more than one in this many values is distinct, differences take less space than a dictionary."""

Words: TypeAlias = "Callable[[int], bytes]"
"""Returns the text or bytes that a number in the runs of a column stands for."""


class _Kind(NamedTuple):
    """How Parquet stores the values of a column."""

    physical: int
    bits: int = 0
    """Of numbers; 0 for text and bytes."""
    converted: int | None = None
    logical: Value | None = None
    length: int = 0
    """Of bytes of fixed length."""


_TEXT = _Kind(_BYTE_ARRAY, converted=0, logical=struct({1: _NOTHING}))
_KINDS = {
    ColumnType.BIGINT: _Kind(_INT64, 64),
    ColumnType.INT: _Kind(_INT32, 32),
    ColumnType.SMALLINT: _Kind(_INT32, 32, 16, struct({10: struct({1: byte(16), 2: TRUE})})),
    ColumnType.TIMESTAMP: _Kind(
        _INT64, 64, 10, struct({8: struct({1: TRUE, 2: struct({2: _NOTHING})})})
    ),  # microseconds in UTC
    ColumnType.STRING: _TEXT,
    ColumnType.BINARY: _Kind(_BYTE_ARRAY),
    ColumnType.BINARY_16: _Kind(_FIXED_BYTES, length=16),
}


class Chunk(NamedTuple):
    """The pages of one column of a row group, as the footer describes them."""

    size: int
    raw: int
    """Size before compression."""
    data_at: int
    """Offset of the first data page; 0 if there is no dictionary page before it."""
    described: dict[int, Value]
    """The metadata of the column, except the offsets of its pages."""
    bounds: Value


class Pages(NamedTuple):
    """The pages of one column of a row group, and their description."""

    parts: tuple[bytes, ...]
    chunk: Chunk


class _Encoded(NamedTuple):
    """The encoded values of one column of a row group."""

    encoding: int
    data: bytes
    dictionary: tuple[bytes, ...]
    """The dictionary page, if there is one."""
    bounds: dict[int, Value]
    """The maximum and the minimum."""


class Footer:
    """Collects the row groups of one file; the caller writes their pages one after the other, after MAGIC."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._size = len(MAGIC)
        self._rows = 0
        self._groups: list[Value] = []

    def add(self, chunks: Sequence[Chunk], count: int) -> None:
        """Add a row group of `count` rows, with the chunks of all columns in order."""
        columns = []
        for chunk in chunks:
            where = {9: i64(self._size + chunk.data_at)}
            if chunk.data_at:
                where[11] = i64(self._size)
            columns.append(struct({2: _NOWHERE, 3: struct({**chunk.described, **where, 12: chunk.bounds})}))
            self._size += chunk.size
        self._rows += count
        raw = sum(chunk.raw for chunk in chunks)
        self._groups.append(struct({1: sequence(columns), 2: i64(raw), 3: i64(count)}))

    def encode(self) -> bytes:
        """Return the end of the file, which must have at least one row group."""
        described = describe(self._table)
        _, footer = struct(
            {
                1: i32(_VERSION),
                2: described.elements,
                3: i64(self._rows),
                4: sequence(self._groups),
                5: described.metadata,
                6: text(f"meshbus version {SCHEMA_VERSION}"),
                7: described.orders,
            }
        )
        return footer + len(footer).to_bytes(4, "little") + MAGIC


class _Described(NamedTuple):
    """The parts of a footer that are the same in all files of a table."""

    elements: Value
    metadata: Value
    orders: Value


@cache
def describe(table: Table) -> _Described:
    """Return the parts of the footer that depend only on the table; needs pyarrow."""
    schema = arrow_schema(table)
    metadata = {**schema.metadata, b"ARROW:schema": base64.b64encode(schema.serialize())}
    elements = [element for column in table for element in _elements(column)]
    # A map has two columns of values.
    leaves = len(table.columns) + sum(column.type is ColumnType.MAP for column in table)
    return _Described(
        sequence([struct({4: text("schema"), 5: i32(len(table.columns))}), *elements]),
        sequence([struct({1: text(key), 2: text(value)}) for key, value in metadata.items()]),
        sequence([struct({1: _NOTHING})] * leaves),  # minimum and maximum use the order of the type
    )


def _elements(column: Column) -> list[Value]:
    """Return the schema elements of a column."""
    presence = _OPTIONAL if column.nullable else _REQUIRED
    if column.type is not ColumnType.MAP:
        return [_element(_KINDS[column.type], presence, column.name)]
    whole = {3: i32(presence), 4: text(column.name), 5: i32(1), 6: i32(_MAP), 10: struct({2: _NOTHING})}
    return [
        struct(whole),
        struct({3: i32(_REPEATED), 4: text("key_value"), 5: i32(2)}),
        _element(_TEXT, _REQUIRED, "key"),
        _element(_KINDS[ColumnType.BINARY], _OPTIONAL, "value"),
    ]


def _element(kind: _Kind, presence: int, name: str) -> Value:
    fields = {1: i32(kind.physical)}
    if kind.length:
        fields[2] = i32(kind.length)
    fields |= {3: i32(presence), 4: text(name)}
    if kind.converted is not None and kind.logical is not None:
        fields |= {6: i32(kind.converted), 10: kind.logical}
    return struct(fields)


def no_words(_number: int) -> bytes:
    """Return nothing; the words of a column of numbers."""
    return b""


def column_pages(column: Column, runs: Runs, count: int, words: Words = no_words) -> Pages:
    """Return the pages of a column with `count` rows."""
    if len(runs.starts) > 1 or runs.steps.item(0):
        return _encode_pages(column, runs, count, words)
    value, there = runs.values.item(), runs.valid.item()
    return _constant(column, value, there, count, words(value) if there else b"")


@lru_cache(maxsize=512)
def _constant(column: Column, value: int, there: bool, count: int, word: bytes) -> Pages:
    """Return the pages of a column with one value; cached, because it is usually that of the last row group."""
    return _encode_pages(column, one_run(value, valid=there), count, lambda _: word)


def _encode_pages(column: Column, runs: Runs, count: int, words: Words) -> Pages:
    lengths, values, steps, levels = runs.lengths(count), runs.values, runs.steps, b""
    if column.nullable:
        levels = _levels(hybrid(lengths, runs.valid.astype(np.int64), 1))
        lengths, values, steps = lengths[runs.valid], values[runs.valid], steps[runs.valid]
    kind = _KINDS[column.type]
    encoded = _encoded(kind, lengths, values, steps, words)
    content = levels + encoded.data
    parts = (*encoded.dictionary, data_page(content, count, len(content), encoded.encoding), content)
    encodings = dict.fromkeys((RLE, PLAIN, encoded.encoding) if encoded.dictionary else (RLE, encoded.encoding))
    size = sum(map(len, parts))
    described = _metadata(kind.physical, encodings, (column.name,), count, size)
    bounds = struct({3: i64(count - int(lengths.sum())), **encoded.bounds})
    return Pages(parts, Chunk(size, size, sum(map(len, encoded.dictionary)), described, bounds))


@lru_cache(maxsize=64)
def null_map_pages(column: Column, count: int) -> tuple[Pages, Pages]:
    """Return the pages of the keys and of the values of a map that is null in all rows."""
    zeros = np.array([count]), np.zeros(1, np.int64)
    # Repetition levels and definition levels: nothing is repeated, and the map itself is not there.
    content = _levels(hybrid(*zeros, 1)) + _levels(hybrid(*zeros, 2))
    parts = (data_page(content, count, len(content), PLAIN), content)
    size, bounds = sum(map(len, parts)), struct({3: i64(count)})
    keys, values = (
        Chunk(
            size, size, 0, _metadata(_BYTE_ARRAY, (RLE, PLAIN), (column.name, "key_value", leaf), count, size), bounds
        )
        for leaf in ("key", "value")
    )
    return Pages(parts, keys), Pages(parts, values)


def bytes_chunk(column: Column, count: int, size: int, *, raw: int, codec: int) -> Chunk:
    """Describe pages of plain bytes without nulls, which have `size` bytes, and `raw` bytes before compression."""
    described = _metadata(_BYTE_ARRAY, (RLE, PLAIN), (column.name,), count, size, raw=raw, codec=codec)
    # No minimum and maximum: nobody searches payloads by their order, and finding them would take time.
    return Chunk(size, raw, 0, described, struct({3: i64(0)}))


def data_page(content: Any, count: int, raw: int, encoding: int = PLAIN) -> bytes:
    """Return the header of a data page with `count` rows; `raw` is the size of the content before compression."""
    return _page_header(
        _DATA_PAGE, content, raw, 5, struct({1: i32(count), 2: i32(encoding), 3: i32(RLE), 4: i32(RLE)})
    )


def _metadata(
    physical: int,
    encodings: Iterable[int],
    path: Iterable[str],
    count: int,
    size: int,
    *,
    raw: int | None = None,
    codec: int = UNCOMPRESSED,
) -> dict[int, Value]:
    """Return the metadata of a column chunk, except the offsets of its pages."""
    return {
        1: i32(physical),
        2: sequence([i32(encoding) for encoding in encodings]),
        3: sequence([text(name) for name in path]),
        4: i32(codec),
        5: i64(count),
        6: i64(size if raw is None else raw),
        7: i64(size),
    }


def _levels(runs: bytes) -> bytes:
    """Return levels with their length in front, as data pages of version 1 have them."""
    return len(runs).to_bytes(4, "little") + runs


def _encoded(kind: _Kind, lengths: Numbers, values: Numbers, steps: Numbers, words: Words) -> _Encoded:
    """Encode the values that are not null in the form that takes the least space."""
    count = int(lengths.sum())
    if not count:
        return _Encoded(PLAIN, b"", (), {})
    # Text is always a dictionary: its values are indices into the words.
    most = max(count // _WORTH, 1) if kind.bits else count
    indexed = None if steps.any() else index(values, most)
    if indexed is None:
        ends = np.concatenate([values, values + steps * (lengths - 1)])
        return _Encoded(_DELTA, delta(lengths, values, steps, kind.bits), (), _bounds(*_ends(ends, kind)))
    different, places = indexed
    # Bits of the highest index, at least one.
    width = max(len(different) - 1, 1).bit_length()
    data = bytes([width]) + hybrid(lengths, places, width)
    if kind.bits:
        content, bounds = different.astype(f"<i{kind.bits // 8}").tobytes(), _bounds(*_ends(different, kind))
    else:
        found = [words(number) for number in different.tolist()]
        content, bounds = b"".join(_prefixed(word, kind) for word in found), _bounds(max(found), min(found))
    header = struct({1: i32(len(different)), 2: i32(PLAIN)})
    dictionary = _page_header(_DICTIONARY_PAGE, content, len(content), 7, header), content
    return _Encoded(_DICTIONARY, data, dictionary, bounds)


def _prefixed(word: bytes, kind: _Kind) -> bytes:
    return word if kind.length else len(word).to_bytes(4, "little") + word


def _ends(values: Numbers, kind: _Kind) -> Iterator[bytes]:
    for number in (values.max(), values.min()):
        yield number.item().to_bytes(kind.bits // 8, "little", signed=True)


def _bounds(highest: bytes, lowest: bytes) -> dict[int, Value]:
    return {5: text(highest), 6: text(lowest)}


def _page_header(kind: int, content: Any, raw: int, field: int, header: Value) -> bytes:
    checksum = crc32(content)
    # Thrift has no unsigned numbers, so the CRC is stored as a signed 32-bit one.
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    return struct({1: i32(kind), 2: i32(raw), 3: i32(len(content)), 4: i32(signed), field: header})[1]
