"""From silver to gold: each table as one function of the tables before it, and nothing else.

A function takes DataFrames of some hours (or of all time, for `gaps`) and gives the rows of those hours. Nothing is added
to what was there: an hour is made anew whenever what it is made of has changed, so late rows, repairs and retries come
out right by themselves. Which hours are due, and replacing them, is in spark/run/refresh.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from meshbus.policy.fate import REASONS, Fate
from meshbus.policy.prefixes import SubscriptionIndex
from meshbus.spark.lake.tableschema import TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TALKERS = 50
"""Rows of gold.top_talkers in an hour."""
_WINDOW_S = 60
_SHARES = (50, 95, 99)
"""Percentiles of gold.channel_stats."""


class PrefixSubscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One peer's interest, for gold.fan_out and for replays."""

    peer: int
    prefix: str


def channel_stats(events: DataFrame) -> DataFrame:
    """Make gold.channel_stats of silver.events."""
    from pyspark.sql import functions as F

    latency = (F.col("recv_ts_ns") - F.col("ts_ns")) / 1000
    size = F.octet_length("payload")
    stats = events.groupBy("hour", F.window("recv_ts", f"{_WINDOW_S} seconds").alias("_window"), "channel").agg(
        F.count("*").alias("events"),
        F.sum(size).cast("bigint").alias("bytes"),
        F.countDistinct("origin").alias("publishers"),
        (F.count("*") / _WINDOW_S).alias("events_per_s"),
        (F.sum(size) / _WINDOW_S).alias("bytes_per_s"),
        F.percentile(latency, [share / 100 for share in _SHARES]).alias("_latency"),
    )
    latencies = {f"latency_p{share}_us": F.get("_latency", F.lit(at)) for at, share in enumerate(_SHARES)}
    return _shape(stats.withColumns({"window_start": F.col("_window.start"), **latencies}), "gold.channel_stats")


def traffic_matrix(events: DataFrame, packets: DataFrame) -> DataFrame:
    """Make gold.traffic_matrix of silver.events and bronze.packets."""
    from pyspark.sql import functions as F

    keys = ["hour", "src", "dst", "channel"]
    arrived = events.groupBy(*keys).agg(
        F.count("*").alias("events"), F.sum(F.octet_length("payload")).cast("bigint").alias("bytes")
    )
    passed = (
        packets.where(F.col("src").isNotNull() & F.col("dst").isNotNull())
        .groupBy(*keys)
        .agg(
            _sampled(F.col("verdict") == int(Fate.FORWARDED)).alias("forwarded"),
            _sampled(F.col("verdict") == int(Fate.DROPPED)).alias("dropped"),
        )
    )
    counts = ["events", "bytes", "forwarded", "dropped"]
    both = arrived.unionByName(passed, allowMissingColumns=True)
    summed = both.groupBy(*keys).agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in counts))
    return _shape(summed, "gold.traffic_matrix")


def denials(packets: DataFrame) -> DataFrame:
    """Make gold.denials of bronze.packets."""
    from pyspark.sql import functions as F

    words = F.create_map(*(F.lit(part) for known in REASONS.items() for part in known))
    reason = F.coalesce(words[F.col("_reason").cast("int")], F.concat(F.lit("code_"), F.col("_reason")))
    dropped = packets.where(F.col("verdict") == int(Fate.DROPPED)).withColumnsRenamed(
        {"reason": "_reason", "previous_hop": "peer"}
    )
    summed = dropped.groupBy("hour", "recorder", "_reason", "peer", "channel", "origin").agg(
        F.sum("sampling_rate").cast("bigint").alias("packets"),
        F.sum(F.col("payload_len").cast("bigint") * F.col("sampling_rate")).alias("bytes"),
    )
    return _shape(summed.withColumn("reason", reason), "gold.denials")


