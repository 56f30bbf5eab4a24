"""Nothing is lost and nothing doubled: driver, Java and workers are killed while a writer appends, seals and compacts."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from meshbus.log.durability import LogConfig
from meshbus.log.log import Redex
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.spark.lake.tables import tables
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.control import status
from meshbus.spark.run.runner import run
from tests.children import child
from tests.house.tree import ROOT
from tests.patience import PATIENCE_S
from tests.spark.killing import config_of, payload_of, start_copy
from tests.spark.packets import numbered_headers
from tests.spark.readers import rows_by_library
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
            for channel, log in enumerate(logs):
                log.append_batch([payload_of(channel, number) for number in range(first, first + step)])
                if first // step % 7 == 6:
                    log.seal()
                if first // step % 23 == 22:
                    log.compact()
            time.sleep(0.02)
    recorder.close()


def kill_some(folder: Path, kind: str, victims: Sequence[str], rng: random.Random, wanted: threading.Semaphore) -> int:
    """Kill parts of the pipeline at random moments, the last within a batch; return how many kills were within one."""
    torn = 0
    for number, victim in enumerate(victims, 1):
        wanted.release()
        command = [sys.executable, "-m", "tests.spark.killing", str(folder), kind]
        with child(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            wait_for_batch(process)
            time.sleep(rng.uniform(0.0, 3.0))
            if victim == "worker":
                wanted.release()
                kill_part(process.pid, "pyspark.daemon")
                wait_for_batch(process)  # it goes on by itself
            if number == len(victims) and not torn:
                wanted.release()  # it may have read everything: give it a batch to be killed in
                until = time.monotonic() + PATIENCE_S
                while not under_way(folder) and time.monotonic() < until:
                    time.sleep(0.001)
            if victim == "java":
                kill_part(process.pid, "java")
                assert process.wait(timeout=300) != 0
        torn += under_way(folder)
    return torn


def wait_for_batch(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "'batch'" in line:
            return
    raise AssertionError("the pipeline ended by itself")


def kill_part(driver: int, name: str) -> None:
    """Kill the processes with a name that a driver, or its Java, has started; waits until there is one."""
    while not (found := [pid for pid, command in below(driver) if name in command]):
        time.sleep(0.05)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def below(parent: int) -> Iterator[tuple[int, str]]:
    """Yield the number and the command of each process that a process has started, and those of theirs."""
    lines = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,command="], text=True).splitlines()
    processes = [(int(pid), int(ppid), command) for pid, ppid, command in (line.split(None, 2) for line in lines)]
    parents = {parent}
    while new := {pid for pid, ppid, _ in processes if ppid in parents} - parents:
        parents |= new
    yield from ((pid, command) for pid, _, command in processes if pid in parents - {parent})


def under_way(folder: Path) -> bool:
    """Return whether a batch of events was begun and not committed."""
    planned = [int(path.stem) for path in (folder / "tables" / "_batches" / "events").glob("[0-9]*.json")]
    return max(planned, default=-1) > Store(folder / "tables").table("silver.events").last("events")


def columns_of(folder: Path, kind: str, name: str, *columns: str) -> list[list[Any]]:
    """Read some columns of a table with the library of its format, without Spark."""
    rows = rows_by_library(kind, folder / "tables" / name.replace(".", "/"), columns)
    return [rows[column].to_pylist() for column in columns]


class Watcher(threading.Thread):
    """Reads silver.events with the library of its format all the time, and notes rows that it sees twice."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(daemon=True)
        self._folder, self._kind = folder, kind
        self._ended = threading.Event()
        self.looks = 0
        self.doubled: list[int] = []
        self.problem: Exception | None = None

    def run(self) -> None:
        while not self._ended.wait(0.5):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - shown by `end`, in the test's thread
                self.problem = error
                return

    def _look(self) -> None:
        if (self._folder / "tables" / "_tables.json").exists() and self._created():
            rows = Counter(zip(*columns_of(self._folder, self._kind, "silver.events", "channel", "seq"), strict=True))
            self.looks += bool(rows)
            self.doubled.append(rows.total() - len(rows))

    def _created(self) -> bool:
        marks = {"delta": "_delta_log/*.json", "iceberg": "metadata/version-hint.text"}
        return any((self._folder / "tables" / "silver" / "events").glob(marks[self._kind]))

    def end(self) -> None:
        self._ended.set()
        self.join()
        assert self.problem is None, repr(self.problem)
        assert self.looks, "the table was never read while it changed"
        assert not any(self.doubled), f"a reader saw rows twice: {self.doubled}"


