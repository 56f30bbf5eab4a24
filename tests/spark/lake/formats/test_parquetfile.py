"""Single files: bounds of time with and without statistics, rows outside a range, and joined and merged files."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats import parquetfile
from meshbus.spark.lake.formats.parquetfile import (
    conform,
    join,
    link,
    merge,
    read_sources,
    row_schema,
    time_bounds,
    write_outside,
)
from tests.spark.lake.formats.made import EVENTS, START, event, write_events

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    "options",
    [{}, {"row_group_size": 2}, {"write_statistics": False}, {"use_deprecated_int96_timestamps": True}],
    ids=["footer", "groups", "no-statistics", "int96"],
)
def test_the_bounds_of_time_are_found_in_any_file(options: dict[str, Any], tmp_path: Path) -> None:
    path = write_events(tmp_path, map(event, [5, 3, 9, 4, 8]), **options)
    assert time_bounds(path, "recv_ts") == (START + 3 * SECOND, START + 9 * SECOND)
    assert time_bounds(path, "ts") is None
    assert time_bounds(path, "window_start") is None


def test_a_file_without_rows_has_no_bounds(tmp_path: Path) -> None:
    assert time_bounds(write_events(tmp_path, []), "recv_ts") is None


@pytest.mark.parametrize("old", [False, True], ids=["micros", "int96"])
def test_rows_outside_a_range_are_kept_as_they_are(old: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"row_group_size": 3, "use_deprecated_int96_timestamps": old}
    path = write_events(tmp_path, map(event, range(10)), **options)
    out = tmp_path / "out"
    out.mkdir()
    write_outside(path, "recv_ts", START + 2 * SECOND, START + 8 * SECOND, out)
    (made,) = out.iterdir()
    wanted = [row for row in pq.read_table(path).to_pylist() if row["seq"] in {0, 1, 8, 9}]
    assert pq.read_table(made).to_pylist() == wanted
    assert pq.read_schema(made) == pq.read_schema(path)


def test_rows_without_time_are_outside_every_range(tmp_path: Path) -> None:
    path = write_events(tmp_path, [event(1) | {"ts": None}, event(2) | {"ts": START}])
    out = tmp_path / "out"
    out.mkdir()
    write_outside(path, "ts", START, START + SECOND, out)
    assert [row["seq"] for file in out.iterdir() for row in pq.read_table(file).to_pylist()] == [1]


def test_files_are_linked_or_else_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = write_events(tmp_path, [event(1)]), tmp_path / "out"
    out.mkdir()
    link(path, out)
    link(path, out)  # the name is taken
    assert {file.stat().st_ino for file in out.iterdir()} == {path.stat().st_ino}
    assert len(list(out.iterdir())) == 2

    def refuse(*given: object) -> None:
        raise OSError

    monkeypatch.setattr("os.link", refuse)
    link(path, out)
    assert [file.read_bytes() for file in out.iterdir()] == [path.read_bytes()] * 3


def test_joined_files_have_the_columns_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetfile, "_GROUP_BYTES", 1)  # a row group for each file
    first = write_events(tmp_path, [event(1)], name="first")
    other = pa.table({"seq": [2], "log_id": [b"y" * 16], "codec": ["json"], "left_over": [1]})
    pq.write_table(other, tmp_path / "second.parquet")
    out = tmp_path / "out"
    out.mkdir()
    join([first, tmp_path / "second.parquet"], row_schema(CATALOG[EVENTS]), out)
    (made,) = out.iterdir()
    assert pq.ParquetFile(made).num_row_groups == 2
    one, two = pq.read_table(made).to_pylist()
    assert {name: one[name] for name in event(1)} == event(1)
    assert one["codec"] is None
    assert (two["seq"], two["log_id"], two["codec"], two["channel"]) == (2, b"y" * 16, "json", None)
    assert pq.read_schema(made).names == [column.name for column in CATALOG[EVENTS]]


def test_joined_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write_events(tmp_path, [event(number)], name=f"f{number}") for number in range(5)]
    monkeypatch.setattr(parquetfile, "_FILE_BYTES", 2 * files[0].stat().st_size)
    out = tmp_path / "out"
    out.mkdir()
    join(files, row_schema(CATALOG[EVENTS]), out)
    assert sorted(pq.read_metadata(file).num_rows for file in out.iterdir()) == [1, 2, 2]


def test_merged_files_are_reduced_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write_events(tmp_path, [event(second)], name=f"{second}.parquet") for second in range(5)]
    monkeypatch.setattr(parquetfile, "_MERGED_BYTES", sum(file.stat().st_size for file in files[:2]))
    out = tmp_path / "out"
    out.mkdir()
    seen: list[int] = []

    def last(rows: pa.Table) -> pa.Table:
        seen.append(len(rows))
        return rows.slice(len(rows) - 1)

    merge(files, row_schema(CATALOG[EVENTS]), last, out)
    assert seen == [2, 2], "a file by itself is linked"
    held = [pq.read_table(file)["recv_ts"].to_pylist() for file in out.iterdir()]
    assert sorted(held) == [[START + second * SECOND] for second in (1, 3, 4)]


def test_a_file_without_a_fingerprint_has_an_empty_one(tmp_path: Path) -> None:
    assert read_sources(tmp_path / "none.parquet") == ""
    (tmp_path / "bad.parquet").write_bytes(b"bad")
    assert read_sources(tmp_path / "bad.parquet") == ""
    assert read_sources(write_events(tmp_path, [])) == ""


def test_a_file_with_other_types_is_written_once_more(tmp_path: Path) -> None:
    schema = row_schema(CATALOG[EVENTS])
    pq.write_table(pa.table({"seq": [1], "log_id": [b"y" * 16]}), tmp_path / "spark.parquet")
    pq.write_table(pa.table({"seq": [2], "codec": ["json"]}), tmp_path / "right.parquet")
    for file in sorted(tmp_path.iterdir()):
        conform(file, schema)
    assert (tmp_path / "right.parquet").exists()
    (made,) = [file for file in tmp_path.iterdir() if file.name != "right.parquet"]
    assert pq.read_schema(made).field("log_id").type == pa.binary(16)
    assert pq.read_table(made).column("log_id").to_pylist() == [b"y" * 16]
