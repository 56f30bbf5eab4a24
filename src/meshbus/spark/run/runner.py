"""Run a pipeline: its streaming queries and the refresh of gold tables, until everything is read or it is stopped.

For each directory that nodes log to there is one query for its logs (`events`, `events_1`, …) and, from the moment that a
node records packets there, one for the packet records (`packets`, …). Gold tables are refreshed in between, after the
census of each node was read (spark/run/intake.py); a refresh that fails is repeated at its next turn. If a query or the
refresh fails too often, the run ends with the last problem.

    _status.json       state of the run and its queries (spark/run/control.py)
    _progress.ndjson   one line per batch, refresh or problem
    _checkpoints/      Spark's checkpoints, one per query

Restarts are in spark/run/supervision.py. The work on a batch is in spark/run/batches.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.errors import LogError, LogFault, PipelineError, PipelineFault
from meshbus.log.consumers import list_consumers, publish_consumer
from meshbus.log.packets.reader import list_recorders
from meshbus.log.schema import EVENTS, PACKETS
from meshbus.spark.io.datasource import Options
from meshbus.spark.io.offsets import next_of
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.batches import EventBatches, PacketBatches
from meshbus.spark.run.control import clear_stop, exclusive, stop_requested, write_status
from meshbus.spark.run.failure import sentence_of_failure
from meshbus.spark.run.intake import CensusIntake
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.refresh import refresh
from meshbus.spark.run.supervision import State, SupervisedQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PROGRESS = "_progress.ndjson"
CHECKPOINTS = "_checkpoints"
_POLL_S = 0.2
"""How often queries are polled: well below a second, so that a short run ends promptly."""
_STATUS_S = 1.0
"""How often the status file is replaced."""
_PROGRESS_BYTES = 16 << 20
"""Size at which the progress file is rotated: about 50,000 batches. One old file is kept."""


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
    store = Store(config.tables)
    with exclusive(store.root):
        _check_inputs(config)
        for name in store.catalog:  # safe only under the lock: nobody else is writing
            store.sweep(name)
        return _Run(spark, config, store, once=once, on_progress=on_progress).go()


class _Run:
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
        self._paths = {_numbered("events", number): path for number, path in enumerate(config.logs)}
        """The input directory of each query."""
        self._queries = [
            self._query(
                name, path, EVENTS.name, EventBatches(config.tables, name, config.channels, config.compact_batches)
            )
            for name, path in self._paths.items()
        ]
        self._unrecorded = {_numbered("packets", number): path for number, path in enumerate(config.logs)}
        """Directories without packet records so far, by the name of the query that will read them."""
        self._census = CensusIntake(store, config.logs)
        self._started = time.time_ns()
        self._refreshed_at = self._status_at = 0.0
        self._refresh_failures = 0
        """Consecutive failures."""

    def go(self) -> dict[str, Any]:
        """Run until there is nothing more to do, and return the last status."""
        root = self._store.root
        clear_stop(root)
        state = "running"
        try:
            while True:
                now = time.monotonic()
                self._poll(now)
                self._write_status(state, now)
                if any(query.state is State.FAILED for query in self._queries):
                    break
                if stop_requested(root) or all(query.state is State.DONE for query in self._queries):
                    break
                if not self._once and now - self._refreshed_at >= self._config.refresh_s:
                    self._refresh(now)
                time.sleep(_POLL_S)
            state = "stopped"
        except KeyboardInterrupt:
            state = "stopped"
            raise
        except BaseException:
            state = "failed"
            raise
        finally:
            for query in self._queries:
                query.stop()
            self._write_status(state, None)
        failed = next((query for query in self._queries if query.state is State.FAILED), None)
        if failed is not None:
            self._write_status("failed", None)
            raise PipelineError(PipelineFault.FAILED, f"query {failed.name}: {failed.problem}")
        # The queries have stopped: a last refresh makes gold agree with silver.
        try:
            while not self._refresh(time.monotonic()):
                time.sleep(_POLL_S)
        except PipelineError:
            self._write_status("failed", None)
            raise
        clear_stop(root)
        return self._write_status(state, None)

    def _poll(self, now: float) -> None:
        for name in [name for name, path in self._unrecorded.items() if list_recorders(path)]:
            path = self._paths[name] = self._unrecorded.pop(name)
            batches = PacketBatches(self._config.tables, name, path, self._config.compact_batches)
            self._queries.append(self._query(name, path, PACKETS.name, batches))
        for query in self._queries:
            # One start at a time: Spark gives up on a source whose Python takes more than ten seconds to start.
            idle = not any(other.starting for other in self._queries)
            for batch in query.poll(now, restarts=self._config.restarts, stall_s=self._config.stall_s, may_start=idle):
                end = batch.pop("end")
                if end is not None:
                    publish_consumer(Path(self._paths[query.name]), query.name, next_of(end), time.time_ns())
                self._report({"at": _now(), **batch})

    def _refresh(self, now: float) -> bool:
        """Refresh gold tables and remove expired hours; returns whether that succeeded.

        Raises PipelineError after too many consecutive failures.
        """
        self._refreshed_at = now
        try:
            if self._census.take():
                self._census.compact(self._spark, self._config.compact_batches)
            hours = refresh(self._spark, self._store, self._config.subscriptions)
        except Exception as error:  # as with a query, any error of Spark may be temporary
            self._refresh_failures += 1
            problem = sentence_of_failure(error)
            if self._refresh_failures > self._config.restarts:
                raise PipelineError(PipelineFault.FAILED, f"gold: {problem}") from error
            self._report({"at": _now(), "query": "gold", "problem": problem})
            return False
        self._refresh_failures = 0
        made = {name: count for name, count in hours.items() if count}
        if made:
            self._report({"at": _now(), "query": "gold", "hours": made})
        self._expire()
        return True

    def _expire(self) -> None:
        if self._config.keep_days is not None:
            before = datetime.now(UTC) - timedelta(days=self._config.keep_days)
            for name, spec in self._store.catalog.items():
                if spec.hourly:
                    self._store.expire(name, f"{before:%Y-%m-%dT%H}")

    def _report(self, line: dict[str, Any]) -> None:
        path = self._store.root / PROGRESS
        if path.exists() and path.stat().st_size > _PROGRESS_BYTES:
            path.replace(path.with_suffix(".1.ndjson"))
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self._on_progress(line)

    def _write_status(self, state: str, now: float | None) -> dict[str, Any]:
        """Return the status, and write it to its file if that is due or `now` is None."""
        status = {
            "state": state,
            "pid": os.getpid(),
            "started_ns": self._started,
            "at": _now(),
            "queries": [query.facts() for query in self._queries],
        }
        if now is None or now - self._status_at >= _STATUS_S:
            self._status_at = now or 0.0
            write_status(self._store.root, status)
        return status

    def _query(self, name: str, path: str, table: str, batches: Any) -> SupervisedQuery:
        start = self._starter(name, partial(self._stream, path, name, table), batches)
        unread = partial(self._unread, name, path, table)
        return SupervisedQuery(name, start, ended=partial(self._has_read_all, name), unread=unread)

    def _unread(self, name: str, path: str, table: Any) -> int | None:
        """Return how many rows a query has not read, by the position that it published; None if that is unknown."""
        channels = self._config.read_channels if table == EVENTS.name else "*"
        try:
            found = Options(path=path, table=table, channels=channels).input().look()
        except LogError:
            return None  # the query itself reports it
        read = next((one.next for one in list_consumers(Path(path)) if one.consumer == name), {})
        extents = {key: seen.extent for key, seen in found.items()}
        return sum(extent.end - max(extent.first, read.get(key, 0)) for key, extent in extents.items())

    def _stream(self, path: str, name: str, table: str) -> Any:
        reader = (
            self._spark.readStream.format("meshbus")
            .option("table", table)
            .option("maxRowsPerTrigger", self._config.max_rows_per_batch)
            .option("failOnGap", str(self._config.fail_on_gap).lower())
            .option("consumer", name)
        )
        if table == EVENTS.name:
            reader = reader.option("channels", self._config.read_channels)
        return reader.load(path)

    def _has_read_all(self, name: str) -> bool:
        """Return whether a query may end: only with `once`, and only if every planned batch is committed."""
        checkpoint = self._store.root / CHECKPOINTS / name
        planned, committed = (
            max((int(path.name) for path in (checkpoint / kind).glob("[0-9]*")), default=-1)
            for kind in ("offsets", "commits")
        )
        return self._once and planned == committed

    def _starter(self, name: str, source: Callable[[], Any], batches: Any) -> Callable[[], StreamingQuery]:
        checkpoint = self._store.root / CHECKPOINTS / name

        def start() -> StreamingQuery:
            _check_checkpoint(checkpoint, self._store, name)
            writer = source().writeStream.queryName(name).foreachBatch(batches)
            writer = writer.option("checkpointLocation", str(checkpoint))
            trigger = {"availableNow": True} if self._once else {"processingTime": f"{self._config.trigger_s} seconds"}
            query: StreamingQuery = writer.trigger(**trigger).start()
            return query

        return start


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _check_inputs(config: PipelineConfig) -> None:
    if not config.logs:
        raise PipelineError(PipelineFault.SETTINGS, "no logs to read; pass --log with the log_dir of a node")
    for path in config.logs:
        if not Path(path).is_dir():
            raise LogError(LogFault.UNKNOWN, f"{path} is not a directory of logs; check the path")


def _check_checkpoint(checkpoint: Path, store: Store, name: str) -> None:
    """Raise PipelineError if a checkpoint does not belong to these tables: batches would be skipped or repeated."""
    mark = store.root / CHECKPOINTS / f"{name}.id"
    metadata = checkpoint / "metadata"
    if not metadata.exists():
        tables = [table for table in store.catalog for part in store.parts(table) if part.query == name]
        if tables:
            raise PipelineError(
                PipelineFault.BAD_CHECKPOINT,
                f"{checkpoint} is missing, but {tables[0]} has batches of it; restore it, or start with new tables",
            )
        return
    try:
        current = str(json.loads(metadata.read_text("utf-8"))["id"])
    except (ValueError, KeyError, TypeError, OSError):
        raise PipelineError(
            PipelineFault.BAD_CHECKPOINT,
            f"{metadata} cannot be read; restore it from a backup, or start with new tables",
        ) from None
    if not mark.exists():
        mark.write_text(current, "utf-8")
    elif mark.read_text("utf-8") != current:
        raise PipelineError(
            PipelineFault.BAD_CHECKPOINT, f"{checkpoint} is not the checkpoint of these tables; restore the old one"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
