"""gold.fan_out: how many subscribers each channel's events have, per hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import GoldTable, Section
from meshbus.spark.lake.subscribercount import PrefixSubscription, count_subscribers
from meshbus.spark.lake.tableschema import CHANNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fan_out(events: DataFrame, *, subscriptions: Sequence[PrefixSubscription]) -> DataFrame:
    """Count events by channel, and match each channel once against the subscriptions, on the driver."""
    from pyspark.sql import functions as F

    counted = events.groupBy("hour", "channel").agg(F.count("*").alias("events"))
    names = [row["channel"] for row in counted.select("channel").distinct().collect()]
    pairs = list(count_subscribers(names, subscriptions).items())
    known = events.sparkSession.createDataFrame(pairs, "channel STRING, subscribers INT")
    joined = counted.join(F.broadcast(known), "channel", "left").fillna(0, ["subscribers"])
    return joined.withColumn("deliveries", F.col("events") * F.col("subscribers"))


TABLE = GoldTable(
    name="fan_out",
    doc="Number of subscribers and deliveries of each channel, per hour, for the subscriptions in the pipeline's file.",
    columns=(
        CHANNEL,
        Column("subscribers", ColumnType.INT, "Peers with at least one matching prefix."),
        Column("events", ColumnType.BIGINT, "Number of events."),
        Column("deliveries", ColumnType.BIGINT, "Events multiplied by subscribers."),
    ),
    sources=("silver.events",),
    compute=fan_out,
    question="Which channels cause the most deliveries?",
    query="""\
SELECT channel, max(subscribers) AS subscribers, sum(deliveries) AS deliveries
FROM gold_fan_out GROUP BY channel ORDER BY deliveries DESC LIMIT 10""",
    section=Section("Fan-out", "No events have been read."),
    with_subscriptions=True,
)
