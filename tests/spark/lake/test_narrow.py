"""Filters match at least what is asked for, and are short whatever is asked for."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.narrow import MOST_RANGES, Scan, near_steps
from tests.spark.counted import rows_of, scanned

ID = pc.field("id")


def numbers(end: int) -> pa.Table:
    return pa.table({"id": range(-5, end)})


def test_ranges_match_their_numbers_and_join_where_they_touch() -> None:
    for starts in ([20], [20, 30], [30, 20, 60], [0, 10, 25]):
        asked = {number for start in starts for number in range(start, start + 10)}
        assert set(numbers(100).filter(near_steps(ID, starts, 10))["id"].to_pylist()) == asked
    assert len(numbers(100).filter(near_steps(ID, [], 10))) == 0
    assert str(near_steps(ID, range(0, 600, 60), 60)).count(">=") == 1


def test_too_many_ranges_become_one_that_has_all() -> None:
    starts = [number * 100 for number in range(MOST_RANGES + 1)]
    random.Random(1).shuffle(starts)
    found = near_steps(ID, starts, 10)
    assert str(found).count(">=") == 1
    assert len(numbers(100 * len(starts)).filter(found)) == 100 * MOST_RANGES + 10


def test_files_of_earlier_versions_lack_columns_and_those_of_logs_have_dictionaries(tmp_path: Path) -> None:
    old, sealed = tmp_path / "old.parquet", tmp_path / "sealed.parquet"
    pq.write_table(pa.table({"channel": ["a", "b"], "seq": [1, 2]}), old)
    pq.write_table(pa.table({"channel": pa.array(["a"]).dictionary_encode(), "seq": [3], "ts_ns": [9]}), sealed)
    scan = Scan(CATALOG["silver.events"], [str(old), str(sealed)])
    found = scan.rows(["seq", "ts_ns", "value"], pc.field("channel").isin(["a"])).to_pylist()
    assert found == [{"seq": 1, "ts_ns": None, "value": None}, {"seq": 3, "ts_ns": 9, "value": None}]


def test_a_changed_byte_is_an_error_and_not_another_row(tmp_path: Path) -> None:
    rows = rows_of("bronze.events", ({"channel": "a", "payload": b"%064d" % n} for n in range(1_000)))
    scan = scanned(tmp_path, "bronze.events", rows)
    place = tmp_path / "rows.parquet"
    pq.write_table(rows.drop_columns("hour"), place, compression="none", write_page_checksum=True, use_dictionary=False)
    held = bytearray(place.read_bytes())
    held[held.index(b"%064d" % 500)] ^= 1
    place.write_bytes(held)
    with pytest.raises(OSError, match=r"CRC|checksum"):
        scan.rows(["payload"], pc.field("channel") == "a")
