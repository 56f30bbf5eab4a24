"""Latency is null where it is unknown, and the delay is without the difference of the clocks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshbus.spark.lake.gold.latency import TABLE
from meshbus.spark.lake.goldtable import no_scans
from meshbus.spark.lake.named import NamedId
from tests.spark import oracle
from tests.spark.counted import counted, rows_of
from tests.spark.figure import values
from tests.spark.oracle import assert_alike

START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9
SECOND_NS = 10**9


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]]) -> None:
    expected = oracle.latency(read["bronze.events"])
    assert_alike(read["gold.latency"], expected)
    assert expected


def inputs(events: list[dict[str, Any]], census: list[dict[str, Any]]) -> list[Any]:
    known = {"recorder": 9, "origin": 5}
    received, facts = (
        rows_of(name, ({**known, **row} for row in rows))
        for name, rows in (("bronze.events", events), ("bronze.census", census))
    )
    return [*counted(TABLE.sources[:2], received), facts]


def event(channel: str, at_ns: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "channel": channel, "recv_ts": START + timedelta(microseconds=at_ns // 1000), "recv_ts_ns": START_NS + at_ns,
        **values,
    }  # fmt: skip


def test_the_delay_takes_the_offset_that_was_known_in_the_minute() -> None:
    # The publisher's clock is 60 µs ahead, then 80 µs, and each event is on the way for 10 µs.
    known = [(90, 60_000, 1_000), (130, 80_000, 2_000)]
    clocks = [
        {"kind": "node", "ts_ns": START_NS + at * SECOND_NS, "clock_offset_ns": offset, "clock_error_ns": error}
        for at, offset, error in known
    ]
    others = [
        {"kind": "node", "origin": 6, "ts_ns": START_NS + 95 * SECOND_NS, "clock_offset_ns": 1, "clock_error_ns": 1},
        {"kind": "node", "recorder": 8, "ts_ns": START_NS + 95 * SECOND_NS, "clock_offset_ns": 1, "clock_error_ns": 1},
        {"kind": "node", "ts_ns": START_NS + 96 * SECOND_NS},
    ]
    events = [
        event("a", at * SECOND_NS, session_id=1, ts_ns=START_NS + at * SECOND_NS + ahead - 10_000)
        for at, ahead in ((10, 60_000), (70, 60_000), (100, 60_000), (125, 80_000), (190, 80_000))
    ]
    (row,) = TABLE.rows(inputs(events, clocks + others)).to_pylist()
    assert (row["events"], row["timed"]) == (5, 5)
    assert (row["latency_p50_us"], row["latency_p99_us"]) == (-50.0, pytest.approx(-50.0))
    assert {row[f"delay_p{share}_us"] for share in (50, 95, 99)} == {10.0}
    assert (row["clock_offset_us"], row["clock_error_us"]) == (60.0, 2.0)


def test_the_delay_is_known_where_the_clocks_are_hours_apart() -> None:
    ahead = 5 * 3_600 * SECOND_NS + 123_456_789
    clocks = [{"kind": "node", "ts_ns": START_NS, "clock_offset_ns": ahead, "clock_error_ns": 1}]
    events = [event("a", session_id=1, ts_ns=START_NS + ahead - 2_000_000)]
    (row,) = TABLE.rows(inputs(events, clocks)).to_pylist()
    assert abs(row["delay_p50_us"] - 2_000) <= 50


def test_without_times_or_clocks_nothing_is_claimed() -> None:
    events = [
        event("plain", 1_000, session_id=1),
        event("timed", 1_000, session_id=1, ts_ns=START_NS + 1_000),
        event("own", 1_000, ts_ns=START_NS + 1_000),
    ]
    found = TABLE.rows(inputs(events, [])).to_pylist()
    rows = {row["channel"]: row for row in found}
    assert rows.keys() == {"plain", "timed"}
    assert {value for name, value in rows["plain"].items() if name.endswith("_us")} == {None}
    assert (rows["timed"]["latency_p50_us"], rows["timed"]["delay_p50_us"]) == (0.0, None)


def test_the_section_shows_delays_and_marks_where_clocks_were_not_compared() -> None:
    unknown = {name.name: None for name in TABLE.columns if name.name.endswith("_us")}
    base = {
        "channel": "a",
        "origin": NamedId.of(1, "robot"),
        "recorder": NamedId.of(2, "base"),
        "hour": "h",
        "events": 5,
    }
    timed = {"timed": 5, "latency_p50_us": 9_000.0, "latency_p95_us": 9_500.0, "latency_p99_us": 9_900.0}
    delays = {"delay_p50_us": 1_000.0, "delay_p95_us": 2_000.0, "delay_p99_us": 3_000.0}
    rows = [
        {**unknown, **base, **timed, **delays},
        {**unknown, **base, **timed, "channel": "b"},
        {**unknown, **base, "channel": "c", "timed": 0},
    ]
    shown = TABLE.section.draw(rows, no_scans)
    found = {(row["name"], row["percentile"]): row["value"] for row in values(shown.charts[0]) if "value" in row}
    assert found["a: robot → base", "p99"] == 3.0
    assert found["b: robot → base (clocks not compared)", "p50"] == 9.0
    assert len(found) == 6
    assert shown.notes[1] == "Not measured: 5 events do not carry the time of their publication."
    nothing = TABLE.section.draw(rows[2:], no_scans)
    assert (nothing.charts, len(nothing.notes)) == ((), 1)
