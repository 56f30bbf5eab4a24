"""Small files are read once while they are part of a table, and forgotten with it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import smallfiles
from meshbus.spark.run.smallfiles import SmallFiles

START = datetime(2026, 11, 15, tzinfo=UTC)
COUNTS, CENSUS, RUNS = "silver.event_counts", "bronze.census", "silver.runs"


def test_hours_are_those_of_the_rows(tmp_path: Path) -> None:
    files = SmallFiles(Store(tmp_path))
    counts, census, runs = (str(tmp_path / name) for name in ("counts.parquet", "census.parquet", "runs.parquet"))
    pq.write_table(pa.table({"hour": ["2026-11-15T03", "2026-11-15T01", "2026-11-15T03"]}), counts)
    times = pa.array([START + timedelta(minutes=90), START + timedelta(minutes=61)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"ts": times}), census)
    pq.write_table(pa.table({"first": [1]}), runs)
    assert files.hours(COUNTS, counts) == ("2026-11-15T01", "2026-11-15T03")
    assert files.hours(CENSUS, census) == ("2026-11-15T01",)
    assert files.hours(RUNS, runs) == ()
    assert files.rows(CENSUS, census)["hour"].to_pylist() == ["2026-11-15T01"] * 2
    assert files.rows(RUNS, runs)["first"].to_pylist() == [1]


@pytest.mark.parametrize("most", [1 << 20, 0], ids=["small", "large"])
def test_a_file_is_read_once_if_it_is_small_and_forgotten_when_it_is_gone(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smallfiles, "HELD_BYTES", most)
    files = SmallFiles(Store(tmp_path))
    paths = [str(tmp_path / f"{number}.parquet") for number in range(3)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"hour": ["2026-11-15T03"], "events": [number]}), path)
        assert files.rows(COUNTS, path)["events"].to_pylist() == [number]
    Path(paths[0]).unlink()
    assert files.hours(COUNTS, paths[0]) == ("2026-11-15T03",)
    if most:
        assert files.rows(COUNTS, paths[0])["events"].to_pylist() == [0]
    else:
        with pytest.raises(FileNotFoundError):
            files.rows(COUNTS, paths[0])
    files.prune(CENSUS, [])
    assert len(files) == 3, "files of another table"
    files.prune(COUNTS, paths[1:])
    assert len(files) == 2
