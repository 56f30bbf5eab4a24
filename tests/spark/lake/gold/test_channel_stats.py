"""Per-minute statistics equal those of plain Python, and extreme numbers fail no query."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from meshbus.spark.lake.gold.channel_stats import TABLE
from meshbus.spark.lake.goldtable import no_scans
from tests.spark import oracle
from tests.spark.counted import Unread, counted, rows_of, scanned
from tests.spark.figure import values
from tests.spark.oracle import assert_alike

START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]]) -> None:
    expected = oracle.channel_stats(read["silver.events"], read["bronze.events"])
    assert_alike(read["gold.channel_stats"], expected)
    assert {row["latency_p50_us"] is None for row in expected} == {True, False}


def test_times_at_their_limits_fail_no_query() -> None:
    rows = [
        {"channel": "a", "ts_ns": ts_ns, "recv_ts_ns": recv_ts_ns, "recv_ts": START, "payload": b"",
         "hour": "2026-11-15T23", "session_id": 1}
        for ts_ns in (-(2**63), 5)
        for recv_ts_ns in (-(2**63), -1, 0, 2**63 - 1)
    ]  # fmt: skip
    (row,) = TABLE.rows(counted(TABLE.sources, rows_of("bronze.events", rows))).to_pylist()
    assert row["events"] == 8


def test_latency_is_unknown_and_never_zero_where_the_time_of_publication_is() -> None:
    row = {
        "recv_ts_ns": 9_000, "recv_ts": START, "payload": b"", "hour": "2026-11-15T23"
    }  # fmt: skip
    rows = [
        {**row, "channel": "plain", "session_id": 1},
        {**row, "channel": "own", "ts_ns": 9_000},
        {**row, "channel": "both", "ts_ns": 9_000},
        {**row, "channel": "both", "ts_ns": 4_000, "session_id": 1},
    ]
    frames = counted(TABLE.sources, rows_of("bronze.events", rows))
    found = {row["channel"]: row["latency_p50_us"] for row in TABLE.rows(frames).to_pylist()}
    assert found == {"plain": None, "own": None, "both": 5.0}


def test_a_duplicate_in_a_minute_without_events_makes_no_row() -> None:
    row = {
        "channel": "a", "origin": 5, "ts_ns": 4_000, "recv_ts_ns": 9_000, "recv_ts": START, "payload": b"12",
        "session_id": 1,
    }  # fmt: skip
    late = {**row, "recv_ts": START + timedelta(minutes=1), "origin": 6}
    (events,) = counted(TABLE.sources[:1], rows_of("bronze.events", [row]))
    (latencies,) = counted(TABLE.sources[1:], rows_of("bronze.events", [row, row, late]))
    (found,) = TABLE.rows([events, latencies]).to_pylist()
    assert (found["window_start"].minute, found["events"], found["bytes"], found["publishers"]) == (
        START.minute,
        1,
        2,
        1,
    )
    assert found["latency_p50_us"] == 5.0


def test_the_section_draws_a_line_for_each_channel() -> None:
    rows = [
        {
            "channel": channel,
            "window_start": START.replace(minute=minute),
            "events": minute,
            "bytes": 8,
            "hour": "h",
            "publishers": 1,
            "events_per_s": minute / 60,
        }
        for channel in ("a", "b")
        for minute in range(3)
    ]
    (chart,) = TABLE.section.draw(rows, no_scans).charts
    assert {row["name"] for row in values(chart)} == {"a", "b"}
    assert TABLE.section.facts(rows) == {"events": 6, "bytes": 48, "channels": 2}


def test_the_section_shows_seconds_if_all_events_are_within_half_an_hour(tmp_path: Path) -> None:
    times = [START + timedelta(seconds=second) for second in (0, 0, 1, 9)]
    events = [{"channel": "a", "recv_ts": at, "recv_ts_ns": round(at.timestamp()) * 10**9} for at in times]
    rows = [{"channel": "a", "window_start": START, "events": 4, "bytes": 8, "publishers": 1, "events_per_s": 4 / 60}]
    scan = scanned(tmp_path, "silver.events", rows_of("silver.events", events))
    (chart,) = TABLE.section.draw(rows, lambda _: scan).charts
    assert [row["value"] for row in values(chart)] == [2.0, 1.0, None, 1.0]
    late = [*rows, {**rows[0], "window_start": START + timedelta(hours=1)}]
    assert TABLE.section.draw(late, lambda _: Unread()).charts, "minutes are enough"
