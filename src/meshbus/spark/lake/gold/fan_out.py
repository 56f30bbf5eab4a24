"""gold.fan_out: how many subscribers each channel's events had, per hour, as their publishers knew them.

A publisher writes its rosters into its census (log/census.py) whenever they change, by the clock that also stamps its
events, so each event is counted with the roster that it was sent to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshbus.log.census import FactKind
from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import GoldTable, Section
from meshbus.spark.lake.receipts import received
from meshbus.spark.lake.subscribercount import PrefixSubscription, count_subscribers
from meshbus.spark.lake.tableschema import CHANNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fan_out(
    events: DataFrame, receipts: DataFrame, census: DataFrame, *, subscriptions: Sequence[PrefixSubscription]
) -> DataFrame:
    """Count events and copies by channel: by rosters, else by the subscriptions of the pipeline, else unknown."""
    from pyspark.sql import functions as F

    sent = _with_rosters(events, census).groupBy("hour", "channel")
    counted = sent.agg(
        F.count("*").alias("events"),
        F.count_if(F.col("subscribers").isNull()).alias("unknown"),
        F.max("subscribers").alias("subscribers"),
        F.sum("copies").alias("deliveries"),
    )
    arrived = (
        received(receipts)
        .groupBy("hour", "channel")
        .agg(F.countDistinct("recorder").alias("receivers"), F.count("*").alias("receipts"))
    )
    counted = counted.join(arrived, ["hour", "channel"], "left").fillna(0, ["receivers", "receipts"])
    if not subscriptions:
        return counted
    # Channels are matched once each, on the driver.
    names = [row["channel"] for row in counted.select("channel").distinct().collect()]
    pairs = list(count_subscribers(names, subscriptions).items())
    known = events.sparkSession.createDataFrame(pairs, "channel STRING, _told INT")
    told = counted.join(F.broadcast(known), "channel", "left").fillna(0, ["_told"])
    guessed = F.col("unknown") > 0
    return told.withColumns(
        {
            "subscribers": F.greatest("subscribers", F.when(guessed, F.col("_told"))),
            "deliveries": F.coalesce("deliveries", F.lit(0)) + F.col("unknown") * F.col("_told"),
            "unknown": F.lit(0),
        }
    )


def _with_rosters(events: DataFrame, census: DataFrame) -> DataFrame:
    """Return a row for each event with the roster that its publisher had then; null where that is not recorded."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    sent = events.select("hour", "channel", "origin", F.col("ts_ns").alias("_at"), F.lit(2).alias("_order"))
    when = (F.col("ts_ns").alias("_at"), F.col("seq").alias("_seq"))
    starts = census.where(F.col("kind") == FactKind.SNAPSHOT.value).select("recorder", "origin", *when)
    # After a snapshot, a channel has no subscribers until a roster says otherwise.
    empty = (
        starts.drop("recorder")
        .join(F.broadcast(sent.select("origin", "channel").distinct()), "origin")
        .withColumns({"_order": F.lit(0), "subscribers": F.lit(0), "copies": F.lit(0)})
    )
    rosters = (
        census.where(F.col("kind") == FactKind.ROSTER.value)
        .select("recorder", "channel", "subscribers", "copies", *when)
        .join(F.broadcast(starts.select("recorder", "origin").distinct()), "recorder")
        .drop("recorder")
        .withColumn("_order", F.lit(1))
    )
    rows = sent.unionByName(rosters, allowMissingColumns=True).unionByName(empty, allowMissingColumns=True)
    ordered = Window.partitionBy("channel", "origin").orderBy("_at", "_order", "_seq")
    so_far = ordered.rowsBetween(Window.unboundedPreceding, 0)
    latest = {name: F.last(name, ignorenulls=True).over(so_far) for name in ("subscribers", "copies")}
    # Without a time of publication an event comes first, and so has no roster.
    return rows.withColumns(latest).where(F.col("_order") == 2)


TABLE = GoldTable(
    name="fan_out",
    doc="Number of subscribers and deliveries of each channel, per hour, as the publishers' rosters were at the time.",
    columns=(
        CHANNEL,
        Column(
            "subscribers",
            ColumnType.INT,
            "Largest number of subscribers that a publisher had for an event; null if no roster is recorded.",
            nullable=True,
        ),
        Column("events", ColumnType.BIGINT, "Number of events."),
        Column(
            "deliveries",
            ColumnType.BIGINT,
            "Copies that the publishers sent: each event to each subscriber, and to one member of each group; null if no"
            " roster is recorded.",
            nullable=True,
        ),
        Column("unknown", ColumnType.BIGINT, "Events without a recorded roster, which `deliveries` leaves out."),
        Column("receivers", ColumnType.BIGINT, "Nodes whose logs show that they received events."),
        Column("receipts", ColumnType.BIGINT, "Events in the logs of receivers, once for each."),
    ),
    sources=("silver.events", "bronze.events", "bronze.census"),
    around=("bronze.census",),
    compute=fan_out,
    question="Which channels cause the most deliveries?",
    query="""\
SELECT channel, max(subscribers) AS subscribers, sum(deliveries) AS deliveries, sum(receipts) AS receipts
FROM gold_fan_out GROUP BY channel ORDER BY deliveries DESC LIMIT 10""",
    section=Section("Fan-out", "No events have been read."),
    with_subscriptions=True,
)
