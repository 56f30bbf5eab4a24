"""Recompute gold tables: find the hours that are out of date, and replace them.

Each file of a gold table stores a fingerprint of its inputs: the parts of the source tables that have rows of its hour.
An hour is due when its fingerprint differs from the present inputs. No other state is kept, so a crash, a deleted file, a
repaired quarantine or a compaction needs no special handling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import blake2s
from typing import TYPE_CHECKING, Any

from meshbus.spark.lake.goldtable import GoldTable
from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.lake.tablestore import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARALLEL_TABLES = 3
"""Tables computed at the same time: Spark plans one on the driver while it runs the others."""
HOURS_PER_QUERY = 48
"""Hours computed by one query. Bounds the rows of a gold table that the driver holds in memory."""
HOURS_AROUND = 2
"""Hours before and after that are read of a source whose rows hold for later times (`GoldTable.around`): a census has a
snapshot in each hour, and clocks that differ by more than this are not worth every hour's recomputation."""
_HOUR = "%Y-%m-%dT%H"
_ALL_TIME = "all"
"""The only `hour` of a table that is not hourly."""


def refresh(spark: SparkSession, store: Store, subscriptions: Sequence[PrefixSubscription] = ()) -> dict[str, int]:
    """Recompute every hour that is due, and return the number of recomputed hours by table."""
    gold = store.catalog.gold
    with store.reading(), ThreadPoolExecutor(_PARALLEL_TABLES) as pool:
        counts = pool.map(lambda table: _recompute(spark, store, table, subscriptions), gold.values())
        return dict(zip(gold, counts, strict=True))


def _recompute(spark: SparkSession, store: Store, table: GoldTable, subscriptions: Sequence[PrefixSubscription]) -> int:
    """Recompute the hours of one table that are due, and return how many there were."""
    name = table.spec.name
    salt = repr(sorted((entry.peer, entry.prefix) for entry in subscriptions)) if table.with_subscriptions else ""
    due = _due(store, table, salt)
    hours = sorted(due)
    for start in range(0, len(hours), HOURS_PER_QUERY):
        chosen = hours[start : start + HOURS_PER_QUERY]
        frames = [store.read(spark, source, _wanted(table, source, chosen)) for source in table.sources]
        rows = table.rows(frames, subscriptions).toArrow()
        # Also hours without result rows: their file records that they are up to date.
        for hour in chosen:
            if table.hourly:
                store.put_gold(name, hour, _of_hour(rows, hour), due[hour])
            else:
                store.put_gold(name, None, rows, due[hour])
    return len(due)


def _due(store: Store, table: GoldTable, salt: str) -> Mapping[str, str]:
    """Return the hours whose inputs changed, each with the fingerprint of its present inputs."""
    found: dict[str, list[str]] = {}
    for source in sorted(table.sources, key=table.around.__contains__):
        around = source in table.around
        for part in store.parts(source):
            for made in part.hours() if table.hourly else [_ALL_TIME]:
                stamp = f"{source}/{part.path.name}@{part.made_ns(made)}"
                # What holds around an hour does not make one: those come first that do.
                for hour in [hour for hour in _around([made]) if hour in found] if around else [made]:
                    found.setdefault(hour, []).append(stamp)
    wanted = {
        hour: blake2s("\n".join([salt, *parts]).encode(), digest_size=16).hexdigest() for hour, parts in found.items()
    }
    name = table.spec.name
    return {
        hour: sources
        for hour, sources in wanted.items()
        if store.gold_sources(name, hour if table.hourly else None) != sources
    }


def _wanted(table: GoldTable, source: str, hours: Sequence[str]) -> Sequence[str] | None:
    """Return the hours of a source that some hours of a table are computed from; None for all."""
    if not table.hourly:
        return None
    return _around(hours) if source in table.around else hours


def _around(hours: Sequence[str]) -> list[str]:
    times = [datetime.strptime(hour, _HOUR).replace(tzinfo=UTC) for hour in hours]
    steps = range(-HOURS_AROUND, HOURS_AROUND + 1)
    return sorted({f"{time + timedelta(hours=step):{_HOUR}}" for time in times for step in steps})


def _of_hour(rows: Any, hour: str) -> Any:
    import pyarrow.compute as pc

    return rows.filter(pc.equal(rows.column("hour"), hour))
