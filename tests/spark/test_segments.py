"""Spark's own Parquet reader, vectorized, finds in sealed segments every cell that was appended, and skips row groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from meshbus.log import segment as segments
from tests.log.making import NOW, Clock, in_files, numbered, open_log
from tests.log.varied import table_rows, varied_appends, write_all

VECTORIZED = "spark.sql.parquet.enableVectorizedReader"


def as_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame, with timestamps as microseconds."""
    table = frame.orderBy("seq").toArrow()
    for name in ("ts", "recv_ts"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_the_vectorized_reader_finds_every_cell(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_FEWEST", 300)
    monkeypatch.setattr(segments, "_MOST", 300)
    appends = varied_appends(1, 120)
    with open_log(tmp_path) as log:
        for first in range(0, 120, 40):
            write_all(log, appends[first : first + 40])
            log.seal()
        expected = table_rows(appends, in_files(log).log_id)
        files = [str(segment.path) for segment in log.snapshot().segments]
    assert spark.conf.get(VECTORIZED) == "true"
    rows = as_rows(spark.read.parquet(*files))
    assert rows == [{name: row[name] for name in rows[0]} for row in expected]


def test_a_filter_by_time_reads_only_the_row_groups_that_can_match(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_FEWEST", 100)
    monkeypatch.setattr(segments, "_MOST", 100)
    clock = Clock()
    with open_log(tmp_path, clock=clock) as log:
        for first in range(0, 1000, 100):
            log.append_batch(numbered(first, 100))
            clock.forward(60)
        log.seal()
        (file,) = log.snapshot().segments
    begin = NOW // 1_000_000_000 + 5 * 60
    frame = spark.read.parquet(str(file.path)).where(f"recv_ts >= timestamp_seconds({begin})").select("seq")
    assert sorted(row.seq for row in frame.collect()) == list(range(500, 1000))
    plan = frame._jdf.queryExecution().executedPlan()
    read = [node.metrics().apply("numOutputRows").value() for node in scans(plan)]
    assert read == [500], "the five row groups before that minute are skipped"


def scans(plan: Any) -> list[Any]:
    """The scans of a plan that was executed."""
    leaves = plan.collectLeaves()
    return [leaves.apply(place) for place in range(leaves.size())]
