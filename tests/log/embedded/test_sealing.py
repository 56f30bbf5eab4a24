"""Sealing: other programs find in a segment exactly the events that were appended, and can skip what they do not need."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log import segment as segments
from meshbus.log.embedded import sealing
from meshbus.log.schema import EVENTS, arrow_schema
from tests.log.making import NOW, in_files, numbered, open_log, payloads, writer_of
from tests.log.varied import table_rows, varied_appends, write_all
from tests.seeds import for_each_seed

TIMES = ("ts", "recv_ts")


def plain(table: Any) -> list[dict[str, Any]]:
    """The rows of a table, with timestamps as microseconds."""
    for name in TIMES:
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def the_segment(root: Path) -> Path:
    (path,) = root.glob("*/*.parquet")
    return path


def sealed(root: Path, seed: int) -> list[dict[str, Any]]:
    """Seal appends of every form; return the rows that must be in the segment."""
    appends = varied_appends(seed, 12)
    with open_log(root) as log:
        write_all(log, appends)
        log.seal()
        return table_rows(appends, in_files(log).log_id)


def in_groups_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_FEWEST", rows)
    monkeypatch.setattr(segments, "_MOST", rows)


@for_each_seed(range(12))
def test_pyarrow_and_duckdb_find_every_cell_that_was_appended(
    seed: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("log")
    in_groups_of(70, monkeypatch)
    expected = sealed(root, seed)
    with pq.ParquetFile(the_segment(root), page_checksum_verification=True) as file:
        found = file.read()
    found.validate(full=True)
    assert plain(found) == [{name: row[name] for name in found.column_names} for row in expected]
    names = [name for name in found.column_names if name != "headers"]
    picked = ", ".join(f"epoch_us({name})" if name in TIMES else name for name in names)
    rows = duckdb.connect().execute(f"SELECT {picked} FROM '{the_segment(root)}' ORDER BY seq").fetchall()
    assert rows == [tuple(row[name] for name in names) for row in expected]


@for_each_seed(range(4))
def test_each_row_group_has_the_minimum_the_maximum_and_the_nulls_of_its_columns(
    seed: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("log")
    in_groups_of(50, monkeypatch)
    expected = sealed(root, seed)
    metadata = pq.read_metadata(the_segment(root))
    assert metadata.num_row_groups == -(-len(expected) // 50)
    for group in range(metadata.num_row_groups):
        rows = expected[group * 50 : (group + 1) * 50]
        assert metadata.row_group(group).num_rows == len(rows)
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            name = column.path_in_schema.partition(".")[0]
            cells = [row[name] for row in rows if row[name] is not None]
            assert column.statistics.null_count == len(rows) - len(cells), name
            assert column.statistics.has_min_max == (bool(cells) and name != "payload"), name
            if column.statistics.has_min_max:
                # `_raw`: as stored, because timestamps are compared as numbers here.
                bounds = column.statistics.min_raw, column.statistics.max_raw
                wanted = min(cells), max(cells)
                assert bounds == tuple(cell.encode() if isinstance(cell, str) else cell for cell in wanted), name


def test_the_types_are_those_that_pyarrow_gives_the_schema(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        log.seal()
    other = tmp_path / "other"
    pq.write_table(arrow_schema(EVENTS).empty_table(), other)
    assert pq.read_schema(the_segment(tmp_path)).equals(pq.read_schema(other), check_metadata=True)
    ours, theirs = pq.read_metadata(the_segment(tmp_path)), pq.read_metadata(other)
    assert ours.schema.equals(theirs.schema)
    assert ours.metadata == theirs.metadata
    assert str(ours.schema).split("\n", 1)[1] == str(theirs.schema).split("\n", 1)[1]


def test_every_page_of_every_column_has_a_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_PAGE", 1_000)  # so that the payloads have several pages
    events = [np.random.default_rng(number).bytes(300) for number in range(20)]
    with open_log(tmp_path) as log:
        log.append_batch(events, ts_ns=np.arange(20) ** 3)
        log.seal()
    whole, group = the_segment(tmp_path).read_bytes(), pq.read_metadata(the_segment(tmp_path)).row_group(0)
    places = [whole.index(event) for event in events]
    for column in map(group.column, range(group.num_columns)):
        begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        places.append(begin + column.total_compressed_size - 1)
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(OSError, match="CRC"):
            pq.ParquetFile(pa.BufferReader(bytes(changed)), page_checksum_verification=True).read()


def codec_of(root: Path) -> str:
    group = pq.read_metadata(the_segment(root)).row_group(0)
    columns = (group.column(place) for place in range(group.num_columns))
    return str(next(column.compression for column in columns if column.path_in_schema == "payload"))


@pytest.mark.parametrize(
    ("events", "codec"),
    [
        pytest.param([b'{"speed": %d, "gear": "third"}' % number for number in range(2_000)], "ZSTD", id="text"),
        pytest.param([np.random.default_rng(n).bytes(64) for n in range(2_000)], "UNCOMPRESSED", id="noise"),
        pytest.param([b""], "UNCOMPRESSED", id="empty"),
    ],
)
def test_payloads_are_compressed_if_that_saves_enough(tmp_path: Path, events: list[bytes], codec: str) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(events)
        log.seal()
        assert codec_of(tmp_path) == codec
        assert payloads(log.read_range(0, len(events))) == events
        size = the_segment(tmp_path).stat().st_size
    group = pq.read_metadata(the_segment(tmp_path)).row_group(0)
    sizes = [group.column(place).total_uncompressed_size for place in range(group.num_columns)]
    assert group.total_byte_size == sum(sizes) > sum(map(len, events))
    assert size < (0.5 if codec == "ZSTD" else 1.1) * sum(map(len, events)) + 20_000


@pytest.mark.parametrize("size", [3_000, 70_000])
def test_payloads_larger_than_a_page_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(sealing, "_PAGE", 1_000)
    events = [b"small", np.random.default_rng(0).bytes(size), b"", b"small again" * 20, bytes(size)]
    with open_log(tmp_path) as log:
        log.append_batch(events)
        log.seal()
        assert payloads(log.read_range(0, len(events))) == events
    assert pq.read_table(the_segment(tmp_path))["payload"].to_pylist() == events


def test_events_with_headers_are_sealed_too(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch([b"a", b"b"], headers={"trace": b"1"})
        log.append_batch([b"c", b"d"], headers=[None, {"trace": b"2", "more": b""}])
        log.append(b"e")
        log.seal()
        assert [event.payload for event in log.read_range(0, 5)] == [b"a", b"b", b"c", b"d", b"e"]
    found = pq.read_table(the_segment(tmp_path))["headers"].to_pylist()
    one = [("trace", b"1")]
    assert found == [one, one, None, [("trace", b"2"), ("more", b"")], None]


def test_without_compiled_loops_the_same_rows_are_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBUS_JIT", "0")
    expected = sealed(tmp_path, seed=5)
    found = pq.read_table(the_segment(tmp_path))
    assert plain(found) == [{name: row[name] for name in found.column_names} for row in expected]
    assert "parquet-cpp" in pq.read_metadata(the_segment(tmp_path)).created_by


def test_single_appends_are_sealed_as_one_column_each(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for event in numbered(0, 300):
            log.append(event, origin=7)
        log.seal()
        assert payloads(log.read_range(0, 300)) == numbered(0, 300)
    table = pq.read_table(the_segment(tmp_path))
    assert table["payload"].to_pylist() == numbered(0, 300)
    assert table["pub_seq"].to_pylist() == list(range(300))
    assert set(table["ts_ns"].to_pylist()) == {NOW}
    # 24 columns of 300 rows, and a kilobyte of payloads: what repeats takes no space.
    assert pq.read_metadata(the_segment(tmp_path)).row_group(0).total_byte_size < 6_000


def test_appends_and_readers_stay_exact_while_a_thread_seals(tmp_path: Path) -> None:
    events = numbered(0, 6_000)
    with open_log(tmp_path) as log:
        done = threading.Event()

        def seal_until_done() -> None:
            while not done.is_set():
                log.seal()

        thread = threading.Thread(target=seal_until_done)
        thread.start()
        try:
            for first in range(0, 6_000, 20):
                log.append_batch(events[first : first + 20])
                if first % 1_000 == 0:
                    assert payloads(log.read_range(0, first + 20)) == events[: first + 20]
        finally:
            done.set()
            thread.join()
        log.seal()
        assert log.stats.seals > 1
        assert payloads(log.read_range(0, 6_000)) == events
        assert log.verify() == []


def test_a_damaged_hot_file_is_not_sealed_and_the_error_names_the_block(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 5))
        log.append_batch(numbered(5, 5))
        (view,) = in_files(log).hot
        content = bytearray(view.path.read_bytes())
        at = view.place_of(1)
        content[at + 44] ^= 1  # the number of payload bytes
        view.path.write_bytes(content)
        with pytest.raises(
            LogError, match=rf"{view.path.name}: the block at offset {at} is damaged: .* restore"
        ) as caught:
            log.seal()
        assert caught.value.fault is LogFault.CORRUPT
        assert not list(tmp_path.glob("*/*.parquet*"))
        assert writer_of(log).hot[0].path.exists()
