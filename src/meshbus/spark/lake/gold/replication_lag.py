"""gold.replication_lag: how far each replica of a log is behind, per minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import WINDOW_S, WINDOW_START, GoldTable, Section
from meshbus.spark.lake.tableschema import CHANNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replication_lag(bronze: DataFrame) -> DataFrame:
    """Compare the rows of all replicas; only bronze has them, because silver keeps each event once."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    slim = bronze.select("hour", "channel", "log_id", "seq", "recorder", "recv_ts", "recv_ts_ns")
    # Most logs have one replica; leave them out before the sort by sequence.
    replicated = (
        slim.groupBy("hour", "log_id").agg(F.countDistinct("recorder").alias("_replicas")).where("_replicas > 1")
    )
    rows = slim.join(F.broadcast(replicated), ["hour", "log_id"])
    first = F.min("recv_ts_ns").over(Window.partitionBy("hour", "log_id", "seq"))
    rows = rows.withColumn("_delay", (F.col("recv_ts_ns") - first) / 1000).withColumn(
        "window_start", F.window("recv_ts", f"{WINDOW_S} seconds")["start"]
    )
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
    sources=("bronze.events",),
    compute=replication_lag,
    question="Which replicas are behind?",
    query="""\
SELECT channel, hex(recorder) AS recorder, max(behind) AS behind, max(delay_p99_us) AS delay_p99_us
FROM gold_replication_lag GROUP BY channel, recorder ORDER BY behind DESC LIMIT 10""",
    section=Section("Replication lag", "No log with replicas has been read."),
)
