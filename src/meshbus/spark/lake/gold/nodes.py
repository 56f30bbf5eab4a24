"""gold.nodes: every node that a census names, once, with the ids by which other tables know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.census import FactKind
from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import GoldTable, Rows, Section

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def nodes(census: DataFrame) -> DataFrame:
    """Return the latest that is known about each node: what it says of itself, otherwise what its peers say."""
    from pyspark.sql import functions as F

    described = census.where(F.col("node_id").isNotNull())
    own = F.col("kind") == FactKind.SNAPSHOT.value

    def latest(name: str) -> SparkColumn:
        known = F.col(name).isNotNull()
        said = (F.max_by(name, F.when(which, F.col("ts_ns"))) for which in (known & own, known))
        return F.coalesce(*said).alias(name)

    return described.groupBy("node_id").agg(
        *map(latest, ("origin", "entity", "name", "subnet")),
        F.min("ts").alias("first_seen"),
        F.max("ts").alias("last_seen"),
        F.countDistinct("recorder").alias("recorders"),
    )


def _draw(rows: Rows) -> str:
    shown = [
        {"node_id": row["node_id"], "name": row["name"], "subnet": charts.subnet_label(row["subnet"]),
         "origin": row["origin"], "first_seen": row["first_seen"], "last_seen": row["last_seen"]}
        for row in sorted(rows, key=lambda row: (row["name"] or "~", row["node_id"]))
    ]  # fmt: skip
    return charts.table_of(shown)


def _facts(rows: Rows) -> dict[str, int]:
    return {"nodes": len(rows)}


TABLE = GoldTable(
    name="nodes",
    doc="Each node that is known: its ids, its name, its subnet, and when it was seen.",
    columns=(
        Column(
            "node_id",
            ColumnType.BIGINT,
            "The id of the node in every table: `recorder`, `peer`, `previous_hop` and `next_hop` are node ids.",
            bit_cast=True,
        ),
        Column(
            "origin",
            ColumnType.BIGINT,
            "Its origin hash, which marks what it published; null if its key is unknown.",
            nullable=True,
            bit_cast=True,
        ),
        Column("entity", ColumnType.BINARY, "Its public key; null if unknown.", nullable=True),
        Column("name", ColumnType.STRING, "The name that it announced last, if any.", nullable=True),
        Column("subnet", ColumnType.INT, "Its latest subnet; null if unknown.", nullable=True, bit_cast=True),
        Column("first_seen", ColumnType.TIMESTAMP, "When it was first known to a node."),
        Column("last_seen", ColumnType.TIMESTAMP, "When it was last described."),
        Column("recorders", ColumnType.BIGINT, "Nodes that knew it, itself included."),
    ),
    sources=("bronze.census",),
    compute=nodes,
    question="Which nodes are there?",
    query="""\
SELECT name, hex(node_id) AS node_id, hex(origin) AS origin, first_seen, last_seen
FROM gold_nodes ORDER BY name, node_id""",
    section=Section("Nodes", "No node has written what it knows.", _draw, _facts),
    hourly=False,
)
