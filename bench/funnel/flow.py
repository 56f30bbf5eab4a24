"""The pipeline measured: whole runs, the cost of one batch, and the time until one event is visible in gold.

The time of a run is divided by its lines of progress: the time before a line belongs to the query that the line is about.
What ends with a line of an event query is log to silver; what ends with any other line, or with the run, is only part of
log to gold. So work that a version does between its batches counts where the version reports it, never twice.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it is published without types
from pyspark.errors import PySparkException

from bench.funnel.load import Load, batches, expect
from bench.harness import processor_seconds
from meshbus.errors import PipelineError
from meshbus.log.log import Redex
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.tables import tables
from meshbus.spark.run.control import stop
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.runner import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meshbus.log.log import RedexFile

FORMATS = {"parquet": "", "delta": "deltalake", "iceberg": "pyiceberg"}
"""The formats of tables, and the package that each needs."""
COUNTED = "gold.channel_stats"
"""The table in which events are counted."""
VISIBLE_S = 300.0
"""Time limit for one event to become visible."""
STOP_S = 600.0
RETRY_S, ASK_S = 0.05, 10.0
WARM = 2
"""Events before the first sample: they include compilation."""
RESTED_S = 3.0
"""Pause after which no table rests, in a process that is warmed up: tables take a tenth of a second."""
_EVENTS, _GOLD = "events", "gold"
_EVENT_COUNTS = {"silver.event_counts", "silver.receipt_counts", "silver.latency_counts"}


class Mark(NamedTuple):
    """A line of progress, and when it came."""

    at: float
    cpu_s: float
    line: dict[str, Any]

    @property
    def is_events(self) -> bool:
        """Whether the line is about a batch of events."""
        return str(self.line["query"]).startswith(_EVENTS)

    @property
    def is_gold(self) -> bool:
        """Whether the line is about a refresh of the table in which events are counted."""
        return self.line["query"] == _GOLD and COUNTED in self.line.get("hours", {})


class Spent(NamedTuple):
    """Seconds of a run by the wall clock, and of all processors."""

    silver_s: float
    silver_cpu_s: float
    gold_s: float
    gold_cpu_s: float
    """Both for the whole run: from the log to gold."""


def divide(began: Mark, marks: list[Mark], ended: Mark) -> Spent:
    """Divide the time of a run between its queries."""
    silver_s = silver_cpu_s = 0.0
    for before, mark in zip([began, *marks], marks, strict=False):
        if mark.is_events:
            silver_s += mark.at - before.at
            silver_cpu_s += mark.cpu_s - before.cpu_s
    return Spent(silver_s, silver_cpu_s, ended.at - began.at, ended.cpu_s - began.cpu_s)


def through(spark: SparkSession, config: PipelineConfig, events: int) -> Spent:
    """Run a pipeline once over logs with so many events; raises RuntimeError unless the tables count each of them once."""
    began, marks, ended = _run_once(spark, config)
    expect("rows reported", sum(mark.line["rows"] for mark in marks if mark.is_events), events)
    found = tables(spark, config.tables)
    expect("rows of silver.events", found["silver.events"].count(), events)
    expect("rows of silver.quarantine", found["silver.quarantine"].count(), 0)
    expect(f"events in {COUNTED}", gold_events(spark, config.tables), events)
    return divide(began, marks, ended)


def gold_events(spark: SparkSession, path: Path | str) -> int:
    """Return how many events gold counts."""
    [row] = tables(spark, path)[COUNTED].agg({"events": "sum"}).collect()
    return int(row[0] or 0)


def refuse_problems(marks: list[Mark]) -> None:
    """Raise RuntimeError if a line tells of a problem: a run that repeats a step is not the one to measure."""
    problems = [mark.line["problem"] for mark in marks if mark.line.get("problem")]
    if problems:
        raise RuntimeError(f"the pipeline reports {problems[0]!r}; the measurement is void")


def _run_once(spark: SparkSession, config: PipelineConfig) -> tuple[Mark, list[Mark], Mark]:
    """Run a pipeline until everything is read; return its begin, its lines of progress, and its end."""
    marks: list[Mark] = []
    began = _mark({})
    run(spark, config, once=True, on_progress=lambda line: marks.append(_mark(line)))
    ended = _mark({})
    refuse_problems(marks)
    return began, marks, ended


def _mark(line: dict[str, Any]) -> Mark:
    return Mark(time.perf_counter(), processor_seconds(), line)


def config_for(root: Path, place: Path, load: Load, table_format: str = "parquet", **settings: Any) -> PipelineConfig:
    """Return the configuration of a pipeline over the logs of a node; settings that this version lacks are left out."""
    if table_format not in available_formats():
        raise ValueError(f"this version has no tables in the format {table_format}; choose from {available_formats()}")
    settings["format"] = table_format
    known = {name: value for name, value in settings.items() if name in PipelineConfig.__struct_fields__}
    return PipelineConfig(tables=str(place), logs=(str(root),), channels=load.declarations, **known)


def available_formats() -> list[str]:
    """Return the formats of tables that this version has and whose package is installed."""
    from importlib.util import find_spec

    if "format" not in PipelineConfig.__struct_fields__:
        return ["parquet"]
    return [name for name, package in FORMATS.items() if not package or find_spec(package) is not None]


# ── one event at a time ─────────────────────────────────────────────────────────────────────


class Source:
    """A log to which events are appended one at a time, as a node would have received them now."""

    def __init__(self, log: RedexFile) -> None:
        self._log = log
        self._one = next(batches(Load(1)))
        self.events = 0

    def append(self) -> float:
        """Append an event and return when that was done."""
        now = time.time_ns()
        columns = {**self._one.columns, "pub_seq": self.events, "ts_ns": now - 400_000, "recv_ts_ns": now}
        self._log.append_batch(self._one.payloads, **columns)  # type: ignore[arg-type]  # a TypedDict, changed
        self.events += 1
        return time.perf_counter()


@contextmanager
def source(root: Path) -> Iterator[Source]:
    """Open a log with one event."""
    with Redex(root / "received", recorder=77, background=False) as redex:
        opened = Source(redex.open(next(batches(Load(1))).channel))
        opened.append()
        yield opened


class BatchCost(NamedTuple):
    """What a batch with a single event costs."""

    seconds: float
    """All of it: ingest, counts and all gold tables."""
    cpu_s: float
    reported_ms: float
    """Until silver and count tables have the event, by the lines of progress. Versions that do not report counting leave it out."""


def batch_cost(spark: SparkSession, config: PipelineConfig, events: Source, samples: int) -> BatchCost:
    """Compare runs over one new event with runs over none: what is equal in both is the start of a run, not a batch."""
    run(spark, config, once=True)
    idle, busy, told = [], [], []
    for _ in range(samples):
        idle.append(divide(*_run_once(spark, config)))
        events.append()
        began, marks, ended = _run_once(spark, config)
        busy.append(divide(began, marks, ended))
        told.append(sum(float(mark.line.get("ms", 0)) for mark in marks))
    expect(f"events in {COUNTED}", gold_events(spark, config.tables), events.events)
    seconds = statistics.median(spent.gold_s for spent in busy) - statistics.median(spent.gold_s for spent in idle)
    cpu_s = statistics.median(spent.gold_cpu_s for spent in busy) - statistics.median(
        spent.gold_cpu_s for spent in idle
    )
    return BatchCost(seconds, cpu_s, statistics.median(told))


class Follower:
    """A pipeline that runs in a thread, and its lines of progress."""

    def __init__(self, spark: SparkSession, config: PipelineConfig) -> None:
        self._spark, self.config = spark, config
        self.marks: list[Mark] = []
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="bench-pipeline", daemon=True)
        self._thread.start()

    def wait_gold(self, events: int, *, since: int = 0, timeout_s: float = VISIBLE_S) -> float | None:
        """Wait until gold counts so many events, and return when the last refresh until then was reported.

        The table is read after each refresh, but not before one that was reported after the line `since`. Returns None
        after `timeout_s`; raises RuntimeError if gold counts more events, or if the pipeline failed.
        """
        until = time.perf_counter() + timeout_s
        while self._await_gold(since, until):
            seen = len(self.marks)
            try:
                found = gold_events(self._spark, self.config.tables)
            except (PySparkException, Py4JError):
                time.sleep(RETRY_S)  # in tables of plain files, a refresh may replace one that Spark is about to read
                continue
            since = seen
            if found >= events:
                expect(f"events in {COUNTED}", found, events)
                # A refresh that ended while the table was read may be the one that was seen: the later time counts.
                return max(mark.at for mark in list(self.marks) if mark.is_gold)
        return None

    def wait_tables(self, names: Sequence[str], since: int) -> dict[str, float]:
        """Wait until each of some gold tables was refreshed after the line `since`, and return when that was reported.

        Raises RuntimeError if that takes too long, or if the pipeline failed.
        """
        found: dict[str, float] = {}
        until = time.perf_counter() + VISIBLE_S
        while missing := [name for name in names if name not in found]:
            with self._changed:
                self._changed.wait(RETRY_S)
                for mark in self.marks[since:]:
                    for name in mark.line.get("hours", {}):
                        found.setdefault(name, mark.at)
            if self._failure is not None or time.perf_counter() > until:
                raise RuntimeError(f"{missing[0]} was not refreshed within {VISIBLE_S:g} s") from self._failure
        return {name: found[name] for name in names}

    def rows_at(self, at: float) -> int:
        """Return how many rows were in silver at a time, by the lines of progress."""
        return sum(mark.line["rows"] for mark in list(self.marks) if mark.is_events and mark.at <= at)

    def close(self) -> None:
        """Stop the pipeline and wait for its end; raises RuntimeError if it failed."""
        until = time.monotonic() + STOP_S
        while self._thread.is_alive():
            if time.monotonic() > until:
                raise RuntimeError(f"the pipeline did not stop within {STOP_S:g} s")
            with suppress(PipelineError):  # it is in a batch, or had not begun when it was asked
                stop(self.config.tables, timeout_s=ASK_S)
            self._thread.join(RETRY_S)
        if self._failure is not None:
            raise RuntimeError("the pipeline failed") from self._failure
        refuse_problems(self.marks)

    def _await_gold(self, since: int, until: float) -> bool:
        """Wait for a refresh that is reported after the line `since`, and return whether there was one in time."""
        with self._changed:
            while not any(mark.is_gold for mark in self.marks[since:]):
                if self._failure is not None:
                    raise RuntimeError("the pipeline failed") from self._failure
                if time.perf_counter() >= until:
                    return False
                self._changed.wait(min(until - time.perf_counter(), 1.0))
        return True

    def _run(self) -> None:
        try:
            run(self._spark, self.config, on_progress=self._take)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._failure = error
        with self._changed:
            self._changed.notify_all()

    def _take(self, line: dict[str, Any]) -> None:
        with self._changed:
            self.marks.append(Mark(time.perf_counter(), 0.0, line))
            self._changed.notify_all()


@contextmanager
def following(spark: SparkSession, config: PipelineConfig) -> Iterator[Follower]:
    """Run a pipeline in a thread until the end of the block."""
    follower = Follower(spark, config)
    try:
        yield follower
    finally:
        follower.close()


def freshness(
    spark: SparkSession, config: PipelineConfig, events: Source, samples: int, *, warm: int = WARM
) -> list[float]:
    """Return the seconds from the append of one event to its row in gold, in order of length."""
    with following(spark, config) as follower:
        events.append()
        follower.wait_gold(events.events)  # it has started
        waits = [_wait_one(follower, events) for _ in range(samples + warm)]
    return sorted(waits[warm:])


class Idle(NamedTuple):
    """A pipeline that has nothing to do until one event comes."""

    waits: dict[str, float]
    """Median seconds from the append of the event until each gold table has it."""
    cpu_share: float
    """Processor seconds per second while nothing came."""


def slowest(spark: SparkSession, config: PipelineConfig, events: Source, samples: int) -> Idle:
    """Measure single events with a pipeline that is idle: before each, all tables are up to date and have rested."""
    names = [name for name, table in CATALOG.gold.items() if _EVENT_COUNTS & set(table.sources)]
    waits: dict[str, list[float]] = {name: [] for name in names}
    shares: list[float] = []
    with following(spark, config) as follower:
        events.append()
        follower.wait_gold(events.events)
        for _ in range(samples + 1):
            cpu_s, began = processor_seconds(), time.perf_counter()
            time.sleep(RESTED_S)
            shares.append((processor_seconds() - cpu_s) / (time.perf_counter() - began))
            since, at = len(follower.marks), events.append()
            for name, seen in follower.wait_tables(names, since).items():
                waits[name].append(seen - at)
    return Idle({name: statistics.median(found[1:]) for name, found in waits.items()}, statistics.median(shares))


def _wait_one(follower: Follower, events: Source) -> float:
    since = len(follower.marks)
    at = events.append()
    visible = follower.wait_gold(events.events, since=since)
    if visible is None:
        raise RuntimeError(f"event {events.events} was not in gold after {VISIBLE_S:g} s")
    return visible - at
