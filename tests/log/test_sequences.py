"""Ranges of sequences, clipped to what a log holds."""

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.sequences import clip_range


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (None, None, (3, 9)),
        (4, 6, (4, 6)),
        (4, 99, (4, 9)),
        (20, None, (20, 9)),
        (3, 3, (3, 3)),
        (0, 0, (0, 0)),
        (2, 1, (2, 1)),
    ],
)
def test_a_range_ends_where_the_log_does(start: int | None, stop: int | None, expected: tuple[int, int]) -> None:
    assert clip_range("a", 3, 9, start, stop) == expected


@pytest.mark.parametrize("stop", [None, 1, 9])
def test_an_expired_start_is_an_error_with_the_first_available(stop: int | None) -> None:
    with pytest.raises(LogError, match="sequence 0 has expired") as caught:
        clip_range("a", 3, 9, 0, stop)
    assert caught.value.fault is LogFault.RANGE_GONE
    assert caught.value.first_available == 3
