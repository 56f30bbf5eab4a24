"""Decode events again, after the declaration of a channel changed: those of a range of time, or those in quarantine.

Events are not read from logs again: silver.events and silver.quarantine together have each of them once, with its payload.
Hour by hour, both are replaced by the result, and the hour is counted anew; all other hours stay as they are. An hour
that a crash interrupted is noted in a file and done again, by the next rebuild or by the next run of the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.spark.lake import silver
from meshbus.spark.lake.counts import COUNTS
from meshbus.spark.lake.decode import decode_rows
from meshbus.spark.lake.minutes import HOUR_FORMAT, start_of_hour
from meshbus.spark.run.counting import count_span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meshbus.spark.lake.codec import Declaration, Stored
    from meshbus.spark.lake.tablestore import Store

_EVENTS, _QUARANTINE = "silver.events", "silver.quarantine"
_UNDER_WAY = "_rebuild.json"


def repair(spark: SparkSession, store: Store, declarations: Sequence[Declaration | Stored]) -> int:
    """Decode quarantined events again, and return how many of them are in silver.events now."""
    before = len(_times(store, _QUARANTINE))
    _rebuild_hours(spark, store, declarations, sorted(_hours(store, _QUARANTINE)))
    return before - len(_times(store, _QUARANTINE))


def rebuild(
    spark: SparkSession, store: Store, declarations: Sequence[Declaration | Stored], start: datetime, end: datetime
) -> list[str]:
    """Decode the events again that were received from `start` until `end`, by whole hours, and return those hours."""
    held = {row["hour"] for row in store.rows("silver.event_counts")} | _hours(store, _QUARANTINE)
    first = start.astimezone(UTC).strftime(HOUR_FORMAT)
    chosen = sorted(hour for hour in held if first <= hour and start_of_hour(hour) < end)
    _rebuild_hours(spark, store, declarations, chosen)
    return chosen


def finish_rebuild(spark: SparkSession, store: Store) -> None:
    """Count the hours anew that an interrupted rebuild has replaced."""
    place = store.root / _UNDER_WAY
    if place.exists():
        for hour in msgspec.json.decode(place.read_bytes(), type=list[str]):
            _count(spark, store, hour)
        place.unlink()


def _rebuild_hours(
    spark: SparkSession, store: Store, declarations: Sequence[Declaration | Stored], hours: Sequence[str]
) -> None:
    finish_rebuild(spark, store)
    for hour in hours:
        (store.root / _UNDER_WAY).write_bytes(msgspec.json.encode([hour]))
        _decode(spark, store, declarations, hour)
        finish_rebuild(spark, store)


def _decode(spark: SparkSession, store: Store, declarations: Sequence[Declaration | Stored], hour: str) -> None:
    held = [store.read(spark, name, [hour]).drop("codec", "value", "problem") for name in (_EVENTS, _QUARANTINE)]
    # A crash between the two replacements below leaves rows in both.
    rows = held[0].unionByName(held[1]).dropDuplicates(["log_id", "seq"])
    decoded = decode_rows(rows, declarations).persist()
    try:
        for name, chosen in ((_EVENTS, silver.accepted(decoded)), (_QUARANTINE, silver.refused(decoded))):
            table = store.table(name)
            staged = table.stage()
            if not chosen.isEmpty():
                store.write_files(chosen, staged)
            table.replace(start_of_hour(hour), start_of_hour(hour) + timedelta(hours=1), staged)
    finally:
        decoded.unpersist()


def _count(spark: SparkSession, store: Store, hour: str) -> None:
    for count in COUNTS:
        if count.source == _EVENTS:
            table = store.table(count.name)
            staged = table.stage()
            start, end = start_of_hour(hour), start_of_hour(hour) + timedelta(hours=1)
            count_span(spark, store, count, start, end, staged)
            table.replace(start, end, staged)


def _hours(store: Store, name: str) -> set[str]:
    import pyarrow.compute as pc

    times = _times(store, name)
    return set(pc.unique(pc.strftime(times, HOUR_FORMAT)).to_pylist()) if len(times) else set()


def _times(store: Store, name: str) -> Any:
    """Return the times of all rows of a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    time = store.catalog.spec(name).time
    parts = [pq.ParquetFile(path).read(columns=[time])[0] for path in store.paths(name)]
    kind = pa.timestamp("us", "UTC")
    return pa.chunked_array([chunk.cast(kind) for part in parts for chunk in part.chunks], kind)
