"""Running a pipeline: its streaming queries, watched one by one, started again within bounds, and stopped cleanly.

    for each folder that nodes log to, one query for its logs (events, events_1, …) and, as soon as a node records
    packets there, one for those (packets, …); and gold made anew beside them.

A query that fails is started again from its checkpoint, after a pause that grows; so is one that has rows to read and
makes no progress. Gold that fails is made again at its next turn. When the attempts are used up the run ends with the
sentence of what failed. What everything does is in
`_status.json`, replaced every second, and in `_progress.ndjson`, one line a batch; a file `_stop` asks for the end. One
runner at a time: a lock on the folder of the tables says so.

What is done with a batch is in spark/run/batches.py, which rows there are to read in spark/io/datasource.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.errors import LogError, LogFault, MeshError, PipelineError, PipelineFault
from meshbus.log.consumers import publish_consumer
from meshbus.log.packets.reader import list_recorders
from meshbus.log.schema import EVENTS, PACKETS
from meshbus.spark.io.offsets import lag_of, next_of
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.batches import EventBatches, PacketBatches
from meshbus.spark.run.failure import sentence_of_failure
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.refresh import refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STATUS, PROGRESS, STOP, LOCK = "_status.json", "_progress.ndjson", "_stop", "_lock"
CHECKPOINTS = "_checkpoints"
_POLL_S = 0.2
_STATUS_S = 1.0
_LONGEST_PAUSE_S = 30.0
_PROGRESS_BYTES = 16 << 20
"""The file of progress begins anew beyond this; the one before it is kept."""


class State(StrEnum):
    """What a query is doing."""

    RUNNING = "running"
    WAITING = "waiting"
    """It failed, and will be started again."""
    DONE = "done"
    FAILED = "failed"


class Watched:
    """One query and how it has been doing."""

    def __init__(
        self, name: str, start: Callable[[], StreamingQuery], *, ended: Callable[[], bool] = lambda: False
    ) -> None:
        """Name a query and what starts it; `ended` says whether it has done what there was to do."""
        self.name = name
        self._ended = ended
        self.state = State.WAITING
        self.batch = -1
        self.rows = 0
        self.rows_per_s = 0.0
        self.lag: int | None = None
        self.restarts = 0
        self.problem = ""
        self._start = start
        self._query: StreamingQuery | None = None
        self._attempts = 0
        """Starts without progress in between."""
        self._again_at = 0.0
        self._moved_at = 0.0
        self._reported = ""
        """When the newest report was made."""

    def _begin(self, now: float, restarts: int) -> None:
        try:
            self._query = self._start()
        except MeshError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Spark says is the query's failure, not ours
            self._fail(sentence_of_failure(error), now, restarts)
            return
        self.state = State.RUNNING
        self._moved_at = now

    @property
    def starting(self) -> bool:
        """Whether Spark is still setting it up."""
        return (
            self.state is State.RUNNING
            and self._query is not None
            and self._query.status["message"].startswith("Initializing")
        )

    def look(self, now: float, *, restarts: int, stall_s: float, begin: bool = True) -> list[dict[str, Any]]:
        """See how it is doing, start it where that is due and it may `begin`, and give the batches that ended since."""
        if self.state is State.WAITING and now >= self._again_at and begin:
            self._begin(now, restarts)
        if self.state is not State.RUNNING or self._query is None:
            return []
        news = self._news(now)
        active = self._query.isActive  # before the failure: one that comes in between is then seen the next time
        failure = self._query.exception()
        if failure is not None:
            self._fail(sentence_of_failure(failure), now, restarts)
        elif not active:
            if self._ended():
                self.state = State.DONE
            else:
                self._fail("it ended without a reason", now, restarts)
        elif self._query.status["message"].startswith("Waiting"):
            self._moved_at = now  # there is nothing to do, which is no stall
        elif now - self._moved_at > stall_s:
            self._query.stop()
            self._fail(f"no progress for {stall_s:g} s", now, restarts)
        return news

    def stop(self) -> None:
        """End after the batch that is running."""
        if self._query is not None and self._query.isActive:
            self._query.stop()
        if self.state is not State.FAILED:
            self.state = State.DONE

    def _news(self, now: float) -> list[dict[str, Any]]:
        assert self._query is not None
        last = self._query.lastProgress
        if last is None or last["timestamp"] == self._reported:
            return []  # all of the recent ones would be read and parsed five times a second
        self._reported = last["timestamp"]
        found = []
        for progress in self._query.recentProgress:
            batch = progress["batchId"]
            rows = progress["numInputRows"]
            source = progress["sources"][0]
            self.lag = _lag(source)
            if batch > self.batch and rows:
                self.batch, self._moved_at, self._attempts = batch, now, 0
                self.rows += rows
                self.rows_per_s = round(progress["processedRowsPerSecond"], 1)
                found.append(
                    {
                        "query": self.name,
                        "batch": batch,
                        "rows": rows,
                        "rows_per_s": self.rows_per_s,
                        "lag": self.lag,
                        "ms": progress["batchDuration"],
                        "end": json.loads(source["endOffset"]) if source.get("endOffset") else None,
                    }
                )
        return found

    def _fail(self, problem: str, now: float, restarts: int) -> None:
        self.problem = problem
        self._attempts += 1
        if self._attempts > restarts:
            self.state = State.FAILED
            return
        self.restarts += 1
        self.state = State.WAITING
        self._again_at = now + min(2.0 ** (self._attempts - 1), _LONGEST_PAUSE_S)

    def facts(self) -> dict[str, Any]:
        """Give what a status shows."""
        shown = ("name", "state", "batch", "rows", "rows_per_s", "lag", "restarts", "problem")
        return {key: getattr(self, key) for key in shown}


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _lag(source: Mapping[str, Any]) -> int | None:
    """Say how many rows a source has that its query has not read."""
    read, latest = (json.loads(source.get(key) or "null") or {} for key in ("endOffset", "latestOffset"))
    return lag_of(read, latest) if "next" in read and "next" in latest else None


def run(
    spark: SparkSession,
    config: PipelineConfig,
    *,
    once: bool = False,
    told: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a pipeline until it has read everything (`once`), or until it is told to stop; gives its last status.

    `told` is called with each batch. Raises PipelineError when a query fails for good or another runner is at work.
    """
    store = Store(config.tables)
    with alone(store.root):
        _check_inputs(config)
        for name in store.catalog:
            store.sweep(name)
        return _Run(spark, config, store, once=once, told=told).go()


