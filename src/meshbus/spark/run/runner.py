"""Run a pipeline: take new rows of logs into the tables, and refresh gold, until everything is read or it is stopped.

For each directory that nodes log to there is one query for its logs (`events`, `events_1`, …) and, from the moment that a
node records packets there, one for the packet records (`packets`, …). The queries take turns; after a turn that took rows,
gold tables are refreshed, after the census of each node was read (spark/run/intake.py). What fails is tried again after a
growing pause; if a query or the refresh fails too often, the run ends with the last problem.

    _status.json       state of the run and its queries (spark/run/control.py)
    _progress.ndjson   one line per batch, count of new batches, refresh or problem
    _batches/          what each batch takes (spark/run/plans.py)

A query is spark/run/ingest.py.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.errors import LogError, LogFault, PipelineError, PipelineFault
from meshbus.log.packets.reader import list_recorders
from meshbus.spark.io.inputs import Logs, Records, match_channels, stored_schemas
from meshbus.spark.lake.counts import COUNTS
from meshbus.spark.lake.minutes import HOUR_FORMAT
from meshbus.spark.lake.mirror.ledger import settle_all
from meshbus.spark.lake.stretches import merge_runs
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run import eventwriter, packetwriter
from meshbus.spark.run.control import clear_stop, exclusive, stop_requested, write_status
from meshbus.spark.run.eventwriter import EventWriter, Known
from meshbus.spark.run.failure import sentence_of_failure
from meshbus.spark.run.ingest import Ingest, State
from meshbus.spark.run.intake import TABLE as CENSUS
from meshbus.spark.run.intake import CensusIntake
from meshbus.spark.run.kernels import load_kernels
from meshbus.spark.run.mirroring import mirroring_of
from meshbus.spark.run.packetwriter import PacketWriter
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.plans import Plans
from meshbus.spark.run.rebuild import finish_rebuild
from meshbus.spark.run.refresh import Refresher
from meshbus.spark.run.sparksession import java_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meshbus.spark.lake.codec import Declaration, Stored

PROGRESS = "_progress.ndjson"
_STATUS_S = 1.0
"""How often the status file is replaced."""
_KEEP_S = 0.25
"""Time that compaction takes of a turn, unless a single table takes longer: batches wait for it."""
_SWEEP_S = 3600.0
"""How often files that nothing refers to are removed; also at the start."""
_PROGRESS_BYTES = 16 << 20
"""Size at which the progress file is rotated: about 50,000 batches. One old file is kept."""
_MERGES: dict[str, Callable[[Any], Any] | None] = {
    **dict.fromkeys((*eventwriter.TABLES, *packetwriter.TABLES, CENSUS)),
    "silver.runs": merge_runs,
    **{count.name: count.merge for count in COUNTS},
}
"""The tables that grow by batches, and how compaction reduces their rows."""


def run(
    spark: SparkSession,
    config: PipelineConfig,
    *,
    once: bool = False,
    on_progress: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a pipeline until everything is read (`once`) or until it is stopped, and return its last status.

    `on_progress` is called with each line of the progress file. Raises PipelineError if a query fails for good or
    another runner is active on the same tables.
    """
    root = Path(config.tables)
    load_kernels()
    with exclusive(root):
        _check_inputs(config)
        store = Store(root, table_format=config.format)
        store.create()
        settle_all(store)
        return _Pipeline(spark, config, store, once=once, on_progress=on_progress).run()


