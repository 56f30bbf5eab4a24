"""Numbers have the unit that fits, and three digits."""

import pytest

from meshbus.spark.run.readable import duration, heading, number, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (2e-7, "0.2 µs"), (0.000_012_3, "12.3 µs"), (0.0009996, "1 ms"), (0.0514, "51.4 ms"), (-0.002, "-2 ms"),
     (0.9999, "1 s"), (1.2345, "1.23 s"), (119, "119 s"), (150, "2.5 min"), (7200, "2 h"), (86400 * 12.5, "12.5 d")],
)  # fmt: skip
def test_a_time_is_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (812, "812 B"), (999.9, "1 kB"), (1_234, "1.23 kB"), (99_999, "100 kB"), (5_000_000, "5 MB"), (7.5e9, "7.5 GB"), (3e15, "3,000 TB")],
)  # fmt: skip
def test_bytes_are_in_the_unit_that_fits(count: float, text: str) -> None:
    assert size(count) == text


def test_a_column_says_its_unit_once() -> None:
    columns = ("delay_p50_us", "busiest_minute_per_s", "bytes_behind", "log_id", "seconds")
    assert [heading(name) for name in columns] == ["delay p50", "busiest minute", "bytes behind", "log id", "duration"]
    found = [
        number("delay_p50_us", 1500.0),
        number("busiest_minute_per_s", 0.25),
        number("bytes_behind", 2048),
        number("seconds", 0.5),
        number("events", 12_345),
        number("share", 0.12345),
    ]
    assert found == ["1.5 ms", "0.25 /s", "2.05 kB", "500 ms", "12,345", "0.123"]
