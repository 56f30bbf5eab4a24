"""Subscribers and deliveries equal those of plain Python, and follow the rosters that publishers had."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meshbus.spark.lake.gold.fan_out import TABLE
from tests.spark import oracle
from tests.spark.counted import Unread, counted, rows_of, scanned
from tests.spark.oracle import as_set
from tests.spark.world import SUBSCRIPTIONS


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]]) -> None:
    expected = oracle.fan_out(read["silver.events"], read["bronze.events"], SUBSCRIPTIONS)
    assert as_set(read["gold.fan_out"]) == as_set(expected)


def test_it_depends_on_the_subscriptions() -> None:
    assert TABLE.with_subscriptions


START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)
HOUR = "2026-11-15T23"


def frame(table: str, rows: list[dict[str, Any]]) -> Any:
    return rows_of(table, ({"hour": HOUR, **row} for row in rows))


# All in one minute, some in each of a few, and all at the start of a minute of their own.
@pytest.mark.parametrize("unit_ns", [1, 7 * 10**9, 60 * 10**9])
def test_each_event_counts_with_the_roster_that_its_publisher_had_then(tmp_path: Path, unit_ns: int) -> None:
    def published(channel: str, *times: int | None, origin: int = 5) -> list[dict[str, Any]]:
        known = {"channel": channel, "origin": origin, "recv_ts": START, "recorder": 9, "payload": b""}
        return [{**known, "ts_ns": None if at is None else at * unit_ns} for at in times]

    def roster(at: int, channel: str, subscribers: int, copies: int) -> dict[str, Any]:
        return {
            "recorder": 9, "kind": "roster", "ts_ns": at * unit_ns, "seq": at, "channel": channel,
            "subscribers": subscribers, "copies": copies,
        }  # fmt: skip

    start = {"recorder": 9, "kind": "snapshot", "node_id": 9, "origin": 5}
    census = [
        {**start, "ts_ns": 10 * unit_ns, "seq": 10}, roster(20, "a", 1, 1), roster(30, "a", 4, 2),
        roster(40, "a", 0, 0), {**start, "ts_ns": 50 * unit_ns, "seq": 50}, roster(50, "b", 1, 1),
        roster(45, "c", 9, 9),
    ]  # fmt: skip
    events = [
        *published("a", 10, 20, 25, 30, 39, 40), *published("b", 5, 11, 50, 51), *published("c", 60),
        *published("d", None, 60, origin=6), *published("e", 60, None),
    ]  # fmt: skip
    received = [{**row, "recorder": 7, "session_id": 1} for row in published("a", 20, 30)]
    rows = frame("silver.events", events)
    frames = [
        *counted(["silver.event_counts"], rows),
        *counted(["silver.receipt_counts"], frame("bronze.events", events + received)),
        frame("bronze.census", census),
    ]
    # At starts of minutes nothing changes within one, so that no row is read.
    scan = Unread() if unit_ns == 60 * 10**9 else scanned(tmp_path, "silver.events", rows)
    found = TABLE.rows([*frames, scan]).to_pylist()
    names = ("subscribers", "events", "deliveries", "unknown", "receivers", "receipts")
    assert {row["channel"]: tuple(row[name] for name in names) for row in found} == {
        "a": (4, 6, 1 + 1 + 2 + 2, 0, 1, 2),
        "b": (1, 4, 2, 1, 0, 0),  # the publisher had not started before
        "c": (0, 1, 0, 0, 0, 0),  # it had been forgotten in between
        "d": (None, 2, None, 2, 0, 0),  # of this publisher nothing is known
        "e": (0, 2, 0, 1, 0, 0),
    }
