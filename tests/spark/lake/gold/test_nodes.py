"""Each node once, by its own words before those of others."""

from datetime import UTC, datetime, timedelta
from typing import Any

from meshbus.spark.lake.gold.nodes import TABLE
from meshbus.spark.lake.goldtable import no_scans
from tests.spark.counted import rows_of

START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)


def test_each_node_is_there_once_with_the_latest_that_is_known() -> None:
    def fact(second: int, recorder: int, **values: Any) -> dict[str, Any]:
        return {"ts": START + timedelta(seconds=second), "ts_ns": second, "recorder": recorder, **values}

    rows = [
        fact(0, 1, kind="snapshot", node_id=1, origin=11, entity=b"A", subnet=3),
        fact(1, 1, kind="node", node_id=2),
        fact(2, 1, kind="node", node_id=2, origin=12, entity=b"B", name="old", subnet=7),
        fact(3, 1, kind="node", node_id=2, origin=12, entity=b"B", name="new", subnet=7),
        fact(4, 1, kind="node", node_id=2),
        fact(5, 2, kind="node", node_id=1, origin=11, entity=b"A", name="seen", subnet=0),
        fact(6, 1, kind="roster", channel="a", subscribers=1, copies=1),
        fact(7, 1, kind="moved", node_id=2, origin=70, name="a daemon"),  # says nothing about the node
    ]
    found = {row["node_id"]: row for row in TABLE.rows([rows_of("bronze.census", rows)]).to_pylist()}
    names = ("origin", "entity", "name", "subnet", "recorders")
    assert {node_id: tuple(row[name] for name in names) for node_id, row in found.items()} == {
        1: (11, b"A", "seen", 3, 2),
        2: (12, b"B", "new", 7, 1),
    }
    assert (found[2]["last_seen"] - found[2]["first_seen"]).total_seconds() == 3


def test_the_section_lists_nodes_by_name() -> None:
    seen: dict[str, Any] = {"subnet": None, "origin": None, "first_seen": START, "last_seen": START}
    rows = [{"node_id": 1, "name": None, **seen}, {"node_id": 2, "name": "a<b", **seen}]
    assert [row["name"] for row in TABLE.section.draw(rows, no_scans).rows] == ["a<b", None]
    assert TABLE.section.facts(rows) == {"nodes": 2}
