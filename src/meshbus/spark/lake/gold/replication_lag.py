"""gold.replication_lag: how far each replica of a log is behind, per minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import GoldTable, Section
from meshbus.spark.lake.minutes import start_of_minute
from meshbus.spark.lake.narrow import near_names
from meshbus.spark.lake.tableschema import CHANNEL, WINDOW_START

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replication_lag(receipts: DataFrame, bronze: DataFrame) -> DataFrame:
    """Compare the rows of all replicas; only bronze has them, because silver keeps each event once."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    # Most logs have one replica: counts tell which rows need not be read.
    replicated = receipts.groupBy("hour", "channel", "log_id").agg(F.countDistinct("recorder").alias("_replicas"))
    replicated = replicated.where("_replicas > 1").drop("_replicas")
    channels = [row["channel"] for row in replicated.select("channel").distinct().collect()]
    slim = bronze.select("hour", "channel", "log_id", "seq", "recorder", "recv_ts", "recv_ts_ns")
    # Files hold few channels, so that a filter by channel leaves out most of them.
    rows = slim.where(near_names(F.col("channel"), channels)).join(
        F.broadcast(replicated), ["hour", "channel", "log_id"]
    )
    first = F.min("recv_ts_ns").over(Window.partitionBy("hour", "log_id", "seq"))
    start = F.timestamp_micros(start_of_minute(F.unix_micros("recv_ts")))
    rows = rows.withColumns({"_delay": (F.col("recv_ts_ns") - first) / 1000, "window_start": start})
    stats = rows.groupBy("hour", "window_start", "channel", "log_id", "recorder").agg(
        F.count("*").alias("events"),
        F.max("seq").alias("last_seq"),
        F.percentile("_delay", 0.5).alias("delay_p50_us"),
        F.percentile("_delay", 0.99).alias("delay_p99_us"),
    )
    # A replica may have written nothing in the last minute, so compare with the highest sequence so far.
    so_far = Window.partitionBy("hour", "log_id").orderBy("window_start").rangeBetween(Window.unboundedPreceding, 0)
    return stats.withColumn("behind", F.max("last_seq").over(so_far) - F.col("last_seq"))


TABLE = GoldTable(
    name="replication_lag",
    doc="Delay of each replica of a log behind the first replica that has an event, per minute; only replicated logs.",
    columns=(
        WINDOW_START,
        CHANNEL,
        Column("log_id", ColumnType.BINARY_16, "Id of the log, shared by its replicas."),
        Column("recorder", ColumnType.BIGINT, "Node that holds the replica.", bit_cast=True),
        Column("events", ColumnType.BIGINT, "Events that it wrote."),
        Column("last_seq", ColumnType.BIGINT, "Its highest sequence."),
        Column(
            "behind",
            ColumnType.BIGINT,
            "Sequences by which the most advanced replica was ahead at the end of the minute.",
        ),
        Column("delay_p50_us", ColumnType.DOUBLE, "Median delay behind the first replica, in microseconds."),
        Column("delay_p99_us", ColumnType.DOUBLE, "99th percentile of the same."),
    ),
    sources=("silver.receipt_counts", "bronze.events"),
    filtered=("bronze.events",),
    compute=replication_lag,
    question="Which replicas are behind?",
    query="""\
SELECT channel, hex(recorder) AS recorder, max(behind) AS behind, max(delay_p99_us) AS delay_p99_us
FROM gold_replication_lag GROUP BY channel, recorder ORDER BY behind DESC LIMIT 10""",
    section=Section("Replication lag", "No log with replicas has been read."),
)
