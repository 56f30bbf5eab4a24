"""The minutes and hours of any time."""

from datetime import UTC, datetime

import pyarrow as pa

from meshbus.spark.lake.minutes import HOUR_FORMAT, hours_of, mapped, start_of_hour, start_of_minute

TIMES = [-60_000_001, -60_000_000, -1, 0, 59_999_999, 60_000_000, 1_794_787_238_901_150]


def times(values: list[int | None]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.timestamp("us", "UTC"))])


def test_a_time_is_rounded_down_to_its_minute_also_before_1970() -> None:
    found = start_of_minute(times([*TIMES, None])).to_pylist()
    assert found == [*(us // 60_000_000 * 60_000_000 for us in TIMES), None]


def test_the_hour_of_a_time_is_a_text_of_which_the_time_can_be_told() -> None:
    at = datetime(2026, 11, 15, 23, 59, 59, 999_999, UTC)
    (hour,) = hours_of(times([int(at.timestamp() * 1_000_000)])).to_pylist()
    assert hour == "2026-11-15T23" == f"{at:{HOUR_FORMAT}}"
    assert start_of_hour(hour) == datetime(2026, 11, 15, 23, tzinfo=UTC)
    assert hours_of(times([-1])).to_pylist() == ["1969-12-31T23"]
    assert hours_of(times([])).to_pylist() == []


def test_what_is_computed_of_null_is_null() -> None:
    assert mapped(pa.chunked_array([[7, None]]), lambda numbers: numbers + 1).to_pylist() == [8, None]