@contextmanager
def watched(folder: Path, kind: str) -> Iterator[None]:
    """Read a table while the block changes it, if its format has transactions."""
    watcher = Watcher(folder, kind) if kind != "parquet" else None
    if watcher is not None:
        watcher.start()
    yield
    if watcher is not None:
        watcher.end()


def check(spark: SparkSession, folder: Path, kind: str, events: int, victims: Sequence[str], *, seed: int) -> None:
    wanted = threading.Semaphore(0)
    writer = threading.Thread(target=write, args=(folder, events, len(victims) + 2, wanted))
    (folder / "log").mkdir()
    writer.start()
    try:
        with watched(folder, kind):
            torn = kill_some(folder, kind, victims, random.Random(seed), wanted)
    finally:
        wanted.release(3 * len(victims) + 3)  # a rest of the division is a share of its own
        writer.join()
    assert torn > 0, "no kill met a batch: nothing was tested"
    run(spark, config_of(folder, kind), once=True)
    start_copy(spark, folder, availableNow=True).awaitTermination()
    each = events // CHANNELS
    expected = {(f"load/{number}", seq): payload_of(number, seq) for number in range(CHANNELS) for seq in range(each)}
    for name in ("bronze.events", "silver.events"):
        channels, numbers, payloads = columns_of(folder, kind, name, "channel", "seq", "payload")
        rows = dict(zip(zip(channels, numbers, strict=True), payloads, strict=True))
        assert len(rows) == len(numbers), f"{name}: {len(numbers) - len(rows)} doubled"
        assert rows == expected, f"{name}: {len(expected.keys() - rows.keys())} lost"
    channels, numbers, values = columns_of(folder, kind, "silver.events", "channel", "seq", "value")
    for channel, number, value in zip(channels, numbers, values, strict=True):
        assert value == (None if channel == "load/0" else str(number))
    for name in ("bronze.packets", "silver.decisions"):
        (numbers,) = columns_of(folder, kind, name, "packet_seq")
        assert sorted(numbers) == list(range(each)), name
    found = tables(spark, folder / "tables")
    counted = found["gold.channel_stats"].groupBy().sum("events").collect()[0][0]
    assert counted == len(expected)
    for row in found["gold.gaps"].collect():
        assert (row["events"], row["missing"], row["duplicates"]) == (each, 0, 0)
    copied = [row["payload"] for row in rows_of_logs(folder / "copies")]
    assert copied == [payload_of(0, number) for number in range(each)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "victim"), [("parquet", "driver"), ("delta", "worker"), ("iceberg", "java")])
def test_killed_once_in_each_format(spark: SparkSession, tmp_path: Path, kind: str, victim: str) -> None:
    check(spark, tmp_path, kind, 60_000, [victim], seed=1)


@pytest.mark.slow
def test_a_pipeline_that_has_nothing_to_do_notices_that_java_is_gone(tmp_path: Path) -> None:
    wanted = threading.Semaphore(3)
    (tmp_path / "log").mkdir()
    write(tmp_path, 3_000, 1, wanted)
    command = [sys.executable, "-m", "tests.spark.killing", str(tmp_path), "parquet"]
    with child(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_batch(process)
        while status(tmp_path / "tables")["doing"] != "waiting for new rows":
            time.sleep(0.05)
        kill_part(process.pid, "java")
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Java, in which Spark runs, has ended" in errors
    assert status(tmp_path / "tables")["state"] == "failed"


@pytest.mark.soak
@pytest.mark.parametrize("run", range(5))
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_killed_twenty_times_in_five_runs(spark: SparkSession, tmp_path: Path, kind: str, run: int) -> None:
    check(spark, tmp_path, kind, 180_000, ["driver", "java", "worker", "driver"], seed=2 + run)
