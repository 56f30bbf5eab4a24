"""The settings of a log: invalid ones are refused at once."""

import pytest

from meshbus.errors import ConfigError
from meshbus.log.durability import NEVER, Fsync, LogConfig, Retention, Tiering, every_n, interval


def test_each_policy_is_a_plain_value() -> None:
    assert Fsync() == NEVER
    assert every_n(5) == Fsync(events=5)
    assert interval(0.5) == Fsync(seconds=0.5)
    assert LogConfig().fsync == interval(1.0), "a log is never left unsynced for long by default"


@pytest.mark.parametrize("count", [0, -1])
def test_every_no_events_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="fsync"):
        every_n(count)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_interval_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="fsync"):
        interval(seconds)


def test_a_hot_file_takes_a_part_of_the_size_limit() -> None:
    assert LogConfig().file_bytes == LogConfig().seal_bytes
    assert LogConfig(retention=Retention(max_bytes=8_000)).file_bytes == 1_000
    assert LogConfig(retention=Retention(max_bytes=1)).file_bytes == 1
    assert LogConfig(retention=Retention(max_bytes=1 << 40)).file_bytes == LogConfig().seal_bytes
    assert LogConfig(tier=Tiering("s3://b", local_bytes=800)).file_bytes == 100
    assert LogConfig(retention=Retention(max_bytes=80), tier=Tiering("s3://b", local_bytes=800)).file_bytes == 10


def test_moving_segments_needs_a_place_and_a_limit() -> None:
    with pytest.raises(ConfigError, match="invalid URI 'nowhere'"):
        Tiering("nowhere", after_s=1)
    with pytest.raises(ConfigError, match="unless local_bytes is set"):
        Tiering("s3://b")
