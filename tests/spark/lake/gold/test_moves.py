"""A move is one row, from the two facts that the node that drove it has written."""

from datetime import UTC, datetime, timedelta
from typing import Any

from meshbus.spark.lake.gold.moves import TABLE
from meshbus.spark.lake.goldtable import no_scans
from tests.spark.counted import rows_of
from tests.spark.figure import values

START = datetime(2026, 11, 17, 21, 0, tzinfo=UTC)
SECOND = 1_000_000_000


def _fact(second: int, log: bytes, kind: str, node_id: int, **values: Any) -> dict[str, Any]:
    at = {"ts": START + timedelta(seconds=second), "ts_ns": second * SECOND, "seq": second, "log_id": log * 16}
    return {**at, "kind": kind, "node_id": node_id, "recorder": log[0], **values}


def _moves(*facts: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = TABLE.rows([rows_of("bronze.census", list(facts))]).to_pylist()
    return rows


def test_a_move_is_a_row_with_both_ends_and_its_time() -> None:
    found = _moves(
        _fact(5, b"B", "moved", 3, origin=71, name="other"),  # a census that begins in the middle of a move
        _fact(0, b"A", "snapshot", 1, origin=11, name="a"),
        _fact(1, b"A", "moving", 1, origin=70, name="counter"),
        _fact(2, b"A", "moving", 9, origin=71, name="other"),  # it failed, or goes on
        _fact(4, b"A", "moved", 2, origin=70, name="counter"),
        _fact(6, b"A", "moving", 2, origin=70, name="counter"),
        _fact(7, b"A", "moving", 2, origin=70, name="counter"),  # the first try failed
        _fact(8, b"A", "moved", 1, origin=70, name="counter"),
    )
    names = ("daemon", "source", "target", "seconds", "recorder")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("counter", 1, 2, 3.0, ord("A")),
        ("counter", 2, 1, 1.0, ord("A")),
        ("other", None, 3, None, ord("B")),
    ]
    assert found[0]["began"] == START + timedelta(seconds=1)
    assert found[0]["arrived"] == START + timedelta(seconds=4)
    assert found[2]["began"] is None


def test_a_move_that_failed_is_a_row_with_its_reason() -> None:
    (failed, moved) = _moves(
        _fact(1, b"A", "moving", 1, origin=70, name="counter"),
        _fact(3, b"A", "not_moved", 2, origin=70, name="counter", failure="it was too late"),
        _fact(4, b"A", "moving", 1, origin=70, name="counter"),
        _fact(5, b"A", "moved", 2, origin=70, name="counter"),
    )
    assert (failed["source"], failed["target"], failed["seconds"]) == (1, 2, 2.0)
    assert (failed["ended"], failed["arrived"]) == (START + timedelta(seconds=3), None)
    assert (failed["failure"], moved["failure"]) == ("it was too late", None)
    assert moved["arrived"] == moved["ended"]
    assert TABLE.section.facts([failed, moved, failed]) == {"moves of daemons": 1, "moves of daemons that failed": 2}
    shown = TABLE.section.draw([failed], no_scans)
    assert shown.rows[0]["failure"] == "it was too late"
    assert "failed to move" in {row["kind"] for row in values(shown.charts[0])}


def test_without_moves_there_are_no_rows() -> None:
    assert _moves(_fact(0, b"A", "snapshot", 1, origin=11)) == []
    assert TABLE.section.facts([]) == {}


def test_the_section_lists_moves_in_their_order() -> None:
    same = {"origin": 70, "source": 1, "target": 2, "seconds": 0.25, "failure": None, "arrived": START, "began": START}
    rows = [
        {**same, "ended": START + timedelta(seconds=1), "daemon": "later"},
        {**same, "ended": START, "daemon": "a<b"},
    ]
    shown = TABLE.section.draw(rows, no_scans)
    assert [row["daemon"] for row in shown.rows] == ["a<b", "later"]
    lives = {row["kind"] for row in values(shown.charts[0])}
    assert lives == {f"{1:016x}", "moving", f"{2:016x}"}
    assert TABLE.section.facts(rows) == {"moves of daemons": 2}
