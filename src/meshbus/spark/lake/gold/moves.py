"""gold.moves: every move of a daemon that a census tells of, from which node to which, how long it took, or why it failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from meshbus.log.census import FactKind
from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake import charts
from meshbus.spark.lake.goldtable import Drawn, GoldTable, Rows, Scans, Section
from meshbus.spark.lake.named import label


def moves(census: Any) -> Any:
    """Return the moves that have ended. Only the node that drives a move writes about it, so each is there once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pa.array([FactKind.MOVING.value, FactKind.MOVED.value, FactKind.NOT_MOVED.value])
    facts = census.filter(pc.is_in(census["kind"], kinds)).sort_by([("log_id", "ascending"), ("seq", "ascending")])
    begun: dict[tuple[bytes, int], dict[str, Any]] = {}
    found = []
    for fact in facts.to_pylist():  # a handful: a row for each move, and one more
        whose = fact["log_id"], fact["origin"]
        if fact["kind"] == FactKind.MOVING.value:
            begun[whose] = fact
        else:
            found.append(_move(begun.pop(whose, None), fact))
    return pa.Table.from_pylist(found) if found else pa.table({})


def _move(begun: dict[str, Any] | None, ended: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a move; where it began is null if that is no longer in the census."""
    return {
        "began": None if begun is None else begun["ts"],
        "ended": ended["ts"],
        "arrived": ended["ts"] if ended["kind"] == FactKind.MOVED.value else None,
        "origin": ended["origin"],
        "daemon": ended["name"],
        "source": None if begun is None else begun["node_id"],
        "target": ended["node_id"],
        "seconds": None if begun is None else (ended["ts_ns"] - begun["ts_ns"]) / 1e9,
        "failure": ended["failure"],
        "recorder": ended["recorder"],
    }


_TITLE = "Where did daemons run, and when did they move?"
_MOVING, _FAILED = "moving", "failed to move"


def _draw(rows: Rows, _: Scans) -> Drawn:
    ordered = sorted(rows, key=lambda row: (row["ended"], row["origin"]))
    by_daemon: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in ordered:
        by_daemon[row["origin"]].append(row)
    first, last = min(map(_began, rows)), max(row["ended"] for row in rows)
    # Where a daemon was before its first move and after its last is shown too, for a moment.
    margin = max((last - first) / 10, timedelta(seconds=1))
    spans = [span for moved in by_daemon.values() for span in _life(moved, first - margin, last + margin)]
    shown = [
        {"ended": row["ended"], "daemon": _name(row), "source": row["source"], "target": row["target"],
         "seconds": row["seconds"], "failure": row["failure"]}
        for row in ordered
    ]  # fmt: skip
    return Drawn((charts.timeline(spans, title=_TITLE, what="node"),), rows=shown)


def _life(moves: list[Mapping[str, Any]], begin: datetime, end: datetime) -> Iterator[charts.Span]:
    """Yield where a daemon was, from the first to the last that is known of it."""
    name, since, node = _name(moves[0]), begin, moves[0]["source"]
    for move in moves:
        began, failed = _began(move), move["arrived"] is None
        if began > since:
            yield charts.Span(name, since, began, label(node))
        way = f"{label(move['source'])} → {label(move['target'])}"
        yield charts.Span(
            name, began, move["ended"], _FAILED if failed else _MOVING, f"{way} {move['failure'] or ''}".strip()
        )
        since, node = move["ended"], move["source"] if failed else move["target"]
    yield charts.Span(name, since, end, label(node))


def _began(row: Mapping[str, Any]) -> datetime:
    """Return when a move began, or at the latest, if that is not known."""
    began: datetime = row["began"] or row["ended"]
    return began


def _name(row: Mapping[str, Any]) -> str:
    return row["daemon"] or label(row["origin"])


def _facts(rows: Rows) -> dict[str, int]:
    arrived = sum(row["arrived"] is not None for row in rows)
    facts = {"moves of daemons": arrived, "moves of daemons that failed": len(rows) - arrived}
    return {name: count for name, count in facts.items() if count}


TABLE = GoldTable(
    name="moves",
    doc="Each move of a daemon from one node to another that has ended, as the node that drove it saw it.",
    columns=(
        Column("began", ColumnType.TIMESTAMP, "When the move began; null if that is not in the census.", nullable=True),
        Column("ended", ColumnType.TIMESTAMP, "When the move had succeeded or failed."),
        Column(
            "arrived", ColumnType.TIMESTAMP, "When the daemon ran on its new node; null if it failed.", nullable=True
        ),
        Column("origin", ColumnType.BIGINT, "Origin hash of the daemon.", bit_cast=True),
        Column("daemon", ColumnType.STRING, "Its name; null if the recorder did not offer it.", nullable=True),
        Column(
            "source", ColumnType.BIGINT, "Node that it was to leave; null like `began`.", nullable=True, bit_cast=True
        ),
        Column("target", ColumnType.BIGINT, "Node that it moved to, or was to move to.", bit_cast=True),
        Column("seconds", ColumnType.DOUBLE, "How long the move took; null like `began`.", nullable=True),
        Column("failure", ColumnType.STRING, "Why it did not move; null if it did.", nullable=True),
        Column("recorder", ColumnType.BIGINT, "Node that drove the move and wrote about it.", bit_cast=True),
    ),
    sources=("bronze.census",),
    compute=moves,
    by_arrow=True,
    question="Which daemons have moved or could not, and how long did it take?",
    query="""\
SELECT m.daemon, source.name AS source, target.name AS target, m.arrived, m.seconds, m.failure
FROM gold_moves AS m LEFT JOIN gold_nodes AS source ON m.source = source.node_id
LEFT JOIN gold_nodes AS target ON m.target = target.node_id ORDER BY m.ended""",
    section=Section(_TITLE, "No daemon has moved.", _draw, _facts),
    hourly=False,
)