class _Pipeline:
    """One run of a pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig,
        store: Store,
        *,
        once: bool,
        on_progress: Callable[[dict[str, Any]], None],
    ) -> None:
        self._spark, self._config, self._store, self._once = spark, config, store, once
        self._on_progress = on_progress
        known = Known(store)
        self._queries = [
            self._query(name, path, Logs(path, match_channels(config.read_channels)), writer)
            for number, path in enumerate(config.logs)
            for name in [_numbered("events", number)]
            for writer in [EventWriter(spark, store, name, known, partial(_declared, config, path))]
        ]
        self._unrecorded = {_numbered("packets", number): path for number, path in enumerate(config.logs)}
        """Directories without packet records so far, by the name of the query that will read them."""
        self._census = CensusIntake(store, config.logs)
        self._refresher = Refresher(spark, store, config.subscriptions, self._report_counts)
        self._mirroring = mirroring_of(store, config)
        self._started = time.time_ns()
        self._state = "running"
        self._doing = ("starting", time.monotonic())
        self._refreshed_at = self._looked_at = self._swept_at = 0.0
        self._unkept: list[str] = []
        """Tables that are to be looked at for parts to compact."""
        self._stale = True
        """Whether a table changed since gold was refreshed."""
        self._refresh_failures = 0
        """Consecutive failures."""
        self._gold_problem = ""

    def run(self) -> dict[str, Any]:
        """Run until there is nothing more to do, and return the last status."""
        root = self._store.root
        clear_stop(root)
        with self._status_kept(), closing(self._mirroring), closing(self._refresher):
            self._sweep()
            self._mirroring.start()
            finish_rebuild(self._spark, self._store)
            self._take_all()
            # A last refresh makes gold agree with silver.
            while not self._refresh(time.monotonic(), rested=False):
                time.sleep(self._config.trigger_s)
            for query in self._queries:
                query.look()
                query.state = State.DONE
            if self._once:
                self._doing = "copying tables to object storage", time.monotonic()
                self._mirroring.finish(self._config.restarts, partial(stop_requested, root))
        clear_stop(root)
        return self._status()

    @contextmanager
    def _status_kept(self) -> Iterator[None]:
        """Write the status every second while the block runs, and how it ended."""
        ended = threading.Event()

        def keep() -> None:
            while not ended.wait(_STATUS_S):
                self._write_status()

        self._write_status()
        thread = threading.Thread(target=keep, name="meshbus-status", daemon=True)
        thread.start()
        outcome = "failed"
        try:
            yield
            outcome = "stopped"
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            ended.set()
            thread.join()
            self._state = outcome
            self._write_status()

    def _write_status(self) -> None:
        with suppress(OSError):  # a full disk: the batches themselves are tried again, and the status is written later
            write_status(self._store.root, self._status())

    def _take_all(self) -> None:
        """Take turns until everything is read, somebody asks to stop, or a query fails for good."""
        if self._once:
            self._add_recorded()
            for query in self._queries:
                self._try(query, query.stop_at_present_end)
        while not stop_requested(self._store.root):
            now = time.monotonic()
            took = self._turn(now)
            self._look(now)
            if self._once and not took and not any(query.state is State.WAITING for query in self._queries):
                return
            # The first rows after a pause need not wait: no table is being computed, or rests.
            at_once = took and not self._refresher.busy
            if not self._once and (at_once or now - self._refreshed_at >= self._config.refresh_s):
                self._refresh(now, rested=True)
            if not took:
                self._doing = "waiting for new rows", time.monotonic()
                time.sleep(self._config.trigger_s)

    def _turn(self, now: float) -> bool:
        """Let each query do a batch; returns whether any did. Raises PipelineError if one has failed for good."""
        took = False
        self._add_recorded()
        for query in self._queries:
            if query.due(now):
                self._doing = f"reading {query.name}", time.monotonic()
                line = self._try(query, query.turn)
                if line:
                    took = self._stale = True
                    self._report(line)
            if query.state is State.FAILED:
                raise PipelineError(PipelineFault.FAILED, f"query {query.name}: {query.problem}")
        return took

    def _look(self, now: float) -> None:
        """Measure how far the queries are behind, if that is due. Raises PipelineError if Java has ended."""
        if now - self._looked_at >= _STATUS_S:
            self._looked_at = now
            if java_ended():
                raise PipelineError(
                    PipelineFault.FAILED,
                    "Java, in which Spark runs, has ended; look for its last words above or for a lack of memory,"
                    " and run the pipeline again, which goes on where it was",
                )
            for query in self._queries:
                query.look()
            if line := self._mirroring.news():
                self._report(line)

    def _try(self, query: Ingest, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except PipelineError:
            raise  # wrong tables: another attempt would not help
        except Exception as error:  # noqa: BLE001 - any other error may be temporary, and is shown
            query.fail(sentence_of_failure(error), time.monotonic(), self._config.restarts)
            self._report({"query": query.name, "problem": query.problem})
            return None

    def _add_recorded(self) -> None:
        for name in [name for name, path in self._unrecorded.items() if list_recorders(path)]:
            path = self._unrecorded.pop(name)
            writer = PacketWriter(self._spark, self._store, name, path)
            self._queries.append(self._query(name, path, Records(path), writer))

    def _refresh(self, now: float, *, rested: bool) -> bool:
        """Refresh gold tables and remove what has expired; returns whether that succeeded.

        With `rested`, tables that take long are refreshed less often, and are not waited for. Raises PipelineError after
        too many consecutive failures.
        """
        self._doing = "refreshing gold tables", time.monotonic()
        self._refreshed_at = now
        try:
            self._stale = bool(self._census.take()) or self._stale
            hours = self._refresh_tables(rested) if self._stale or self._refresher.busy else {}
        except Exception as error:  # as with a query, any error of Spark may be temporary
            self._stale = True  # what failed is out of date, also if no more rows come
            self._refresh_failures += 1
            self._gold_problem = sentence_of_failure(error)
            if self._refresh_failures > self._config.restarts:
                raise PipelineError(PipelineFault.FAILED, f"gold: {self._gold_problem}") from error
            self._report({"query": "gold", "problem": self._gold_problem})
            return False
        self._stale = False
        if not self._refresher.failing:
            self._refresh_failures, self._gold_problem = 0, ""
        made = {name: count for name, count in hours.items() if count}
        if made:
            self._report({"query": "gold", "hours": made})
        return True

    def _refresh_tables(self, rested: bool) -> dict[str, int]:
        oldest = self._oldest()
        since = "" if oldest is None else f"{oldest:{HOUR_FORMAT}}"
        hours = self._refresher.begin(since) if rested else self._refresher.refresh(since)
        if self._stale:
            self._keep_small(oldest, _KEEP_S if rested else math.inf)
            self._mirroring.wake()
        if time.monotonic() - self._swept_at >= _SWEEP_S and not self._refresher.running:
            self._sweep()
        return hours

    def _sweep(self) -> None:
        """Remove files that nothing refers to; nobody else may be writing."""
        self._swept_at = time.monotonic()
        for name in self._store.catalog:
            self._store.table(name).sweep()

    def _oldest(self) -> datetime | None:
        """Return the start of the oldest hour that is kept; None if all are."""
        if self._config.keep_days is None:
            return None
        before = datetime.now(UTC) - timedelta(days=self._config.keep_days)
        return before.replace(minute=0, second=0, microsecond=0)

    def _keep_small(self, oldest: datetime | None, limit_s: float) -> None:
        """Compact tables, all of whose batches are counted by now, and remove what has expired.

        Begins with no further table after a time, and continues with it next time.
        """
        until = time.monotonic() + limit_s
        self._unkept = self._unkept or list(_MERGES)
        while self._unkept and time.monotonic() < until:
            name = self._unkept.pop(0)
            table = self._store.table(name)
            for query in sorted({file.query for file in table.files()}):
                table.compact(query, fewest=self._config.compact_batches, merge=_MERGES[name])
        if oldest is not None and not self._unkept:
            for name in self._store.catalog:
                self._mirroring.expire(name, oldest)

    def _report_counts(self, files: int, seconds: float) -> None:
        self._report({"query": "counts", "files": files, "ms": round(seconds * 1000)})

    def _report(self, line: dict[str, Any]) -> None:
        line = {"at": _now(), **line}
        path = self._store.root / PROGRESS
        with suppress(OSError):  # a full disk must not end the run: what is reported may be just that
            if path.exists() and path.stat().st_size > _PROGRESS_BYTES:
                path.replace(path.with_suffix(".1.ndjson"))
            with path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        self._on_progress(line)
        self._mirroring.wake()

    def _status(self) -> dict[str, Any]:
        doing, since = self._doing
        return {
            "state": self._state,
            "pid": os.getpid(),
            "started_ns": self._started,
            "at": _now(),
            "doing": doing if self._state == "running" else "",
            "doing_s": round(time.monotonic() - since, 1) if self._state == "running" else None,
            "queries": [query.facts() for query in self._queries],
            "gold": {"problem": self._gold_problem, "failures": self._refresh_failures},
            "mirror": self._mirroring.facts(),
        }

    def _query(self, name: str, path: str, source: Any, writer: Any) -> Ingest:
        limit, fail_on_gap = self._config.max_rows_per_batch, self._config.fail_on_gap
        return Ingest(name, path, source, Plans(self._store.root, name), writer, rows=limit, fail_on_gap=fail_on_gap)


def _declared(config: PipelineConfig, path: str) -> list[Declaration | Stored]:
    """Return what is declared about payloads: in the configuration, and beside the logs of a directory."""
    return [*config.channels, *stored_schemas(path)]


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _check_inputs(config: PipelineConfig) -> None:
    if not config.logs:
        raise PipelineError(PipelineFault.SETTINGS, "no logs to read; pass --log with the log_dir of a node")
    for path in config.logs:
        if not Path(path).is_dir():
            raise LogError(LogFault.UNKNOWN, f"{path} is not a directory of logs; check the path")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
