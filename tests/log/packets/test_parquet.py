"""Sealed files: other readers find in them exactly what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.log.arrow import wanted
from meshbus.log.packets import packed, runs
from meshbus.log.packets.arrow import to_batch
from meshbus.log.packets.packed import pack_rows
from meshbus.log.packets.parquet import ParquetFile, warm_sealing
from meshbus.log.packets.runs import Piece, RecordInfo
from meshbus.log.parquet import encoding
from meshbus.log.schema import PACKETS, arrow_schema
from tests.log.packets.making import KINDS, NODE, traffic

WHOSE = RecordInfo(NODE, 3)
COUNTS = (1, 2, 7, 8, 9, 33, 127, 128, 129, 130, 1000, 2500)
CASES = [(kind, count) for kind in KINDS for count in COUNTS]


def sealed(path: Path, rows: Any, names: dict[int, str], *, group: int = 1 << 20) -> Any:
    """Write rows as a sealed file; return what must be in it."""
    pieces = [Piece(pack_rows(rows[at : at + 500]), 0, min(500, len(rows) - at)) for at in range(0, len(rows), 500)]
    step = group // 500
    file = ParquetFile(WHOSE)
    groups = [pieces[at : at + step] for at in range(0, len(pieces), step)]
    path.write_bytes(b"".join([*(file.group(each, names) for each in groups), file.footer()]))
    return pa.Table.from_batches([to_batch(each, names, WHOSE, wanted(table=PACKETS)) for each in groups])


@pytest.mark.parametrize(("kind", "count"), CASES)
def test_pyarrow_and_duckdb_read_what_was_recorded(tmp_path: Path, kind: str, count: int) -> None:
    path = tmp_path / "a.parquet"
    expected = sealed(path, *traffic(kind, count, seed=count))
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        found = file.read()
    assert found.schema.equals(arrow_schema(PACKETS), check_metadata=True)
    found.validate(full=True)
    rows = expected.to_pylist()
    assert found.to_pylist() == rows
    query = f"SELECT * REPLACE (epoch_us(ts) AS ts) FROM '{path}'"
    plain = [tuple(row.values()) for row in expected.set_column(1, "ts", expected["ts"].cast(pa.int64())).to_pylist()]
    assert duckdb.connect().execute(query).fetchall() == plain


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_group_has_the_minimum_and_maximum_of_its_columns(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.parquet"
    expected = sealed(path, *traffic(kind, 3300, seed=3), group=1000)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [1000, 1000, 1000, 300]
    assert pq.read_table(path).to_pylist() == expected.to_pylist()
    for group in range(metadata.num_row_groups):
        part = expected.slice(group * 1000, 1000)
        for place, name in enumerate(part.column_names):
            column, cells = (
                metadata.row_group(group).column(place),
                [cell for cell in part[name].to_pylist() if cell is not None],
            )
            assert column.path_in_schema == name
            assert column.statistics.null_count == part.num_rows - len(cells)
            assert column.statistics.has_min_max == bool(cells)
            if cells:
                assert (column.statistics.min, column.statistics.max) == (min(cells), max(cells)), name


def test_the_types_are_those_that_pyarrow_gives_the_schema(tmp_path: Path) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(sealed(path, *traffic("train", 10, seed=0)), other)
    ours, theirs = pq.read_metadata(path), pq.read_metadata(other)
    assert ours.schema.equals(theirs.schema)
    assert ours.metadata == theirs.metadata
    assert str(ours.schema).split("\n", 1)[1] == str(theirs.schema).split("\n", 1)[1]


def test_every_page_has_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sealed(path, *traffic("random", 100, seed=1))
    whole = path.read_bytes()
    metadata = pq.read_metadata(path)
    for place in range(metadata.num_columns):
        column = metadata.row_group(0).column(place)
        changed = bytearray(whole)
        begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        changed[begin + column.total_compressed_size - 1] ^= 1
        with pytest.raises(OSError, match="CRC"):
            pq.ParquetFile(pa.BufferReader(bytes(changed)), page_checksum_verification=True).read(
                columns=[column.path_in_schema]
            )


def test_warm_means_that_no_kernel_is_loaded_later() -> None:
    warm_sealing()
    kernels = (runs._gather, packed._walk, encoding._index, encoding._hybrid, encoding._delta)
    assert all(kernel.run != kernel._resolve for kernel in kernels)


def test_a_train_takes_a_byte_a_packet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sealed(path, *traffic("train", 65_500, seed=1))
    assert path.stat().st_size < 65_500