class _Run:
    """One run."""

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig,
        store: Store,
        *,
        once: bool,
        told: Callable[[dict[str, Any]], None],
    ) -> None:
        self._spark, self._config, self._store, self._once, self._told = spark, config, store, once, told
        self._paths = {_numbered("events", number): path for number, path in enumerate(config.logs)}
        """What each query reads."""
        self._queries = [
            self._query(
                name, path, EVENTS.name, EventBatches(config.tables, name, config.channels, config.compact_batches)
            )
            for name, path in self._paths.items()
        ]
        self._unrecorded = {_numbered("packets", number): path for number, path in enumerate(config.logs)}
        """Where no packets have been recorded so far."""
        self._started = time.time_ns()
        self._refreshed_at = self._status_at = 0.0
        self._gold_failures = 0
        """In a row."""

    def go(self) -> dict[str, Any]:
        """Run until there is nothing more to do."""
        (self._store.root / STOP).unlink(missing_ok=True)
        state = "running"
        try:
            while True:
                now = time.monotonic()
                self._look(now)
                self._write_status(state, now)
                if any(query.state is State.FAILED for query in self._queries):
                    break
                if (self._store.root / STOP).exists() or all(query.state is State.DONE for query in self._queries):
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
        try:
            while not self._refresh(time.monotonic()):
                time.sleep(_POLL_S)
        except PipelineError:
            self._write_status("failed", None)
            raise
        (self._store.root / STOP).unlink(missing_ok=True)
        return self._write_status(state, None)

    def _look(self, now: float) -> None:
        for name in [name for name, path in self._unrecorded.items() if list_recorders(path)]:
            path = self._paths[name] = self._unrecorded.pop(name)
            batches = PacketBatches(self._config.tables, name, path, self._config.compact_batches)
            self._queries.append(self._query(name, path, PACKETS.name, batches))
        for query in self._queries:
            # One after the other: Spark gives up on a source whose Python needs more than ten seconds to start.
            free = not any(other.starting for other in self._queries)
            for news in query.look(now, restarts=self._config.restarts, stall_s=self._config.stall_s, begin=free):
                end = news.pop("end")
                if end is not None:
                    publish_consumer(Path(self._paths[query.name]), query.name, next_of(end), time.time_ns())
                self._note({"at": _now(), **news})

    def _refresh(self, now: float) -> bool:
        """Make gold anew where that is due, and drop what is too old; says whether that went well."""
        self._refreshed_at = now
        try:
            hours = refresh(self._spark, self._store, self._config.subscriptions)
        except Exception as error:  # as with a query, whatever Spark says may pass
            self._gold_failures += 1
            problem = sentence_of_failure(error)
            if self._gold_failures > self._config.restarts:
                raise PipelineError(PipelineFault.FAILED, f"gold: {problem}") from error
            self._note({"at": _now(), "query": "gold", "problem": problem})
            return False
        self._gold_failures = 0
        made = {name: count for name, count in hours.items() if count}
        if made:
            self._note({"at": _now(), "query": "gold", "hours": made})
        self._expire()
        return True

    def _expire(self) -> None:
        if self._config.keep_days is not None:
            before = datetime.now(UTC) - timedelta(days=self._config.keep_days)
            for name, spec in self._store.catalog.items():
                if spec.hourly:
                    self._store.expire(name, f"{before:%Y-%m-%dT%H}")

    def _note(self, line: dict[str, Any]) -> None:
        path = self._store.root / PROGRESS
        if path.exists() and path.stat().st_size > _PROGRESS_BYTES:
            path.replace(path.with_suffix(".1.ndjson"))
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self._told(line)

    def _write_status(self, state: str, now: float | None) -> dict[str, Any]:
        status = {
            "state": state,
            "pid": os.getpid(),
            "started_ns": self._started,
            "at": _now(),
            "queries": [query.facts() for query in self._queries],
        }
        if now is None or now - self._status_at >= _STATUS_S:
            self._status_at = now or 0.0
            path = self._store.root / STATUS
            aside = path.with_name(f"{path.name}.{os.getpid()}")
            aside.write_bytes(msgspec.json.encode(status))
            aside.replace(path)
        return status

    def _query(self, name: str, path: str, table: str, batches: Any) -> Watched:
        start = self._starter(name, partial(self._follow, path, name, table), batches)
        return Watched(name, start, ended=partial(self._has_ended, name))

    def _follow(self, path: str, name: str, table: str) -> Any:
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

    def _has_ended(self, name: str) -> bool:
        """Say whether a query may be over: only in a run that ends by itself, and with every planned batch committed."""
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


