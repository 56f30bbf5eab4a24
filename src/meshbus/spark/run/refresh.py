"""Recompute gold tables: count new batches, find the hours that are out of date, and replace them.

Each batch of events and packets is counted once (spark/lake/counts.py). Each hour of a gold table stores a fingerprint of
its inputs: the files of count tables, of silver.runs and of the census that have rows of its hour. An hour is due when
its fingerprint differs from the present inputs. No other state is kept, so a crash, a deleted file or a compaction needs
no special handling.

The tables of this project are computed by Arrow in the driver, within milliseconds (spark/run/goldinputs.py). A table that
is a function of DataFrames is computed by Spark, and never delays the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from hashlib import blake2s
from typing import TYPE_CHECKING, Any

from meshbus.spark.lake.counts import COUNTS
from meshbus.spark.lake.goldtable import GoldTable
from meshbus.spark.lake.minutes import HOUR_FORMAT, start_of_hour
from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.counting import count_new
from meshbus.spark.run.goldinputs import GoldInputs
from meshbus.spark.run.smallfiles import SmallFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUICK_TABLES, _SLOW_TABLES = 2, 1
"""Tables computed at the same time: those that take long have a thread of their own, so that the others never wait."""
_SLOW_S = 1.0
"""A table that took this long the last time, or that Spark computes for the first time, takes long."""
_REST = 2.0
"""Pause before a table is computed again, as a multiple of the time that it took."""
_LONGEST_REST_S = 30.0
HOURS_AT_ONCE = 48
"""Hours that are computed together. Bounds the rows of a gold table that the driver holds in memory."""
BYTES_AT_ONCE = 64 << 20
"""Size of the files of a source that Arrow reads together; fewer hours are computed where they have more."""
HOURS_AROUND = 2
"""Hours before and after that are read of a source whose rows hold for later times (`GoldTable.around`): a census has a
snapshot in each hour, and clocks that differ by more than this are not worth every hour's recomputation."""
_ALL_TIME = "all"
"""The only `hour` of a table that is not hourly."""
_COUNTS_OF = {count.source: count.name for count in COUNTS}
"""A count table for each table whose rows are counted: it is small, and tells which hours have new rows."""


