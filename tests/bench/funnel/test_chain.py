"""The search for the highest rate that a chain keeps up with."""

from collections.abc import Callable

import pytest

from bench.funnel.chain import Probe, search
from bench.funnel.nodes import Published


def probe_of(
    capacity: float, tried: list[tuple[float, float]], *, long_capacity: float | None = None
) -> Callable[[float, float], Probe]:
    """Return a chain that keeps up with a capacity, in long runs with another one."""

    def probe(rate: float, seconds: float) -> Probe:
        tried.append((rate, seconds))
        limit = capacity if seconds < 60 or long_capacity is None else long_capacity
        return Probe(rate, seconds, Published(round(rate * seconds), seconds), 0, 1.0, rate <= limit)

    return probe


@pytest.mark.parametrize("capacity", [300.0, 1_000.0, 9_000.0, 77_000.0, 1_000_000.0])
def test_the_search_ends_close_below_what_a_chain_can_do(capacity: float) -> None:
    found = search(probe_of(capacity, []), first=10_000, short_s=15, long_s=60)[-1]
    assert found.seconds == 60
    assert found.kept_up
    assert 0.7 * capacity <= found.rate <= capacity


def test_a_long_run_that_falls_behind_is_repeated_at_a_lower_rate() -> None:
    tried: list[tuple[float, float]] = []
    found = search(probe_of(80_000, tried, long_capacity=50_000), first=10_000, short_s=15, long_s=60)[-1]
    assert 0.8 * 50_000 <= found.rate <= 50_000
    assert [seconds for _, seconds in tried].count(60) > 1


def test_a_chain_that_never_keeps_up_is_tried_down_to_a_low_rate() -> None:
    tried: list[tuple[float, float]] = []
    assert not search(probe_of(0, tried), first=1_000, short_s=15, long_s=60)[-1].kept_up
    assert tried == [(1_000, 15), (250, 15), (125, 15)]
