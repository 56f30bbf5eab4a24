"""How many subscribers each event had: event counts, with the roster that the publisher had at the time.

A publisher writes its rosters into its census (log/census.py) whenever they change, by the clock that also stamps its
events. In nearly every minute no roster changes, so all events of the minute have the roster of its start, and counts by
minute are enough. Only events of a minute in which it changed are compared one by one, and only those rows are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.census import FactKind
from meshbus.spark.lake.minutes import MINUTE_NS, start_of_minute
from meshbus.spark.lake.narrow import near_names, near_steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOSE = ["channel", "origin"]
_STATE = ["subscribers", "copies"]
_FACT, _MINUTE = 1, 2
"""Order of rows of equal time: what a publisher wrote (a snapshot, 0, before a roster) holds from that time on."""


def with_rosters(events: DataFrame, census: DataFrame, rows: DataFrame) -> DataFrame:
    """Return numbers of events by hour, channel, subscribers and copies; both are null where no roster is recorded.

    `events` are event counts, and `rows` the events themselves.
    """
    from pyspark.sql import functions as F

    minute = (F.unix_micros("sent_minute") * 1000).alias("_minute")
    sent = events.groupBy("hour", *_WHOSE, minute).agg(F.sum("events").alias("events"))
    periods = _periods(sent.where("_minute IS NOT NULL").select(*_WHOSE, "_minute").distinct(), census)
    periods = periods.localCheckpoint()  # used three times: a few rows that take many steps to compute
    # Without a time of publication an event has no roster.
    steady = sent.join(periods.where("_from = _minute"), [*_WHOSE, "_minute"], "left").where(
        "_periods IS NULL OR _periods = 1"
    )
    steady = steady.select("hour", "channel", *_STATE, "events")
    split = periods.where("_periods > 1")
    changed = split.agg(F.collect_set("_minute").alias("minutes"), F.collect_set("channel").alias("channels")).first()
    if changed is None or not changed["minutes"]:
        return steady
    at = F.col("ts_ns")
    near = rows.where(
        near_steps(at, changed["minutes"], MINUTE_NS) & near_names(F.col("channel"), changed["channels"])
    ).select("hour", *_WHOSE, "ts_ns", start_of_minute(at, MINUTE_NS).alias("_minute"))
    compared = near.join(F.broadcast(split), [*_WHOSE, "_minute"]).where(
        (at >= F.col("_from")) & (at < F.col("_until"))
    )
    return steady.unionByName(compared.groupBy("hour", "channel", *_STATE).agg(F.count("*").alias("events")))


def _periods(minutes: DataFrame, census: DataFrame) -> DataFrame:
    """Divide minutes at the times when a roster changed.

    Returns `_from`, `_until` and the roster of each period, and the number of periods of its minute as `_periods`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    marks = minutes.withColumns({"_at": F.col("_minute"), "_order": F.lit(_MINUTE), "_seq": F.lit(0)})
    rows = _facts(minutes.select(*_WHOSE).distinct(), census).unionByName(marks, allowMissingColumns=True)
    ordered = Window.partitionBy(*_WHOSE).orderBy("_at", "_order", "_seq")
    so_far = ordered.rowsBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumns({name: F.last(name, ignorenulls=True).over(so_far) for name in _STATE})
    # Of several rows of one time, the last holds. A snapshot repeats what is known, which is no change.
    rows = rows.withColumn("_next", F.lead("_at").over(ordered)).where("_next IS NULL OR _next > _at")
    before = [F.lag(name).over(ordered).eqNullSafe(F.col(name)) for name in _STATE]
    rows = rows.withColumn("_same", before[0] & before[1]).where(f"_order = {_MINUTE} OR NOT _same")
    own = Window.partitionBy(*_WHOSE, "_minute")
    rows = rows.withColumn("_minute", start_of_minute(F.col("_at"), MINUTE_NS)).withColumns(
        {
            "_until": F.coalesce(F.lead("_at").over(own.orderBy("_at")), F.col("_minute") + MINUTE_NS),
            "_periods": F.count("*").over(own),
            "_order": F.max("_order").over(own),
        }
    )
    # A minute without a mark has no events.
    return rows.where(f"_order = {_MINUTE}").select(
        *_WHOSE, "_minute", F.col("_at").alias("_from"), "_until", "_periods", *_STATE
    )


def _facts(channels: DataFrame, census: DataFrame) -> DataFrame:
    """Return what publishers wrote about the subscribers of some channels."""
    from pyspark.sql import functions as F

    when = (F.col("ts_ns").alias("_at"), F.col("seq").alias("_seq"))
    starts = census.where(F.col("kind") == FactKind.SNAPSHOT.value).select("recorder", "origin", *when)
    # After a snapshot, a channel has no subscribers until a roster says otherwise.
    empty = (
        starts.drop("recorder")
        .join(F.broadcast(channels), "origin")
        .withColumns({"_order": F.lit(0), "subscribers": F.lit(0), "copies": F.lit(0)})
    )
    told = (
        census.where(F.col("kind") == FactKind.ROSTER.value)
        .select("recorder", "channel", "subscribers", "copies", *when)
        .join(F.broadcast(starts.select("recorder", "origin").distinct()), "recorder")
        .drop("recorder")
        .withColumn("_order", F.lit(_FACT))
    )
    return told.unionByName(empty)
