"""Keeping gold true: which hours are due, and making them anew.

An hour of a gold table says in its file what it was made of: the parts of the tables before it that have rows of that
hour. Where that differs from what is there now, the hour is due. Nothing else is remembered, so a crash, a deleted file,
a repaired quarantine or a compaction need no special care.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2s
from typing import TYPE_CHECKING

from meshbus.spark.lake import gold
from meshbus.spark.lake.gold import PrefixSubscription
from meshbus.spark.lake.tableschema import TABLES
from meshbus.spark.lake.tablestore import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_AT_ONCE = 3
"""Tables made at the same time: while Spark plans one, it runs another."""
HOURS_AT_ONCE = 48
"""Hours made in one go: what the driver holds of a gold table in memory."""

_SOURCES = {
    "gold.channel_stats": ("silver.events",),
    "gold.traffic_matrix": ("silver.events", "bronze.packets"),
    "gold.gaps": ("silver.runs",),
    "gold.denials": ("bronze.packets",),
    "gold.top_talkers": ("silver.events",),
    "gold.replication_lag": ("bronze.events",),
    "gold.fan_out": ("silver.events",),
}
"""What each table is made of."""


def refresh(spark: SparkSession, store: Store, subscriptions: Sequence[PrefixSubscription] = ()) -> dict[str, int]:
    """Make every hour anew that is due, and give how many those were, table by table."""
    makers: dict[str, Callable[..., DataFrame]] = {
        "gold.channel_stats": gold.channel_stats,
        "gold.traffic_matrix": gold.traffic_matrix,
        "gold.gaps": gold.gaps,
        "gold.denials": gold.denials,
        "gold.top_talkers": gold.top_talkers,
        "gold.replication_lag": gold.replication_lag,
        "gold.fan_out": lambda events: gold.fan_out(events, subscriptions),
    }
    with store.reading(), ThreadPoolExecutor(_AT_ONCE) as pool:
        counts = pool.map(lambda name: _make(spark, store, name, makers[name], subscriptions), _SOURCES)
        return dict(zip(_SOURCES, counts, strict=True))


def _make(
    spark: SparkSession,
    store: Store,
    name: str,
    maker: Callable[..., DataFrame],
    subscriptions: Sequence[PrefixSubscription],
) -> int:
    """Make the hours of one table anew that are due."""
    salt = repr(sorted((entry.peer, entry.prefix) for entry in subscriptions)) if name == "gold.fan_out" else ""
    due = _due(store, name, salt)
    hours = sorted(due)
    for start in range(0, len(hours), HOURS_AT_ONCE):
        chosen = hours[start : start + HOURS_AT_ONCE]
        whole = not TABLES[name].hourly
        frames = [store.read(spark, source, None if whole else chosen) for source in _SOURCES[name]]
        rows = maker(*frames).toArrow()
        for hour in chosen:
            store.put_gold(name, None if whole else hour, rows if whole else _of_hour(rows, hour), due[hour])
    return len(due)


def _due(store: Store, name: str, salt: str) -> Mapping[str, str]:
    """Give the hours of a table that are not made of what is there now, with what that is."""
    found: dict[str, list[str]] = {}
    for source in _SOURCES[name]:
        for part in store.parts(source):
            for hour in part.hours() if TABLES[name].hourly else ["all"]:
                found.setdefault(hour, []).append(f"{source}/{part.path.name}@{part.made_ns(hour)}")
    wanted = {
        hour: blake2s("\n".join([salt, *parts]).encode(), digest_size=16).hexdigest() for hour, parts in found.items()
    }
    return {
        hour: sources
        for hour, sources in wanted.items()
        if store.gold_sources(name, hour if TABLES[name].hourly else None) != sources
    }


def _of_hour(rows: object, hour: str) -> object:
    import pyarrow.compute as pc

    return rows.filter(pc.equal(rows.column("hour"), hour))  # type: ignore[attr-defined]
