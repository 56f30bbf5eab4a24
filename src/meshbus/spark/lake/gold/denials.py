"""gold.denials: dropped packets by reason, peer and channel, per hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from meshbus.log.schema import Column, ColumnType
from meshbus.policy.fate import Fate
from meshbus.policy.reason import RECORDED
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.grouping import added
from meshbus.spark.lake.named import label
from meshbus.spark.lake.tableschema import ORIGIN


def denials(packets: Any) -> Any:
    """Add up the counts of dropped packets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    dropped = packets.filter(pc.equal(packets["verdict"], int(Fate.DROPPED)))
    keys = ("hour", "recorder", "reason", "peer", "channel", "origin")
    summed = added(
        {name: dropped[name] for name in keys}, {name: (dropped[name], "sum") for name in ("packets", "bytes")}
    )
    words = [_word(code) for code in summed["reason"].to_pylist()]
    return summed.set_column(summed.schema.get_field_index("reason"), "reason", pa.array(words, pa.string()))


def _word(code: int) -> str:
    """Return the name of a reason; a recorder of a later version may use codes that this version cannot name."""
    return RECORDED[code].word if code in RECORDED else f"code_{code}"


_TITLE = "What was dropped, why, and whose was it?"


def _draw(rows: Rows, _: Scans) -> Drawn:
    parts: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        parts[row["reason"], label(_publisher(row))] += row["packets"]
    chart = charts.stacked_bars(parts, title=_TITLE, unit="packets", what="publisher")
    sentences = {reason.word: reason.sentence for reason in RECORDED.values()}
    words = {word: sentences.get(word, "a reason of a later version") for word in sorted({one for one, _ in parts})}
    shown = [
        {"reason": row["reason"], "channel": row["channel"], "publisher": _publisher(row), "peer": row["peer"],
         "dropped_by": row["recorder"], "hour": row["hour"], "packets": row["packets"], "bytes": row["bytes"]}
        for row in sorted(rows, key=lambda row: -row["packets"])
    ]  # fmt: skip
    return Drawn((chart,), words=words, rows=shown)


def _publisher(row: Mapping[str, Any]) -> int | None:
    """Return the origin of dropped packets; control messages have none."""
    return row["origin"] or None


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
    by_arrow=True,
    question="What was dropped, and why?",
    query="""\
SELECT reason, channel, hex(peer) AS peer, sum(packets) AS packets
FROM gold_denials GROUP BY reason, channel, peer ORDER BY packets DESC LIMIT 10""",
    section=Section(_TITLE, "No drops have been recorded.", _draw, _facts),
)
