"""gold.nodes: every node that a census names, once, with the ids by which other tables know it."""

from __future__ import annotations

from typing import Any

from meshbus.log.census import FactKind
from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import Groups
from meshbus.spark.lake.named import subnet_label


def nodes(census: Any) -> Any:
    """Return the latest that is known about each node: what it says of itself, otherwise what its peers say."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pa.array([FactKind.SNAPSHOT.value, FactKind.NODE.value])
    described = census.filter(pc.is_in(census["kind"], kinds)).sort_by("ts_ns")
    groups = Groups(described, ["node_id"])
    own = pc.equal(described["kind"], FactKind.SNAPSHOT.value)
    said = {name: described[name] for name in ("origin", "entity", "name", "subnet")}
    of_itself = {name: pc.if_else(own, column, pa.scalar(None, column.type)) for name, column in said.items()}
    # The last value that is not null.
    own_words, all_words = (
        groups.add_up({name: (column, "last") for name, column in told.items()}) for told in (of_itself, said)
    )
    seen = groups.add_up(
        {
            "first_seen": (described["ts"], "min"),
            "last_seen": (described["ts"], "max"),
            "recorders": (described["recorder"], "count_distinct"),
        }
    )
    for name in said:
        seen = seen.append_column(name, pc.coalesce(own_words[name], all_words[name]))
    return seen


def _draw(rows: Rows, _: Scans) -> Drawn:
    shown = [
        {"name": row["name"], "subnet": subnet_label(row["subnet"]), "first_seen": row["first_seen"],
         "last_seen": row["last_seen"], "node_id": row["node_id"], "origin": row["origin"]}
        for row in sorted(rows, key=lambda row: (row["name"] or "~", row["node_id"]))
    ]  # fmt: skip
    return Drawn(rows=shown)


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
    by_arrow=True,
    question="Which nodes are there?",
    query="""\
SELECT name, hex(node_id) AS node_id, hex(origin) AS origin, first_seen, last_seen
FROM gold_nodes ORDER BY name, node_id""",
    section=Section("Which nodes are there?", "No node has written what it knows.", _draw, _facts),
    hourly=False,
)
