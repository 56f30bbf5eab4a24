"""One query of a pipeline: takes new rows of logs or packet records into the tables, batch by batch, each exactly once.

What a batch takes is written first (spark/run/plans.py). A batch is complete when the last table of its writer has it,
and every commit of a batch that is there already does nothing, so a batch that was interrupted anywhere is simply done
again. Rows are written by spark/run/eventwriter.py and spark/run/packetwriter.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from meshbus.errors import LogError, LogFault
from meshbus.log.consumers import publish_consumer
from meshbus.spark.io.inputs import Input, Seen
from meshbus.spark.io.offsets import first_offset, next_of, offset_of, ranges
from meshbus.spark.run.nextbatch import Waiting, next_ends
from meshbus.spark.run.plans import Plan, Plans

_MAX_PAUSE_S = 30.0
"""Upper bound of the pause after a failure, which doubles from one second: a passing failure costs at most this."""


class Range(NamedTuple):
    """The rows of one log that a batch takes."""

    name: str
    """As in spark/io/inputs.py."""
    seen: Seen
    first: int
    end: int


class BatchWriter(Protocol):
    """Writes the rows of batches to tables."""

    def last(self) -> int:
        """Return the last complete batch, or -1."""

    def write(self, batch: int, taken: list[Range]) -> None:
        """Write a batch; must do nothing for tables that have it."""


class State(StrEnum):
    """The state of a query."""

    RUNNING = "running"
    WAITING = "waiting"
    """Failed, and to be tried again."""
    DONE = "done"
    FAILED = "failed"


class Lag(NamedTuple):
    """What a query has not read."""

    rows: int
    bytes: int
    seconds: float
    """The age of the oldest unread row; 0 if there is none."""


class Ingest:
    """One query and its recent history."""

    def __init__(
        self, name: str, path: str, source: Input, plans: Plans, writer: BatchWriter, *, rows: int, fail_on_gap: bool
    ) -> None:
        """Prepare to read a source, the logs or records below a path, in batches of at most `rows` rows."""
        self.name = name
        self.state = State.RUNNING
        self.problem = ""
        self.restarts = 0
        self._path, self._source, self._plans, self._writer = path, source, plans, writer
        # Several pipelines may read a log: the tables tell whose query it is.
        self._consumer = f"{name} of {plans.root.absolute()}"
        self._limit, self._fail_on_gap = rows, fail_on_gap
        self._until: dict[str, int] | None = None
        self._newest: Plan | None = None
        """The newest plan; None before the first turn, or if there is none."""
        self._batch = -1
        self._rows = 0
        self._rows_per_s: float | None = None
        self._lag: Lag | None = None
        self._attempts = 0
        """Failures since the last batch."""
        self._retry_at = 0.0

    def stop_at_present_end(self) -> None:
        """Read no rows that are written from now on, so that reading everything comes to an end."""
        self._until = {name: seen.extent.end for name, seen in self._source.look().items()}

    def due(self, now: float) -> bool:
        """Return whether a batch may be tried now."""
        return self.state is State.RUNNING or (self.state is State.WAITING and now >= self._retry_at)

    def turn(self) -> dict[str, Any] | None:
        """Do one batch and return its line of progress; None if there is nothing to read. Raises what goes wrong."""
        begun = time.monotonic()
        found = self._source.look()
        if self._newest is None:
            self._newest = self._plans.newest(self._writer.last())
        if self._newest is None or self._newest.batch <= self._writer.last():
            plan = self._next(found)
            if plan is None:
                self._attempts, self.state = 0, State.RUNNING
                return None
            self._plans.write(plan)
            self._newest = plan
        taken = self._ranges(self._newest, found)
        self._writer.write(self._newest.batch, taken)
        position = next_of(self._newest.end)
        publish_consumer(Path(self._path), self._consumer, position, time.time_ns())
        self._attempts, self.state, self._batch = 0, State.RUNNING, self._newest.batch
        rows, took = sum(one.end - one.first for one in taken), time.monotonic() - begun
        self._rows += rows
        self._rows_per_s = round(rows / took, 1)
        lag = sum(waiting.end - waiting.first for waiting in _waiting(found, position).values())
        line = {"query": self.name, "batch": self._batch, "rows": rows, "rows_per_s": self._rows_per_s}
        return {**line, "lag": lag, "ms": round(took * 1000)}

    def fail(self, problem: str, now: float, restarts: int) -> None:
        """Note a failure: the batch is tried again after a pause, or never after more than `restarts` failures."""
        self.problem = problem
        self._attempts += 1
        if self._attempts > restarts:
            self.state = State.FAILED
            return
        self.restarts += 1
        self.state = State.WAITING
        self._retry_at = now + min(2.0 ** (self._attempts - 1), _MAX_PAUSE_S)

    def facts(self) -> dict[str, Any]:
        """Return the fields that `meshbus pipeline status` shows; those that are not known are None."""
        rows, size, seconds = self._lag or (None, None, None)
        return {
            "name": self.name,
            "state": self.state,
            "batch": self._batch,
            "rows": self._rows,
            "rows_per_s": self._rows_per_s,
            "lag": rows,
            "lag_bytes": size,
            "lag_s": seconds,
            "restarts": self.restarts,
            "problem": self.problem,
        }

    def look(self) -> None:
        """Measure the lag anew; a source that cannot be read leaves it unknown, because the next batch says why."""
        try:
            found = self._source.look()
            self._lag = _measure(found, next_of(self._newest.end) if self._newest else {})
        except LogError:
            self._lag = None

    def _next(self, found: Mapping[str, Seen]) -> Plan | None:
        begun = self._newest.end if self._newest else first_offset(_extents(found), "earliest")
        position = next_of(begun)
        waiting = _waiting(found, position, self._until)
        batch = max(self._writer.last(), self._newest.batch if self._newest else -1) + 1
        ends = next_ends(waiting, self._limit, batch)
        if not ends:
            return None
        logs = {**begun.get("logs", {}), **{name: found[name].extent.log_id for name in ends}}
        # Also where a new log begins: if a part of it expires before a retry, that is a gap.
        start = offset_of({name: waiting[name].first for name in ends} | position, logs)
        return Plan(batch, start, offset_of(position | ends, logs))

    def _ranges(self, plan: Plan, found: Mapping[str, Seen]) -> list[Range]:
        wanted, gaps = ranges(plan.start, plan.end, _extents(found))
        if gaps and self._fail_on_gap:
            raise self._source.gap_error(gaps[0])
        return [Range(name, found[name], first, end) for name, (first, end) in wanted.items()]


def _extents(found: Mapping[str, Seen]) -> dict[str, Any]:
    return {name: seen.extent for name, seen in found.items()}


def _waiting(
    found: Mapping[str, Seen], position: Mapping[str, int], until: Mapping[str, int] | None = None
) -> dict[str, Waiting]:
    """Return what was not read of each log."""
    waiting = {}
    for name, seen in found.items():
        first = max(position.get(name, 0), seen.extent.first)
        end = seen.extent.end if until is None else min(seen.extent.end, until.get(name, 0))
        waiting[name] = Waiting(first, max(first, end), [segment.end for segment in seen.rows.segments])
    return waiting


def _measure(found: Mapping[str, Seen], position: Mapping[str, int]) -> Lag:
    waiting = {name: log for name, log in _waiting(found, position).items() if log.end > log.first}
    oldest = min((_time_of(found[name], log.first) for name, log in waiting.items()), default=None)
    return Lag(
        sum(log.end - log.first for log in waiting.values()),
        round(sum((log.end - log.first) * found[name].extent.row_bytes for name, log in waiting.items())),
        0.0 if oldest is None else round(max(time.time_ns() - oldest, 0) / 1e9, 1),
    )


def _time_of(seen: Seen, number: int) -> int:
    """Return when a row was recorded, in nanoseconds since 1970; now if it has expired meanwhile."""
    try:
        for batch in seen.rows.batches(number, number + 1, [seen.time]):
            return int(batch.column(0)[0].as_py())
    except LogError as error:
        if error.fault is not LogFault.RANGE_GONE:
            raise
    return time.time_ns()
