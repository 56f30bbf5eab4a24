"""The runner: one at a time, restarts within limits, stops on request, and names what is wrong."""

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from meshbus.errors import LogError, MeshError, PipelineError, PipelineFault
from meshbus.log.consumers import lags, list_consumers
from meshbus.log.log import Redex
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.spark.lake.tables import tables
from meshbus.spark.run.control import status, stop
from meshbus.spark.run.eventwriter import EventWriter
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.refresh import Refresher
from meshbus.spark.run.runner import run
from tests.spark.packets import numbered_headers
from tests.spark.world import World, rows_of_logs


def make_log(root: Path, count: int = 10) -> None:
    with Redex(root, background=False) as redex:
        redex.open("a").append_batch([b"x"] * count)


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    make_log(tmp_path / "log")
    return PipelineConfig(
        tables=str(tmp_path / "tables"), logs=(str(tmp_path / "log"),), trigger_s=0.1, refresh_s=0.2, restarts=2
    )


def test_the_world_was_read_in_capped_batches_and_told(world: World) -> None:
    batches = [line for line in world.lines if "batch" in line]
    assert {line["query"] for line in batches} == {"events", "events_1", "packets", "packets_1"}
    assert max(line["rows"] for line in batches) <= world.config.max_rows_per_batch
    assert sum(line["files"] for line in world.lines if line["query"] == "counts") > 0
    found = status(world.tables)
    assert found["state"] == "stopped"
    assert {query["state"] for query in found["queries"]} == {"done"}
    written = [msgspec.json.decode(line) for line in (world.tables / "_progress.ndjson").read_bytes().splitlines()]
    assert written[: len(world.lines)] == json.loads(json.dumps(world.lines))


def test_the_committed_offset_is_published_beside_the_logs(world: World) -> None:
    log = Path(world.config.logs[0])
    (published,) = [one for one in list_consumers(log) if one.consumer == f"events of {world.tables}"]
    counts: dict[str, int] = {}
    for row in rows_of_logs(log):
        counts[row["channel"]] = counts.get(row["channel"], 0) + 1
    assert published.next == counts


def test_a_second_run_reads_only_what_is_new(spark: SparkSession, config: PipelineConfig) -> None:
    run(spark, config, once=True)
    make_log(Path(config.logs[0]), 3)
    found = run(spark, config, once=True)
    assert found["queries"][0]["rows"] == 3
    assert tables(spark, config.tables)["silver.events"].count() == 13


def test_two_pipelines_over_one_log_do_not_know_of_each_other(
    spark: SparkSession, config: PipelineConfig, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(config, tables=str(tmp_path / "other"), format="delta", max_rows_per_batch=4)
    log = Path(config.logs[0])
    run(spark, config, once=True)
    make_log(log, 3)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: run(spark, one, once=True), (config, other)))
    make_log(log, 2)
    run(spark, other, once=True)
    assert lags(list_consumers(log), "a", 15) == {f"events of {config.tables}": 2, f"events of {other.tables}": 0}
    for one, expected in ((config, 13), (other, 15)):
        found = tables(spark, one.tables)
        assert sorted(row["seq"] for row in found["silver.events"].collect()) == list(range(expected))
        assert found["gold.channel_stats"].groupBy().sum("events").collect()[0][0] == expected


def test_tables_whose_plans_are_gone_are_not_filled_again(spark: SparkSession, config: PipelineConfig) -> None:
    run(spark, config, once=True)
    plans = Path(config.tables) / "_batches" / "events"
    shutil.move(plans, plans.with_name("elsewhere"))
    with pytest.raises(
        PipelineError, match=r"has no plans in .*_batches/events, but its tables have batches of it"
    ) as caught:
        run(spark, config, once=True)
    assert caught.value.fault is PipelineFault.BAD_CHECKPOINT
    shutil.move(plans.with_name("elsewhere"), plans)
    run(spark, config, once=True)
    assert tables(spark, config.tables)["silver.events"].count() == 10


def test_a_continuous_run_follows_restarts_and_stops_when_told(
    spark: SparkSession, config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, failures = EventWriter.write, [RuntimeError("the disk hiccuped")]

    def flaky(self: EventWriter, batch: int, taken: Any) -> None:
        if failures:
            raise failures.pop()
        take(self, batch, taken)

    monkeypatch.setattr(EventWriter, "write", flaky)
    make_gold, troubles = Refresher._replace, [RuntimeError("a file went away")]

    def troubled(self: Refresher, *arguments: Any) -> None:
        if troubles:
            raise troubles.pop()
        make_gold(self, *arguments)

    monkeypatch.setattr(Refresher, "_replace", troubled)
    ended: list[Any] = []
    lines: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: ended.append(run(spark, config, on_progress=lines.append)))
    thread.start()
    wait_for(lambda: any(line.get("query") == "gold" and "hours" in line for line in lines))
    problems = [(line["query"], line["problem"]) for line in lines if "problem" in line]
    assert sorted(problems) == [("events", "the disk hiccuped"), ("gold", "a file went away")]
    with pytest.raises(PipelineError, match="a pipeline is already running"):
        run(spark, config, once=True)
    assert status(config.tables)["state"] == "running"
    make_log(Path(config.logs[0]), 5)
    wait_for(lambda: sum(line.get("rows", 0) for line in lines) == 15)
    assert stop(config.tables)
    thread.join(30)
    (found,) = ended
    assert found["queries"][0]["restarts"] == 1
    assert "the disk hiccuped" in found["queries"][0]["problem"]
    assert tables(spark, config.tables)["gold.channel_stats"].groupBy().sum("events").collect()[0][0] == 15
    assert not stop(config.tables)


