"""Files are counted as their rows are, however they are divided, and wherever they are counted."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from meshbus.log.schema import EVENTS, arrow_schema
from meshbus.spark.lake import countfiles
from meshbus.spark.lake.countfiles import Share, Sum, count_here, count_share, count_there, shares_of
from meshbus.spark.lake.counts import CountTable
from tests.spark.counted import BY_NAME

NAMES = ("silver.event_counts", "silver.receipt_counts", "silver.latency_counts")
START = datetime(2026, 11, 15, 23, 59, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9


def write(path: Path, rows: int = 1_000, *, groups: int = 7) -> Path:
    """A file of a log, in several row groups: an event each 100 ms, each a microsecond longer on the way."""
    schema = arrow_schema(EVENTS)
    made = [
        {
            "channel": "a", "seq": seq, "log_id": b"L" * 16, "origin": seq % 3, "recorder": 9, "session_id": 1,
            "recv_ts": START + timedelta(milliseconds=100 * seq), "recv_ts_ns": START_NS + 10**8 * seq,
            "ts_ns": START_NS + 10**8 * seq - 1_000 * seq, "src": 0, "dst": 0, "payload": b"x" * (seq % 5),
        }
        for seq in range(rows)
    ]  # fmt: skip
    table = pa.Table.from_pylist(made, pa.schema([field.with_nullable(True) for field in schema]))
    pq.write_table(table, path, row_group_size=-(-rows // groups), write_page_checksum=True, compression="none")
    return path


def totals(parts: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The counts of all shares, by count table, in an order of their own."""
    found = {}
    for name in NAMES:
        total = Sum(BY_NAME[name])
        for part in parts:
            total.add(part[name])
        found[name] = sorted(total.total().to_pylist(), key=repr)
    return found


def test_a_file_is_counted_as_its_rows_are(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet")
    found = totals([count_share(Share(str(path), NAMES, 0, 7))])
    minutes = [sum(row["events"] for row in found[NAMES[0]] if row["window_start"].minute == at) for at in (59, 0)]
    assert minutes == [600, 400]
    assert sum(row["bytes"] for row in found[NAMES[0]]) == 200 * (0 + 1 + 2 + 3 + 4)
    assert [(row["origin"], row["rows"]) for row in found[NAMES[1]] if row["hour"] == "2026-11-16T00"] == [
        (0, 134), (1, 133), (2, 133)
    ]  # fmt: skip
    assert {row["latency_us"]: row["rows"] for row in found[NAMES[2]]} == {float(us): 1 for us in range(1_000)}


def test_shares_hold_every_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.parquet")
    assert shares_of(str(path), NAMES) == [Share(str(path), NAMES, 0, 7)]
    monkeypatch.setattr(countfiles, "_SHARE_ROWS", 250)
    shares = shares_of(str(path), NAMES)
    assert [(share.first, share.end) for share in shares] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert totals(count_here(shares, 3)) == totals([count_share(Share(str(path), NAMES, 0, 7))])


def test_little_is_held_at_a_time_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.parquet")
    share = Share(str(path), NAMES, 0, 7)
    whole = totals([count_share(share)])
    monkeypatch.setattr(countfiles, "_BATCH_BYTES", 100)
    monkeypatch.setattr(countfiles, "_MERGE_ROWS", 10)
    sizes: list[int] = []
    compute = CountTable.compute

    def noted(self: CountTable, rows: pa.Table) -> pa.Table:
        sizes.append(len(rows))
        return compute(self, rows)

    monkeypatch.setattr(CountTable, "compute", noted)
    share = share._replace(names=NAMES[:1])
    found = count_share(share)
    assert sum(sizes) == 1_000
    assert max(sizes) < 10
    assert sorted(found[NAMES[0]].to_pylist(), key=repr) == whole[NAMES[0]]


def test_a_file_without_rows_has_no_counts(tmp_path: Path) -> None:
    pq.write_table(arrow_schema(EVENTS).empty_table(), tmp_path / "rows.parquet")
    (counts,) = [count_share(Share(str(tmp_path / "rows.parquet"), NAMES[:1], 0, 0))[NAMES[0]]]
    assert len(counts) == 0
    assert counts.schema.equals(BY_NAME[NAMES[0]].schema)


def test_a_changed_bit_is_not_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet")
    column = next(
        one
        for place in range(25)
        if (one := pq.read_metadata(path).row_group(0).column(place)).path_in_schema == "ts_ns"
    )
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="checksum"):
        count_share(Share(str(path), NAMES, 0, 7))


def test_executors_count_what_this_process_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(countfiles, "_SHARE_ROWS", 250)
    paths = [write(tmp_path / f"{rows}.parquet", rows) for rows in (1_000, 10)]
    shares = [share for path in paths for share in shares_of(str(path), NAMES)]
    here, there = count_here(shares, 1), count_there(spark, shares)
    assert len(there) == len(shares)
    for one, other in zip(here, there, strict=True):
        assert {name: counts.to_pylist() for name, counts in one.items()} == {
            name: counts.to_pylist() for name, counts in other.items()
        }
        assert all(other[name].schema.equals(counts.schema) for name, counts in one.items())