class Refresher:
    """Keeps count tables and gold tables up to date."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        subscriptions: Sequence[PrefixSubscription] = (),
        on_counted: Callable[[int, float], None] = lambda _files, _seconds: None,
    ) -> None:
        """Prepare; `on_counted` is called after new batches were counted, with the number of files and the time it took."""
        self._spark, self._store, self._subscriptions, self._on_counted = spark, store, subscriptions, on_counted
        self._since = ""
        self._files = SmallFiles(store)
        self._quick = ThreadPoolExecutor(_QUICK_TABLES, "meshbus-gold")
        self._slow = ThreadPoolExecutor(_SLOW_TABLES, "meshbus-gold-slow")
        self._running: dict[str, Future[int]] = {}
        self._made: dict[str, int] = {}
        """Hours of tables that were computed and are not reported yet."""
        self._rest_until: dict[str, float] = {}
        """When each table may be computed again, by the monotonic clock."""
        self._resting: set[str] = set()
        """Tables that were not looked at last time, because they rest: new rows may have put them out of date."""
        self._took_s: dict[str, float] = {}
        """How long each table took last."""
        self.failing: set[str] = set()
        """Tables whose last computation failed."""

    def refresh(self, since: str = "") -> dict[str, int]:
        """Recompute every hour that is due, and return the number of recomputed hours by table.

        Hours before `since` have expired, and are left alone.
        """
        wait(self._running.values())
        hours = dict.fromkeys(self._store.catalog.gold, 0) | self.begin(since, rested=False)
        wait(self._running.values())
        return hours | self._ended()

    def close(self) -> None:
        """Wait for what is being computed: nobody may write to the tables afterwards."""
        for pool in (self._quick, self._slow):
            pool.shutdown(cancel_futures=True)

    def begin(self, since: str = "", *, rested: bool = True) -> dict[str, int]:
        """Count new batches, begin to recompute what is due, and return what has ended since the last call.

        A table that takes long does not delay the others: with `rested` it is begun again only after a pause in
        proportion, so that none of them takes more than a part of the machine. Raises what went wrong with one.
        """
        self._since = since
        self._count()
        now, hours = time.monotonic(), self._ended()
        self._resting = {name for name, until in self._rest_until.items() if rested and now < until}
        gold = self._store.catalog.gold
        waiting = [name for name in gold if name not in self._running and name not in self._resting]
        inputs = GoldInputs(self._store, self._files)
        present = self._present(gold[name] for name in waiting)
        # The quick ones first: they are fresh while those that take long are computed.
        for name in sorted(waiting, key=lambda name: self._expected_s(gold[name])):
            if due := self._due(gold[name], present):
                pool = self._slow if self._expected_s(gold[name]) >= _SLOW_S else self._quick
                self._running[name] = pool.submit(self._recompute, gold[name], due, inputs)
        return hours

    def _expected_s(self, table: GoldTable) -> float:
        """Return how long a table took last, or a guess."""
        return self._took_s.get(table.spec.name, 0.0 if table.by_arrow else _SLOW_S)

    def _count(self) -> None:
        begun = time.monotonic()
        with self._store.reading():
            files = count_new(self._spark, self._store)
        if files:
            self._on_counted(files, time.monotonic() - begun)

    def _present(self, tables: Iterable[GoldTable]) -> dict[str, list[str]]:
        """Return the files that the hours of some tables depend on, by source: each list is made once."""
        found = {_COUNTS_OF.get(source, source) for table in tables for source in _deciding(table)}
        present = {source: self._store.paths(source) for source in sorted(found)}
        for source, paths in present.items():
            self._files.prune(source, paths)
        return present

    @property
    def running(self) -> bool:
        """Whether a table is being computed."""
        return bool(self._running)

    @property
    def busy(self) -> bool:
        """Whether a table is being computed, or may be out of date because it rests."""
        return bool(self._running or self._resting)

    def _ended(self) -> dict[str, int]:
        """Return the hours that were made since the last call; raises what went wrong, and returns the others next time."""
        failure: BaseException | None = None
        for name, job in [(name, job) for name, job in self._running.items() if job.done()]:
            del self._running[name]
            if error := job.exception():
                self.failing.add(name)
                failure = error
            else:
                self.failing.discard(name)
                self._made[name] = job.result()
        if failure is not None:
            raise failure
        made, self._made = self._made, {}
        return made

    def _recompute(self, table: GoldTable, due: Mapping[str, str], inputs: GoldInputs) -> int:
        """Recompute some hours of one table, and return how many there were."""
        begun = time.monotonic()
        with self._store.reading():
            waiting = sorted(due)
            while waiting:
                hours = _first_hours(table, waiting, inputs)
                self._replace(table, {hour: due[hour] for hour in hours}, inputs)
                waiting = waiting[len(hours) :]
        ended = time.monotonic()
        self._took_s[table.spec.name] = ended - begun
        self._rest_until[table.spec.name] = ended + min(_REST * (ended - begun), _LONGEST_REST_S)
        return len(due)

    def _replace(self, table: GoldTable, due: Mapping[str, str], inputs: GoldInputs) -> None:
        wanted = {source: _wanted(table, source, sorted(due)) for source in table.sources}
        if table.by_arrow:
            rows = table.rows([inputs.rows(table, *one) for one in wanted.items()], self._subscriptions)
        else:
            frames = [self._store.read(self._spark, *one) for one in wanted.items()]
            rows = table.rows(frames, self._subscriptions).toArrow()
        target = self._store.table(table.spec.name)
        # Also hours without result rows: their file records that they are up to date.
        for hour, sources in due.items():
            if table.hourly:
                target.put_hour(hour, _of_hour(rows, hour), sources)
            else:
                target.put_hour(None, rows, sources)

    def _due(self, table: GoldTable, present: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        """Return the hours whose inputs changed, each with the fingerprint of its present inputs."""
        given = sorted((entry.peer, entry.prefix) for entry in self._subscriptions)
        salt = repr(given) if table.with_subscriptions else ""
        found: dict[str, list[str]] = {}
        for source in sorted(_deciding(table), key=table.around.__contains__):
            around, counts = source in table.around, _COUNTS_OF.get(source, source)
            for path in present[counts]:
                for made in self._present_hours(counts, path) if table.hourly else [_ALL_TIME]:
                    # What holds around an hour does not make one: those come first that do.
                    for hour in [hour for hour in _around([made]) if hour in found] if around else [made]:
                        found.setdefault(hour, []).append(path)
        wanted = {
            hour: blake2s("\n".join([salt, *paths]).encode(), digest_size=16).hexdigest()
            for hour, paths in found.items()
        }
        target = self._store.table(table.spec.name)
        return {
            hour: sources
            for hour, sources in wanted.items()
            if target.sources(hour if table.hourly else None) != sources
        }

    def _present_hours(self, source: str, path: str) -> list[str]:
        return [hour for hour in self._files.hours(source, path) if hour >= self._since]


def _deciding(table: GoldTable) -> list[str]:
    """Return the sources whose files decide whether an hour is out of date."""
    return [source for source in table.sources if source not in table.filtered]


def _wanted(table: GoldTable, source: str, hours: Sequence[str]) -> Sequence[str] | None:
    """Return the hours of a source that some hours of a table are computed from; None for all."""
    if not table.hourly:
        return None
    return _around(hours) if source in table.around else hours


def _first_hours(table: GoldTable, hours: Sequence[str], inputs: GoldInputs) -> Sequence[str]:
    """Return the first of some hours, as many as are computed together."""
    count = min(HOURS_AT_ONCE, len(hours))
    while table.by_arrow and table.hourly and count > 1:
        sizes = (inputs.bytes(source, _wanted(table, source, hours[:count])) for source in _deciding(table))
        if max(sizes) <= BYTES_AT_ONCE:
            break
        count //= 2
    return hours[:count]


def _around(hours: Sequence[str]) -> list[str]:
    times = [start_of_hour(hour) for hour in hours]
    steps = range(-HOURS_AROUND, HOURS_AROUND + 1)
    return sorted({f"{time + timedelta(hours=step):{HOUR_FORMAT}}" for time in times for step in steps})


def _of_hour(rows: Any, hour: str) -> Any:
    import pyarrow.compute as pc

    return rows.filter(pc.equal(rows.column("hour"), hour))
