"""Supervision of one streaming query: start it, observe its progress, and restart it within limits.

A query that fails is restarted from its checkpoint after a growing pause; so is one that has rows to read but completes no
batch. After too many restarts without progress it has failed for good. Time is an argument, so nothing here sleeps.

spark/run/runner.py polls the queries of a pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from meshbus.errors import MeshError
from meshbus.spark.io.offsets import lag_of
from meshbus.spark.run.failure import sentence_of_failure

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_MAX_PAUSE_S = 30.0
"""Upper bound of the pause before a restart, which doubles from one second: a passing failure costs at most this."""


class State(StrEnum):
    """The state of a query."""

    RUNNING = "running"
    WAITING = "waiting"
    """Not started yet, or failed and to be restarted."""
    DONE = "done"
    FAILED = "failed"


class SupervisedQuery:
    """One streaming query and its recent history."""

    def __init__(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        *,
        ended: Callable[[], bool] = lambda: False,
        unread: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Prepare a query; `start` starts it, and `ended` returns whether it may end because everything was read.

        `unread` returns how many rows wait, for the time until Spark reports it with the first batch.
        """
        self.name = name
        self.state = State.WAITING
        self.batch = -1
        self.rows = 0
        self.rows_per_s = 0.0
        self.lag: int | None = None
        self.restarts = 0
        self.problem = ""
        self._start = start
        self._ended = ended
        self._unread = unread
        self._query: StreamingQuery | None = None
        self._attempts = 0
        """Starts since the last progress."""
        self._restart_at = 0.0
        self._progress_at = 0.0
        self._reported = ""
        """Timestamp of the newest progress report that was read."""

    @property
    def starting(self) -> bool:
        """Whether Spark is still initializing the query."""
        return (
            self.state is State.RUNNING
            and self._query is not None
            and self._query.status["message"].startswith("Initializing")
        )

    def poll(self, now: float, *, restarts: int, stall_s: float, may_start: bool = True) -> list[dict[str, Any]]:
        """Update the state, start the query if it is due and `may_start` is set, and return newly completed batches.

        The query fails after more than `restarts` attempts without progress. It is stalled if it has rows to read and
        completes no batch for `stall_s` seconds.
        """
        if self.state is State.WAITING and now >= self._restart_at and may_start:
            self._begin(now, restarts)
        if self.state is not State.RUNNING or self._query is None:
            return []
        batches = self._completed(now)
        # Read before `exception`: a failure between the two calls is then seen by the next poll, not taken for an end.
        active = self._query.isActive
        failure = self._query.exception()
        if failure is not None:
            self._fail(sentence_of_failure(failure), now, restarts)
        elif not active:
            if self._ended():
                self.state = State.DONE
            else:
                self._fail("the query ended unexpectedly", now, restarts)
        elif self._query.status["message"].startswith("Waiting"):
            self._progress_at = now  # no rows to read is not a stall
        elif now - self._progress_at > stall_s:
            self._query.stop()
            self._fail(f"no progress for {stall_s:g} s", now, restarts)
        return batches

    def stop(self) -> None:
        """Stop the query after the running batch."""
        if self._query is not None and self._query.isActive:
            self._query.stop()
        if self.state is not State.FAILED:
            self.state = State.DONE

    def facts(self) -> dict[str, Any]:
        """Return the fields that `meshbus pipeline status` shows."""
        shown = ("name", "state", "batch", "rows", "rows_per_s", "lag", "restarts", "problem")
        return {key: getattr(self, key) for key in shown}

    def _begin(self, now: float, restarts: int) -> None:
        try:
            self._query = self._start()
        except MeshError:
            raise  # wrong settings or a wrong checkpoint: a restart would not help
        except Exception as error:  # noqa: BLE001 - any error of Spark is a failure of the query, which is restarted
            self._fail(sentence_of_failure(error), now, restarts)
            return
        self.state = State.RUNNING
        self._progress_at = now
        if self.lag is None:
            self.lag = self._unread()

    def _completed(self, now: float) -> list[dict[str, Any]]:
        assert self._query is not None
        # `recentProgress` parses up to a hundred reports; look at it only if there is a new one.
        last = self._query.lastProgress
        if last is None or last["timestamp"] == self._reported:
            return []
        self._reported = last["timestamp"]
        found = []
        for progress in self._query.recentProgress:
            batch = progress["batchId"]
            rows = progress["numInputRows"]
            source = progress["sources"][0]
            self.lag = _lag(source)
            if batch > self.batch and rows:
                self.batch, self._progress_at, self._attempts = batch, now, 0
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
        self._restart_at = now + min(2.0 ** (self._attempts - 1), _MAX_PAUSE_S)


def _lag(source: Mapping[str, Any]) -> int | None:
    """Return the number of rows that a source has and its query has not read; None if Spark does not report it."""
    read, latest = (json.loads(source.get(key) or "null") or {} for key in ("endOffset", "latestOffset"))
    return lag_of(read, latest) if "next" in read and "next" in latest else None
