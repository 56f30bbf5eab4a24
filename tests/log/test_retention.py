"""What has expired, compared with a plain form of the rules."""

from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.durability import Retention
from meshbus.log.retention import Unit, expired_until, swept_until

SECOND = 1_000_000_000


def units_of(lengths: list[int], sizes: list[int]) -> list[Unit]:
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    return [Unit(end, size, end * SECOND) for end, size in zip(ends, sizes, strict=False)]


def test_without_limits_nothing_expires() -> None:
    assert expired_until([Unit(10, 100, 0)], 10, 0, Retention(), 10**18) == 0


def test_a_unit_of_exactly_the_age_stays() -> None:
    units = [Unit(10, 100, 0), Unit(20, 100, SECOND)]
    assert expired_until(units, 20, 0, Retention(max_age_s=5), 5 * SECOND) == 0
    assert expired_until(units, 20, 0, Retention(max_age_s=5), 5 * SECOND + 1) == 10
    assert expired_until(units, 20, 0, Retention(max_age_s=5), 99 * SECOND) == 20


PARTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=8)


@given(PARTS, st.integers(0, 9), st.integers(0, 40))
def test_enough_events_always_remain_and_no_unit_too_many(parts: list[tuple[int, int]], hot: int, keep: int) -> None:
    units = units_of([length for length, _ in parts], [size for _, size in parts])
    end = (units[-1].end if units else 0) + hot
    until = expired_until(units, end, 0, Retention(max_events=keep), 0)
    assert until == max([unit.end for unit in units if end - unit.end >= keep], default=0)


@given(PARTS, st.integers(0, 9), st.integers(0, 40))
def test_the_whole_fits_unless_only_the_file_being_written_is_left(
    parts: list[tuple[int, int]], hot_bytes: int, limit: int
) -> None:
    units = units_of([length for length, _ in parts], [size for _, size in parts])
    until = expired_until(units, 99, hot_bytes, Retention(max_bytes=limit), 0)
    left = [unit for unit in units if unit.end > until]
    total = sum(unit.bytes for unit in left) + hot_bytes
    assert total <= limit or not left
    gone = [unit for unit in units if unit.end <= until]
    if gone:
        assert total + gone[-1].bytes > limit, "one unit less would have been enough"


def test_the_limit_that_asks_for_most_wins() -> None:
    units = units_of([10, 10, 10], [100, 100, 100])
    limits = Retention(max_events=25, max_bytes=150)
    assert expired_until(units, 30, 0, limits, 0) == 20


def test_retired_parts_go_after_their_grace_or_while_everything_is_too_large() -> None:
    retired = [Unit(0, 10, 0), Unit(0, 10, 5 * SECOND), Unit(0, 10, 9 * SECOND)]
    assert swept_until(retired, 100, Retention(), 6, 10 * SECOND) == 1
    assert swept_until(retired, 100, Retention(max_bytes=200), 6, 10 * SECOND) == 1
    assert swept_until(retired, 100, Retention(max_bytes=115), 60, 10 * SECOND) == 2
    assert swept_until(retired, 100, Retention(max_bytes=50), 60, 10 * SECOND) == 3
    assert swept_until([], 100, Retention(max_bytes=50), 60, 10 * SECOND) == 0