def top_talkers(events: DataFrame) -> DataFrame:
    """Make gold.top_talkers of silver.events."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    summed = events.groupBy("hour", "origin").agg(
        F.countDistinct("channel").alias("channels"),
        F.count("*").alias("events"),
        F.sum(F.octet_length("payload")).cast("bigint").alias("bytes"),
    )
    order = Window.partitionBy("hour").orderBy(F.desc("bytes"), F.desc("events"), "origin")
    return _shape(summed.withColumn("rank", F.row_number().over(order)).where(f"rank <= {TALKERS}"), "gold.top_talkers")


def replication_lag(bronze: DataFrame) -> DataFrame:
    """Make gold.replication_lag of bronze.events, which has the rows of every replica."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    slim = bronze.select("hour", "channel", "log_id", "seq", "recorder", "recv_ts", "recv_ts_ns")
    replicated = (
        slim.groupBy("hour", "log_id").agg(F.countDistinct("recorder").alias("_replicas")).where("_replicas > 1")
    )
    rows = slim.join(F.broadcast(replicated), ["hour", "log_id"])
    first = F.min("recv_ts_ns").over(Window.partitionBy("hour", "log_id", "seq"))
    rows = rows.withColumn("_delay", (F.col("recv_ts_ns") - first) / 1000).withColumn(
        "window_start", F.window("recv_ts", f"{_WINDOW_S} seconds")["start"]
    )
    stats = rows.groupBy("hour", "window_start", "channel", "log_id", "recorder").agg(
        F.count("*").alias("events"),
        F.max("seq").alias("last_seq"),
        F.percentile("_delay", 0.5).alias("delay_p50_us"),
        F.percentile("_delay", 0.99).alias("delay_p99_us"),
    )
    so_far = Window.partitionBy("hour", "log_id").orderBy("window_start").rangeBetween(Window.unboundedPreceding, 0)
    return _shape(
        stats.withColumn("behind", F.max("last_seq").over(so_far) - F.col("last_seq")), "gold.replication_lag"
    )


def fan_out(events: DataFrame, subscriptions: Sequence[PrefixSubscription]) -> DataFrame:
    """Make gold.fan_out of silver.events: the channels are matched by the node's own prefix kernel."""
    from pyspark.sql import functions as F

    counted = events.groupBy("hour", "channel").agg(F.count("*").alias("events"))
    names = [row["channel"] for row in counted.select("channel").distinct().collect()]
    matched = match_channels(names, subscriptions)
    pairs = [(name, peers) for name, peers in matched.items()]
    known = events.sparkSession.createDataFrame(pairs, "channel STRING, subscribers INT")
    joined = counted.join(F.broadcast(known), "channel", "left").fillna(0, ["subscribers"])
    return _shape(joined.withColumn("deliveries", F.col("events") * F.col("subscribers")), "gold.fan_out")


def match_channels(channels: Iterable[str], subscriptions: Iterable[PrefixSubscription]) -> dict[str, int]:
    """Say how many peers each channel's events go to."""
    index = SubscriptionIndex()
    for subscription in subscriptions:
        index.subscribe(subscription.peer, subscription.prefix.encode())
    return {channel: len(index.match(channel.encode())) for channel in channels}


def gaps(runs: DataFrame) -> DataFrame:
    """Make gold.gaps of silver.runs, over all time: stretches are put together, and what is between them is missing."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    whose = ["kind", "channel", "log_id", "origin"]
    ordered = Window.partitionBy(*whose).orderBy("first", "last")
    before = F.max("last").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    rows = runs.withColumn("_before", before)
    hole = F.col("first") > F.col("_before") + 1
    rows = rows.withColumns(
        {
            "_missing": F.when(hole, F.col("first") - F.col("_before") - 1),
            "_from": F.when(hole, F.col("_before") + 1),
            "_to": F.when(hole, F.col("first") - 1),
        }
    )
    summed = rows.groupBy(*whose).agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("events").alias("_rows"),
        F.coalesce(F.sum("_missing"), F.lit(0)).cast("bigint").alias("missing"),
        F.count("_missing").alias("holes"),
        F.min("_from").alias("first_missing"),
        F.max("_to").alias("last_missing"),
        F.sum("reordered").alias("reordered"),
    )
    seen = F.col("last") - F.col("first") + 1 - F.col("missing")
    return _shape(summed.withColumns({"events": seen, "duplicates": F.col("_rows") - seen}), "gold.gaps")


def _sampled(condition: Column) -> Column:
    """Count packets that fulfil a condition, each as many times as it stands for."""
    from pyspark.sql import functions as F

    return F.sum(F.when(condition, F.col("sampling_rate")).otherwise(0)).cast("bigint")


def _shape(rows: DataFrame, name: str) -> DataFrame:
    """Bring rows to the columns and types of a table."""
    from pyspark.sql import functions as F

    return rows.select(*(F.col(field.name).cast(field.dataType) for field in TABLES[name].struct()))
