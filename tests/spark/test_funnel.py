"""The funnel benchmark with few events: every stage runs and is counted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench import bench_funnel
from bench.bench_funnel import CLAIMS, GOLD, ORDER, SILVER, ratio_lines, sealing_table, stage_table, stages
from bench.funnel import flow
from bench.funnel.bare import COPY, DUCK_COPY, jobs
from bench.funnel.flow import COUNTED, batch_cost, config_for, freshness, gold_events, slowest, source, through
from bench.funnel.load import Load, fill
from bench.funnel.verdicts import Line
from tests.children import child

ROOT = Path(__file__).parents[2]


def test_every_stage_has_a_rate_and_its_files_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    load = Load(700)
    rates = stages(spark, tmp_path, load)
    assert set(rates) == set(ORDER)
    assert all(rate > 0 for rate in rates.values())
    assert rates[SILVER] >= rates[GOLD]
    assert not list(tmp_path.iterdir())
    assert [row[0] for row in stage_table(load, rates).rows] == list(ORDER)
    lines = ratio_lines(load, rates)
    assert [line.bound for line in lines] == [least for kind, _, _, least, _ in CLAIMS if kind == "raw"]
    assert None not in {line.met for line in lines}


def test_sealing_is_compared_with_what_the_disk_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_funnel, "APPEND_PAIRS", 1)
    lines: list[Line] = []
    table = sealing_table(tmp_path, 300, lines)
    assert [row[0] for row in table.rows] == [64, 64, 1024, 1024]
    assert [(line.unit, line.bound) for line in lines] == [
        ("M rows/s", 3),
        ("M rows/s", 3),
        ("", 0.8),
        ("MB/s", 800),
        ("MB/s", 800),
        ("", 0.8),
    ]
    assert all(line.measured for line in lines)
    assert not list(tmp_path.iterdir())


def test_json_events_are_decoded_and_a_wrong_count_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    load = Load(300, json=True)
    filled = fill(tmp_path / "logs", load)
    wrong = jobs(spark, filled.paths, load.events + 1, tmp_path / "aside")
    for name in (COPY, DUCK_COPY):
        with pytest.raises(RuntimeError, match="rows of a copy: found 300, expected 301"):
            wrong[name]()
    config = config_for(tmp_path / "logs", tmp_path / "tables", load)
    spent = through(spark, config, load.events)
    assert 0 < spent.silver_s <= spent.gold_s
    assert gold_events(spark, config.tables) == load.events


def test_a_single_event_is_followed_into_gold(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "RESTED_S", 0.01)
    config = config_for(tmp_path / "logs", tmp_path / "tables", Load(1))
    with source(tmp_path / "logs") as events:
        cost = batch_cost(spark, config, events, 1)
        waits = freshness(spark, config, events, 1, warm=0)
        assert gold_events(spark, config.tables) == events.events == 1 + 1 + 1 + 1
        each, share = slowest(spark, config, events, 1)
        assert gold_events(spark, config.tables) == events.events == 4 + 1 + 2
    assert share >= 0
    assert COUNTED in each
    assert len(each) > 1
    assert all(seconds > 0 for seconds in each.values())
    assert cost.reported_ms > 0
    assert len(waits) == 1
    assert waits[0] > 0


@pytest.mark.soak
@pytest.mark.parametrize("options", [[], ["--slope"]], ids=["funnel", "slope"])
def test_the_benchmark_ends_by_itself(options: list[str]) -> None:
    command = [sys.executable, "-m", "bench", "funnel", "--quick", *options]
    with child(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        printed, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    wanted = "Cost per million raw rows" if options else "Committed lines"
    assert re.search(wanted, printed)
