"""gold.denials: dropped packets by reason, peer and channel, per hour."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from meshbus.log.schema import Column, ColumnType
from meshbus.policy.fate import Fate
from meshbus.policy.reason import RECORDED
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import GoldTable, Rows, Section
from meshbus.spark.lake.tableschema import ORIGIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def denials(packets: DataFrame) -> DataFrame:
    """Add up the counts of dropped packets."""
    from pyspark.sql import functions as F

    names = F.create_map(*(F.lit(part) for code, reason in RECORDED.items() for part in (code, reason.word)))
    # A recorder of a later version may use codes that this version cannot name.
    reason = F.coalesce(names[F.col("_reason").cast("int")], F.concat(F.lit("code_"), F.col("_reason")))
    dropped = packets.where(F.col("verdict") == int(Fate.DROPPED)).withColumnRenamed("reason", "_reason")
    summed = dropped.groupBy("hour", "recorder", "_reason", "peer", "channel", "origin").agg(
        F.sum("packets").alias("packets"), F.sum("bytes").alias("bytes")
    )
    return summed.withColumn("reason", reason)


def _draw(rows: Rows) -> str:
    reasons: dict[str, int] = defaultdict(int)
    for row in rows:
        reasons[row["reason"]] += row["packets"]
    ranked = sorted(rows, key=lambda row: -row["packets"])
    return charts.bars(sorted(reasons.items(), key=lambda item: -item[1])) + charts.table_of(ranked)


def _facts(rows: Rows) -> dict[str, int]:
    return {"packets denied": sum(row["packets"] for row in rows)}


TABLE = GoldTable(
    name="denials",
    doc="Dropped packets by reason, peer and channel, per hour.",
    columns=(
        Column("recorder", ColumnType.BIGINT, "Node that dropped the packets.", bit_cast=True),
        Column("reason", ColumnType.STRING, "Drop reason, by its name in docs/reasons.md."),
        Column("peer", ColumnType.BIGINT, "Peer that the packets came from.", nullable=True, bit_cast=True),
        Column(
            "channel", ColumnType.STRING, "Name of the channel; null if the recorder does not know it.", nullable=True
        ),
        ORIGIN,
        Column("packets", ColumnType.BIGINT, "Recorded packets, multiplied by the sampling rate."),
        Column("bytes", ColumnType.BIGINT, "Payload bytes in these packets."),
    ),
    sources=("silver.packet_counts",),
    compute=denials,
    question="What was dropped, and why?",
    query="""\
SELECT reason, channel, hex(peer) AS peer, sum(packets) AS packets
FROM gold_denials GROUP BY reason, channel, peer ORDER BY packets DESC LIMIT 10""",
    section=Section("Denials", "No drops have been recorded.", _draw, _facts),
)
