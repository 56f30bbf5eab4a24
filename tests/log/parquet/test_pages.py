"""Pages and footers: pyarrow and DuckDB read every column as it was given, and skip row groups by their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbus.log.parquet.pages import MAGIC, ZSTD, Footer, bytes_chunk, column_pages, data_page, null_map_pages
from meshbus.log.parquet.runs import Runs, one_run
from meshbus.log.schema import Column, ColumnType, Table

DUCKDB = duckdb.connect()
ID = bytes(range(16))
NUMBERS = {
    "small": ColumnType.SMALLINT,
    "middle": ColumnType.INT,
    "large": ColumnType.BIGINT,
    "moment": ColumnType.TIMESTAMP,
}
BITS = {"small": 15, "middle": 31, "large": 63, "moment": 52}
WIDE = {name: st.integers(-(1 << bits), (1 << bits) - 1) for name, bits in BITS.items()}
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=30)


def write(path: Path, columns: Sequence[Column], groups: list[dict[str, tuple[Runs, int]]], words: Any = None) -> None:
    """Write a file with these columns."""
    footer, parts = Footer(Table("test", "A table of a test.", tuple(columns))), [MAGIC]
    for group in groups:
        pages = [column_pages(column, *group[column.name], *([words] if words else [])) for column in columns]
        parts += [part for each in pages for part in each.parts]
        footer.add([each.chunk for each in pages], next(iter(group.values()))[1])
    path.write_bytes(b"".join([*parts, footer.encode()]))


def runs_of(lengths: list[int], values: list[int | None], steps: list[int]) -> Runs:
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
    valid = np.array([value is not None for value in values])
    return Runs(starts, np.array([value or 0 for value in values]), valid, np.array(steps))


def rows_of(lengths: list[int], values: list[int | None], steps: list[int]) -> list[int | None]:
    return [
        None if value is None else value + row * step
        for length, value, step in zip(lengths, values, steps, strict=True)
        for row in range(length)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.sampled_from(sorted(NUMBERS)), LENGTHS, st.booleans(), st.booleans(), st.data())
def test_numbers_of_any_type_are_read_as_they_were_given(
    tmp_path: Path, name: str, lengths: list[int], nullable: bool, counting: bool, data: st.DataObject
) -> None:
    some = st.sampled_from([0, 1, 2]) if data.draw(st.booleans()) else WIDE[name]
    cell = st.one_of(st.none(), some) if nullable else some
    values = data.draw(st.lists(cell, min_size=len(lengths), max_size=len(lengths)))
    high = (1 << BITS[name]) - 1
    # A run that counts stays within its type.
    steps = [
        int(counting and value is not None and value + length <= high)
        for value, length in zip(values, lengths, strict=True)
    ]
    path, column = tmp_path / "a.parquet", Column(name, NUMBERS[name], "A number.", nullable=nullable)
    write(path, [column], [{name: (runs_of(lengths, values, steps), sum(lengths))}])
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        found, statistics = file.read()[name], file.metadata.row_group(0).column(0).statistics
    expected = rows_of(lengths, values, steps)
    assert found.cast(pa.int64()).to_pylist() == expected
    there = [value for value in expected if value is not None]
    assert statistics.null_count == len(expected) - len(there)
    assert statistics.has_min_max == bool(there)
    if there:
        assert (statistics.min_raw, statistics.max_raw) == (min(there), max(there))
    picked = f"epoch_us({name})" if name == "moment" else name
    assert DUCKDB.execute(f"SELECT {picked} FROM '{path}'").fetchall() == [(value,) for value in expected]


def test_text_and_ids_are_dictionaries_of_their_words(tmp_path: Path) -> None:
    columns = [Column("name", ColumnType.STRING, "Text.", nullable=True), Column("id", ColumnType.BINARY_16, "An id.")]
    words = {3: "grün".encode(), 9: b"red", 1: ID, 2: ID[::-1]}
    names = runs_of([2, 1, 3], [3, None, 9], [0, 0, 0])
    ids = runs_of([1, 4, 1], [2, 1, 2], [0, 0, 0])
    write(tmp_path / "a.parquet", columns, [{"name": (names, 6), "id": (ids, 6)}], words.__getitem__)
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["name"].to_pylist() == ["grün", "grün", None, "red", "red", "red"]
    assert table["id"].to_pylist() == [ID[::-1], *[ID] * 4, ID[::-1]]
    statistics = [pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(place).statistics for place in (0, 1)]
    assert [(each.min, each.max) for each in statistics] == [("grün", "red"), (ID, ID[::-1])]


def test_row_groups_are_skipped_by_their_bounds(tmp_path: Path) -> None:
    column = Column("large", ColumnType.BIGINT, "A number.")
    groups = [{"large": (one_run(first, step=1), 1000)} for first in (0, 1000, 2000)]
    write(tmp_path / "a.parquet", [column], groups)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    bounds = [metadata.row_group(group).column(0).statistics for group in range(3)]
    assert [(each.min, each.max) for each in bounds] == [(0, 999), (1000, 1999), (2000, 2999)]
    assert pq.read_table(tmp_path / "a.parquet", filters=[("large", "=", 1500)]).num_rows == 1


@pytest.mark.parametrize("compressed", [False, True])
def test_bytes_may_have_several_pages_and_a_codec(tmp_path: Path, compressed: bool) -> None:
    column, codec = Column("data", ColumnType.BINARY, "Bytes."), pa.Codec("zstd")
    words = [[b"one", b""], [b"three" * 100]]
    parts, raw = [MAGIC], 0
    for page in words:
        content = b"".join(len(word).to_bytes(4, "little") + word for word in page)
        stored = codec.compress(content, asbytes=True) if compressed else content
        header = data_page(stored, len(page), len(content))
        parts += [header, stored]
        raw += len(header) + len(content)
    footer = Footer(Table("test", "A table of a test.", (column,)))
    size = sum(map(len, parts)) - len(MAGIC)
    footer.add([bytes_chunk(column, 3, size, raw=raw, codec=ZSTD if compressed else 0)], 3)
    (tmp_path / "a.parquet").write_bytes(b"".join([*parts, footer.encode()]))
    with pq.ParquetFile(tmp_path / "a.parquet", page_checksum_verification=True) as file:
        assert file.read()["data"].to_pylist() == [b"one", b"", b"three" * 100]
        described = file.metadata.row_group(0).column(0)
    assert (described.compression, described.total_uncompressed_size) == ("ZSTD" if compressed else "UNCOMPRESSED", raw)
    assert DUCKDB.execute(f"SELECT sum(octet_length(data)) FROM '{tmp_path}/a.parquet'").fetchall() == [(503,)]


@pytest.mark.parametrize("count", [1, 8, 1000])
def test_a_map_that_is_null_in_all_rows(tmp_path: Path, count: int) -> None:
    columns = [Column("large", ColumnType.BIGINT, "A number."), Column("more", ColumnType.MAP, "A map.", nullable=True)]
    footer = Footer(Table("test", "A table of a test.", tuple(columns)))
    pages = [column_pages(columns[0], one_run(5), count), *null_map_pages(columns[1], count)]
    footer.add([each.chunk for each in pages], count)
    (tmp_path / "a.parquet").write_bytes(
        b"".join([MAGIC, *(part for each in pages for part in each.parts), footer.encode()])
    )
    with pq.ParquetFile(tmp_path / "a.parquet", page_checksum_verification=True) as file:
        assert file.read().to_pylist() == [{"large": 5, "more": None}] * count
        leaves = [file.metadata.row_group(0).column(place) for place in (1, 2)]
    assert [leaf.path_in_schema for leaf in leaves] == ["more.key_value.key", "more.key_value.value"]
    assert [leaf.statistics.null_count for leaf in leaves] == [count, count]
    assert DUCKDB.execute(f"SELECT * FROM '{tmp_path}/a.parquet'").fetchall() == [(5, None)] * count
