"""gold.traffic_matrix: events and packets between each pair of subnets, per channel and hour."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from meshbus.log.schema import Column, ColumnType
from meshbus.policy.fate import Fate
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import added, stacked
from meshbus.spark.lake.named import subnet_label


def traffic_matrix(events: Any, packets: Any) -> Any:
    """Add up events that arrived and packets that gateways judged, by source, destination and channel."""
    import pyarrow.compute as pc

    keys = ["hour", "src", "dst", "channel"]
    # Packets without recorded subnets have no place in the matrix.
    placed = packets.filter(pc.and_(pc.is_valid(packets["src"]), pc.is_valid(packets["dst"])))
    judged = placed.select(keys)
    for name, fate in (("forwarded", Fate.FORWARDED), ("dropped", Fate.DROPPED)):
        judged = judged.append_column(name, pc.if_else(pc.equal(placed["verdict"], int(fate)), placed["packets"], None))
    both = stacked(events.select([*keys, "events", "bytes"]), judged)
    counts = ("events", "bytes", "forwarded", "dropped")
    return added({name: both[name] for name in keys}, {name: (pc.fill_null(both[name], 0), "sum") for name in counts})


_JUDGED = "What did gateways pass and drop between subnets?"
_ARRIVED = "Between which subnets did events arrive?"


def _draw(rows: Rows, _: Scans) -> Drawn:
    arrived, forwarded, dropped = (_by_pair(rows, name) for name in ("events", "forwarded", "dropped"))
    judged = [
        charts.Cell(*pair, forwarded[pair], dropped[pair]) for pair in forwarded if forwarded[pair] or dropped[pair]
    ]
    logged = [charts.Cell(*pair, count) for pair, count in arrived.items() if count]
    drawn = []
    if judged:
        drawn.append(charts.matrix(judged, title=_JUDGED, unit="packets"))
    if logged:
        drawn.append(charts.matrix(logged, title=_ARRIVED, unit="events"))
    return Drawn(tuple(drawn), rows=_by_channel(rows))


def _by_pair(rows: Rows, name: str) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        sums[subnet_label(row["src"]), subnet_label(row["dst"])] += row[name]
    return sums


def _by_channel(rows: Rows) -> list[dict[str, Any]]:
    """Return a row for each pair of subnets and channel, over all hours."""
    counts = ("events", "bytes", "forwarded", "dropped")
    sums: dict[tuple[str, str, str | None], dict[str, int]] = defaultdict(lambda: dict.fromkeys(counts, 0))
    for row in rows:
        one = sums[subnet_label(row["src"]), subnet_label(row["dst"]), row["channel"]]
        for name in counts:
            one[name] += row[name]
    return [
        {"from": source, "to": dest, "channel": channel, **sums[source, dest, channel]}
        for source, dest, channel in sorted(sums, key=lambda key: [str(part) for part in key])
    ]


TABLE = GoldTable(
    name="traffic_matrix",
    doc="Events that arrived, and packets that gateways forwarded or dropped, by subnets and channel, per hour.",
    columns=(
        Column("src", ColumnType.INT, "Source subnet.", nullable=True, bit_cast=True),
        Column("dst", ColumnType.INT, "Destination subnet.", nullable=True, bit_cast=True),
        Column(
            "channel",
            ColumnType.STRING,
            "Name of the channel; null for packets whose channel is unknown.",
            nullable=True,
        ),
        Column("events", ColumnType.BIGINT, "Events that arrived."),
        Column("bytes", ColumnType.BIGINT, "Payload bytes that arrived."),
        Column(
            "forwarded",
            ColumnType.BIGINT,
            "Packets that gateways forwarded, counted at each, multiplied by the sampling rate.",
        ),
        Column("dropped", ColumnType.BIGINT, "Packets that gateways dropped, in the same unit."),
    ),
    sources=("silver.event_counts", "silver.packet_counts"),
    compute=traffic_matrix,
    by_arrow=True,
    question="Between which subnets were most packets dropped?",
    query="""\
SELECT hex(src) AS src, hex(dst) AS dst, sum(forwarded) AS forwarded, sum(dropped) AS dropped
FROM gold_traffic_matrix GROUP BY src, dst ORDER BY dropped DESC LIMIT 10""",
    section=Section(_JUDGED, "No traffic has been read.", _draw),
)
