"""Replicas are compared with the first replica that has an event."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from meshbus.spark.lake.gold.replication_lag import TABLE
from meshbus.spark.lake.goldtable import no_scans
from tests.spark.counted import Unread, counted, rows_of, scanned
from tests.spark.figure import title, values

START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)


def test_no_row_is_read_if_no_log_has_replicas() -> None:
    row = {"channel": "a", "log_id": b"A" * 16, "recorder": 1, "recv_ts": START}
    assert TABLE.rows([*counted(TABLE.sources[:1], rows_of("bronze.events", [row])), Unread()]).to_pylist() == []


def test_replicas_are_compared_with_the_first(tmp_path: Path) -> None:
    rows = []
    for recorder, log, delay_us, count in ((1, b"A" * 16, 0, 30), (2, b"A" * 16, 500, 20), (1, b"B" * 16, 0, 5)):
        for seq in range(count):
            at = START + timedelta(seconds=4 * seq, microseconds=delay_us)
            rows.append(
                {"channel": "a", "log_id": log, "seq": seq, "recorder": recorder, "recv_ts": at,
                 "recv_ts_ns": int(at.timestamp()) * 10**9 + delay_us * 1000, "hour": "2026-11-15T23"}
            )  # fmt: skip
    bronze = rows_of("bronze.events", rows)
    found = TABLE.rows([*counted(TABLE.sources[:1], bronze), scanned(tmp_path, "bronze.events", bronze)]).to_pylist()
    assert sorted(
        (
            row["window_start"].minute,
            row["recorder"],
            row["events"],
            row["last_seq"],
            row["behind"],
            row["delay_p50_us"],
        )
        for row in found
    ) == [(0, 1, 15, 14, 0, 0.0), (0, 2, 15, 14, 0, 500.0), (1, 1, 15, 29, 0, 0.0), (1, 2, 5, 19, 10, 500.0)]


def test_the_section_shows_the_worst_minute_and_the_lag_over_time() -> None:
    start = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)
    row = {
        "channel": "a",
        "recorder": 1,
        "window_start": start,
        "events": 4,
        "behind": 0,
        "delay_p50_us": 0.0,
        "delay_p99_us": 1_000.0,
    }
    (delays,) = TABLE.section.draw([row], no_scans).charts
    assert {one["value"] for one in values(delays) if "value" in one} == {0.0, 1.0}
    later = {**row, "window_start": start + timedelta(minutes=1), "behind": 7, "delay_p99_us": 5_000.0}
    shown = TABLE.section.draw([row, later], no_scans)
    delays, behind = shown.charts
    assert {one["value"] for one in values(delays) if "value" in one} == {0.0, 5.0}
    assert title(behind).endswith("?")
    assert [one["value"] for one in values(behind)] == [0, 7]
    assert [one["behind"] for one in shown.rows] == [7, 0]