def wait_for(condition: Any) -> None:
    for _ in range(1_200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen")


def test_a_query_that_keeps_failing_ends_the_run_with_its_sentence(
    spark: SparkSession, config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: EventWriter, batch: int, taken: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(EventWriter, "write", broken)
    once = msgspec.structs.replace(config, restarts=1)
    with pytest.raises(PipelineError, match=r"query events: .*the disk is full"):
        run(spark, once, once=True)
    found = status(config.tables)
    assert found["state"] == "failed"
    assert found["queries"][0]["restarts"] == 1


def test_gold_that_keeps_failing_ends_the_run_with_its_sentence(
    spark: SparkSession, config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Refresher, since: str) -> dict[str, int]:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(Refresher, "refresh", broken)
    with pytest.raises(PipelineError, match="gold: the disk is full"):
        run(spark, config, once=True)
    assert status(config.tables)["state"] == "failed"


@pytest.mark.parametrize(
    ("change", "kind", "problem"),
    [
        ({"logs": ("/none/log",)}, LogError, "/none/log is not a directory of logs"),
        ({"logs": ()}, PipelineError, "no logs to read"),
        ({"tables": "/proc/none"}, PipelineError, "cannot write to /proc/none"),
    ],
)
def test_bad_input_is_one_sentence(
    spark: SparkSession, config: PipelineConfig, change: dict[str, Any], kind: type[MeshError], problem: str
) -> None:
    with pytest.raises(kind, match=problem):
        run(spark, msgspec.structs.replace(config, **change), once=True)


def test_what_cannot_be_read_is_named_and_nothing_is_lost_once_it_can(
    spark: SparkSession, config: PipelineConfig, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(config, restarts=1)  # a busy machine may need one
    log_dir = tmp_path / "log"
    recorder = PacketRecorder(log_dir, 7, background=False)
    recorder.take(numbered_headers(0, 4), np.zeros(1, np.uint8), ts_ns=0, here=True)
    recorder.seal()
    recorder.close()
    (packets,) = (log_dir / "_packets").rglob("*.parquet")
    good = packets.read_bytes()
    packets.write_bytes(good[:-200] + bytes(200))
    with pytest.raises(PipelineError, match=rf"query packets: .*{packets.name}.* is damaged"):
        run(spark, config, once=True)
    packets.write_bytes(good)
    with Redex(log_dir, background=False) as redex:  # the first ten may have been read meanwhile
        redex.open("a").seal()
        redex.open("a").append_batch([b"x"] * 5)
        redex.open("a").seal()
    *_, events = sorted(log_dir.glob("a-*/*.parquet"))
    good = events.read_bytes()
    pq.write_table(pq.read_table(events).replace_schema_metadata({"meshbus.schema_version": "99"}), events)
    with pytest.raises(
        PipelineError, match=rf"query events: .*{events.name}: sealed segment, version 99, .*newer meshbus"
    ):
        run(spark, config, once=True)
    events.write_bytes(good)
    run(spark, config, once=True)
    found = tables(spark, config.tables)
    assert (found["silver.events"].count(), found["silver.decisions"].count()) == (15, 4)


def test_hours_that_have_expired_are_removed_and_not_computed_again(
    spark: SparkSession, config: PipelineConfig, tmp_path: Path
) -> None:
    hour = 3_600 * 10**9
    now = time.time_ns()
    with Redex(tmp_path / "log", background=False) as redex:
        log = redex.open("b")
        for old in (72, 1):
            log.append_batch([b"x"] * 3, recv_ts_ns=[now - old * hour] * 3)
            log.seal()
    kept = msgspec.structs.replace(config, keep_days=2.0, compact_batches=2)
    for _ in range(2):
        run(spark, kept, once=True)
        make_log(tmp_path / "log", 1)
    found = tables(spark, config.tables)
    oldest = f"{datetime.fromtimestamp(now / 1e9, UTC) - timedelta(days=2):%Y-%m-%dT%H}"
    for name in ("bronze.events", "silver.events", "gold.channel_stats", "gold.top_talkers"):
        hours = {row["hour"] for row in found[name].select("hour").distinct().collect()}
        assert hours, name
        assert min(hours) >= oldest, name


def test_a_progress_file_that_cannot_be_written_ends_no_run(spark: SparkSession, config: PipelineConfig) -> None:
    (Path(config.tables) / "_progress.ndjson").mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    assert run(spark, config, once=True, on_progress=lines.append)["state"] == "stopped"
    assert sum(line.get("rows", 0) for line in lines) == 10
