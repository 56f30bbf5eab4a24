"""Nothing is lost and nothing doubled: driver and Java are killed while a writer appends, seals and compacts."""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from meshbus.log.durability import LogConfig
from meshbus.log.log import Redex
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.spark.lake.tables import tables
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.runner import run
from tests.children import child
from tests.house.tree import ROOT
from tests.spark.killing import config_of, start_copy
from tests.spark.packets import numbered_headers
from tests.spark.world import rows_of_logs

CHANNELS = 3
RECORDER = 7


def write(folder: Path, events: int, shares: int, wanted: threading.Semaphore) -> None:
    """Append to three channels, sealing and compacting on the way, and record packets, sealing too.

    Write one share whenever it is wanted, so that the next process to be killed has something to read.
    """
    each, step = events // CHANNELS, 500
    share = each // shares // step * step
    recorder = PacketRecorder(folder / "log", RECORDER, background=False)
    with Redex(folder / "log", background=False) as redex:
        logs = [redex.open(f"load/{number}", LogConfig(seal_bytes=1 << 20)) for number in range(CHANNELS)]
        for first in range(0, each, step):
            if first % share == 0:
                wanted.acquire()
            recorder.take(numbered_headers(first, step), np.zeros(1, np.uint8), ts_ns=time.time_ns(), here=True)
            recorder.drain()
            if first // step % 11 == 10:
                recorder.seal()
            for log in logs:
                log.append_batch([b"%d" % number for number in range(first, first + step)])
                if first // step % 7 == 6:
                    log.seal()
                if first // step % 23 == 22:
                    log.compact()
            time.sleep(0.02)
    recorder.close()


def kill_some(folder: Path, kills: int, rng: random.Random, wanted: threading.Semaphore) -> int:
    """Kill the pipeline and its Java at random moments, the last time within a batch; return how often it was within one."""
    torn = 0
    for last in [False] * (kills - 1) + [True]:
        wanted.release()
        command = [sys.executable, "-m", "tests.spark.killing", str(folder)]
        with child(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "'batch'" in line:
                    break
            time.sleep(rng.uniform(0.0, 6.0))
            if last and not torn:
                wanted.release()  # it may have read everything: give it a batch to be killed in
                until = time.monotonic() + 60
                while not under_way(folder) and time.monotonic() < until:
                    time.sleep(0.001)
        torn += under_way(folder)
    return torn


def under_way(folder: Path) -> bool:
    """Return whether a batch of events was begun and not committed."""
    planned = [int(path.stem) for path in (folder / "tables" / "_batches" / "events").glob("[0-9]*.json")]
    return max(planned, default=-1) > Store(folder / "tables").table("silver.events").last("events")


def columns_of(folder: Path, name: str, *columns: str) -> list[list[Any]]:
    """Read some columns of a table as it lies on the disk, without Spark."""
    tables = [pq.ParquetFile(file).read(columns=list(columns)) for file in Store(folder / "tables").paths(name)]
    return [[value for table in tables for value in table[column].to_pylist()] for column in columns]


def check(spark: SparkSession, folder: Path, events: int, *, kills: int, seed: int) -> None:
    wanted = threading.Semaphore(0)
    writer = threading.Thread(target=write, args=(folder, events, kills + 2, wanted))
    (folder / "log").mkdir()
    writer.start()
    try:
        torn = kill_some(folder, kills, random.Random(seed), wanted)
    finally:
        wanted.release(kills + 3)  # a rest of the division is a share of its own
        writer.join()
    assert torn > 0, "no kill met a batch: nothing was tested"
    run(spark, config_of(folder), once=True)
    start_copy(spark, folder, availableNow=True).awaitTermination()
    expected = {(f"load/{number}", seq) for number in range(CHANNELS) for seq in range(events // CHANNELS)}
    for name in ("bronze.events", "silver.events"):
        rows = Counter(zip(*columns_of(folder, name, "channel", "seq"), strict=True))
        assert len(rows) == rows.total(), f"{name}: {rows.total() - len(rows)} doubled"
        assert set(rows) == expected, f"{name}: {len(expected - set(rows))} lost"
    for name in ("bronze.packets", "silver.decisions"):
        (numbers,) = columns_of(folder, name, "packet_seq")
        assert sorted(numbers) == list(range(events // CHANNELS)), name
    found = tables(spark, folder / "tables")
    counted = found["gold.channel_stats"].groupBy().sum("events").collect()[0][0]
    assert counted == len(expected)
    for row in found["gold.gaps"].collect():
        assert (row["events"], row["missing"], row["duplicates"]) == (events // CHANNELS, 0, 0)
    copied = [row["payload"] for row in rows_of_logs(folder / "copies")]
    assert copied == [b"%d" % number for number in range(events // CHANNELS)]


@pytest.mark.slow
def test_killed_twice(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, 90_000, kills=2, seed=1)


@pytest.mark.soak
def test_killed_twenty_times(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, 900_000, kills=20, seed=2)
