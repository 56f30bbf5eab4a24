"""gold.fan_out: how many subscribers each channel's events had, per hour, as their publishers knew them.

Each event is counted with the roster that its publisher had then (spark/lake/rosters.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import GoldTable, Section
from meshbus.spark.lake.rosters import with_rosters
from meshbus.spark.lake.subscribercount import PrefixSubscription, count_subscribers
from meshbus.spark.lake.tableschema import CHANNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fan_out(
    events: DataFrame,
    receipts: DataFrame,
    census: DataFrame,
    rows: DataFrame,
    *,
    subscriptions: Sequence[PrefixSubscription],
) -> DataFrame:
    """Count events and copies by channel: by rosters, else by the subscriptions of the pipeline, else unknown."""
    from pyspark.sql import functions as F

    sent = with_rosters(events, census, rows).groupBy("hour", "channel")
    counted = sent.agg(
        F.sum("events").alias("events"),
        F.sum(F.when(F.col("subscribers").isNull(), F.col("events")).otherwise(0)).alias("unknown"),
        F.max("subscribers").alias("subscribers"),
        F.sum(F.col("copies") * F.col("events")).alias("deliveries"),
    )
    arrived = (
        receipts.where("received")
        .groupBy("hour", "channel")
        .agg(F.countDistinct("recorder").alias("receivers"), F.sum("rows").alias("receipts"))
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
    sources=("silver.event_counts", "silver.receipt_counts", "bronze.census", "silver.events"),
    around=("bronze.census",),
    filtered=("silver.events",),
    compute=fan_out,
    question="Which channels cause the most deliveries?",
    query="""\
SELECT channel, max(subscribers) AS subscribers, sum(deliveries) AS deliveries, sum(receipts) AS receipts
FROM gold_fan_out GROUP BY channel ORDER BY deliveries DESC LIMIT 10""",
    section=Section("Fan-out", "No events have been read."),
    with_subscriptions=True,
)
