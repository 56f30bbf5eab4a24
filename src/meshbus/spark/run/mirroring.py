"""Keep the copies of all tables on object storage up to date, in a thread of its own, while a pipeline runs.

A round looks at the tables, gold first, and then brings their copies to what it saw, bronze first: so the copies of gold
and silver never have rows that the copy of their source lacks. The pipeline does not wait for it. A round that fails is
tried again after a growing pause, and `facts` says what waits, for how long, and why. A run that reads everything once
waits at its end (`finish`).

What expires in the tables is removed only when it is in the copy, and stays there (`expire`). The copy of one table is
spark/lake/mirror/tablemirror.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.objectstore import Cancelled, join_uri, show_uri
from meshbus.spark.lake.mirror.ledger import Ledgers, check_place, name_below
from meshbus.spark.lake.mirror.tablemirror import Replaced, TableMirror
from meshbus.spark.lake.mirror.target import target_type
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.failure import sentence_of_failure

if TYPE_CHECKING:
    from meshbus.spark.run.pipelineconfig import PipelineConfig

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses after a failure, each twice the one before: soon back after a short outage, and no burden in a long one."""
_ROUND_S = 1.0
"""Least interval between rounds: a commit for each batch would only make more commits."""
_CLEAN_S = 3600.0
"""How often objects that nothing refers to are searched and deleted; also at the start."""
_POLL_S = 0.05
"""How often a pause looks whether somebody asks to stop."""
_CLOSE_S = 10.0
"""How long a stop waits for a transfer that does not move; the next run does it again."""


class Unmirrored:
    """Stands for the copies of tables that have none."""

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        """Raise PipelineError if the tables had a copy, and what expires would be missing there."""
        self._store = store
        if config.keep_days is not None:
            check_place(store.root, None)

    def start(self) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing."""

    def finish(self, restarts: int, stopping: Callable[[], bool]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def expire(self, name: str, before: datetime) -> int:
        """Remove the files of a table whose rows are all older."""
        return self._store.table(name).expire(before)

    def news(self) -> dict[str, Any] | None:
        """Return nothing."""
        return None

    def facts(self) -> dict[str, Any] | None:
        """Return nothing."""
        return None


class Mirroring(Unmirrored):
    """The copies of the tables of one pipeline."""

    def __init__(self, store: Store, config: PipelineConfig) -> None:
        """Raise PipelineError if the tables have their copy at another place."""
        assert config.mirror is not None
        self._store = store
        self._uri, self._keep_days = config.mirror, config.mirror_keep_days
        self._ledgers = Ledgers(store.root, self._uri)
        # Tables of its own: what a table caches belongs to one thread.
        own = Store(store.root, store.catalog, table_format=store.format)
        self._mirrors = {name: self._mirror(own, name) for name in own.catalog}
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="meshbus-mirror", daemon=True)
        self._problem, self._told = "", ""
        self._failures = 0
        """Consecutive failures."""
        self._behind_since: float | None = time.monotonic()
        """Since when the copies lack something, or may lack something; None if they lack nothing."""
        self._stopping: Callable[[], bool] = lambda: False
        self._cleaned_at: float | None = None

    def _mirror(self, store: Store, name: str) -> TableMirror:
        spec = store.catalog.spec(name)
        uri = join_uri(self._uri, spec.layer, spec.table.name)
        target = target_type(store.format)(uri, spec, self._ledgers.id)
        return TableMirror(store.table(name), store.folder(name), uri, target, self._ledgers[name])

    # ── the thread ──────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin to keep the copies up to date."""
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Start a round soon, because a table may have changed."""
        self._wake.set()

    def _keep(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            if self._attempt():
                self._closing.wait(_ROUND_S)
            else:
                self._closing.wait(self._pause_s())
                self._wake.set()

    def _pause_s(self) -> float:
        return min(_FIRST_PAUSE_S * 2.0 ** max(self._failures - 1, 0), _LONGEST_PAUSE_S)

    def _attempt(self) -> bool:
        """Do a round, and return whether it succeeded."""
        try:
            self._round()
        except (Cancelled, Replaced):
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed, and it is shown
            self._failures += 1
            self._problem = sentence_of_failure(error)
            return False
        self._failures, self._problem = 0, ""
        return True

    def _round(self) -> None:
        mirrors = list(self._mirrors.values())
        changed = [mirror.look() for mirror in reversed(mirrors)]
        if any(changed) and self._behind_since is None:
            self._behind_since = time.monotonic()
        expired = None if self._keep_days is None else datetime.now(UTC) - timedelta(days=self._keep_days)
        for mirror in mirrors:
            mirror.sync(expired=expired, cancelled=lambda: self._closing.is_set() or self._stopping())
        self._behind_since = None
        if self._cleaned_at is None or time.monotonic() - self._cleaned_at >= _CLEAN_S:
            for mirror in mirrors:
                mirror.clean()
            self._cleaned_at = time.monotonic()

    # ── the runner ──────────────────────────────────────────────────────────────────────────

    def finish(self, restarts: int, stopping: Callable[[], bool]) -> None:
        """Wait until the copies have all that the tables have, unless `stopping` returns True.

        Raises PipelineError after more than `restarts` consecutive failures.
        """
        self._end_thread()
        self._closing.clear()
        self._stopping = stopping
        while not stopping() and not self._attempt():
            if self._failures > restarts:
                raise PipelineError(PipelineFault.FAILED, f"the copy at {show_uri(self._uri)}: {self._problem}")
            until = time.monotonic() + (self._pause_s() if self._failures else 0.0)
            while time.monotonic() < until and not stopping():
                time.sleep(_POLL_S)

    def close(self) -> None:
        """End the thread; a transfer that is under way is done again by the next run."""
        self._end_thread(_CLOSE_S)

    def _end_thread(self, timeout_s: float | None = None) -> None:
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def expire(self, name: str, before: datetime) -> int:
        """Remove the files of a table whose rows are all older and that are in the copy; return how many there were."""
        table, ledger = self._store.table(name), self._ledgers[name]
        copied = self._mirrors[name].copied
        old = {path: last for path, last in table.older(before).items() if path in copied}
        if not old:
            return 0
        folder = self._store.folder(name)
        ledger.begin({name_below(folder, path): last for path, last in old.items()})
        try:
            return table.expire(before, old)
        finally:
            ledger.settle(frozenset(name_below(folder, file.path) for file in table.files()))

    def news(self) -> dict[str, Any] | None:
        """Return a line of progress if there is another problem than last time."""
        problem = self._problem
        changed, self._told = problem != self._told, problem
        return {"query": "mirror", "problem": problem} if changed and problem else None

    def facts(self) -> dict[str, Any]:
        """Return the fields that `meshbus pipeline status` shows; those that are not known are None."""
        behind = [mirror.behind for mirror in self._mirrors.values()]
        known = [waiting for waiting in behind if waiting is not None]
        complete, since = len(known) == len(behind), self._behind_since
        return {
            "place": show_uri(self._uri),
            "state": "current" if since is None else "waiting" if self._problem else "copying",
            "files": sum(waiting.files for waiting in known) if complete else None,
            "bytes": sum(waiting.bytes for waiting in known) if complete else None,
            "behind_s": 0.0 if since is None else round(time.monotonic() - since, 1),
            "failures": self._failures,
            "problem": self._problem,
        }


def mirroring_of(store: Store, config: PipelineConfig) -> Unmirrored:
    """Return what keeps the copies of a pipeline's tables; raises PipelineError if that is not possible."""
    return Unmirrored(store, config) if config.mirror is None else Mirroring(store, config)