def status(tables: Path | str) -> dict[str, Any]:
    """Give what a runner says about itself; a runner that is gone says `dead`. Raises PipelineError when there is none."""
    root = Path(tables)
    try:
        found: dict[str, Any] = msgspec.json.decode((root / STATUS).read_bytes())
    except FileNotFoundError:
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"no pipeline has run on {root}: check the path, or `meshbus pipeline run`"
        ) from None
    if found["state"] == "running" and not _is_locked(root):
        found["state"] = "dead"
    return found


def stop(tables: Path | str, *, timeout_s: float = 60.0) -> bool:
    """Ask a runner to end after its running batches, and wait for that; says whether it has. False if none runs."""
    root = Path(tables)
    if not _is_locked(root):
        return False
    (root / STOP).touch()
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if not _is_locked(root):
            return True
        time.sleep(_POLL_S)
    raise PipelineError(
        PipelineFault.RUNNING,
        f"the pipeline on {root} is still at a batch after {timeout_s:g} s: wait, or end its process",
    )


def _check_inputs(config: PipelineConfig) -> None:
    if not config.logs:
        raise PipelineError(PipelineFault.SETTINGS, "nothing to read: give --log with the log_dir of a node")
    for path in config.logs:
        if not Path(path).is_dir():
            raise LogError(LogFault.UNKNOWN, f"{path} is no folder of logs: check the path")


def _check_checkpoint(checkpoint: Path, store: Store, name: str) -> None:
    """Refuse a checkpoint that is not the one these tables were filled from: batches would be skipped or doubled."""
    mark = store.root / CHECKPOINTS / f"{name}.id"
    metadata = checkpoint / "metadata"
    if not metadata.exists():
        tables = [table for table in store.catalog for part in store.parts(table) if part.query == name]
        if tables:
            raise PipelineError(
                PipelineFault.BAD_CHECKPOINT,
                f"{checkpoint} is gone, but {tables[0]} has batches of it: put it back, or begin with other tables",
            )
        return
    try:
        current = str(json.loads(metadata.read_text("utf-8"))["id"])
    except (ValueError, KeyError, TypeError, OSError):
        raise PipelineError(
            PipelineFault.BAD_CHECKPOINT,
            f"{metadata} cannot be read: put it back from a copy, or begin with other tables",
        ) from None
    if not mark.exists():
        mark.write_text(current, "utf-8")
    elif mark.read_text("utf-8") != current:
        raise PipelineError(
            PipelineFault.BAD_CHECKPOINT, f"{checkpoint} is not the checkpoint of these tables: put the old one back"
        )


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the lock on the tables; raises PipelineError when somebody else does."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / LOCK).open("w")
    except OSError as error:
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"cannot write to {root}: {error.strerror}; choose another folder"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(
                PipelineFault.RUNNING, f"a pipeline is running on {root}: `meshbus pipeline status` shows it"
            ) from None
        yield


def _is_locked(root: Path) -> bool:
    try:
        with (root / LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
