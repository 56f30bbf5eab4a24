from __future__ import annotations

from meshbus.engine.session.budget import (
    MAX_SOURCES,
    SOURCE_BURST,
    SOURCE_RATE,
    TOTAL_BURST,
    TOTAL_RATE,
    HandshakeBudget,
    Rates,
)


def test_a_source_has_a_burst_and_then_a_rate() -> None:
    budget = HandshakeBudget()
    assert [budget.admit("noisy", 0.0) for _ in range(50)].count(True) == SOURCE_BURST
    assert budget.admit("other", 0.0)
    assert [budget.admit("noisy", 1.0) for _ in range(50)].count(True) == SOURCE_RATE


def test_direct_and_routed_tries_are_counted_apart() -> None:
    budget = HandshakeBudget()
    assert [budget.afford_direct(0.0) for _ in range(1100)].count(True) == TOTAL_BURST
    assert [budget.afford_routed(0.0) for _ in range(1100)].count(True) == TOTAL_BURST
    assert [budget.afford_direct(1.0) for _ in range(1100)].count(True) == TOTAL_RATE


def test_sources_are_forgotten_one_by_one_and_the_busy_last() -> None:
    budget = HandshakeBudget()
    for _ in range(int(SOURCE_BURST)):
        budget.admit("early", 0.0)
    for number in range(MAX_SOURCES - 1):
        budget.admit(number, 0.0)
    assert not budget.admit("early", 0.0)
    for number in range(MAX_SOURCES - 1):
        budget.admit(-1 - number, 0.0)
    assert not budget.admit("early", 0.0)
    for number in range(MAX_SOURCES):
        budget.admit(number, 0.0)
    assert budget.admit("early", 0.0)  # unheard among so many others, and new again


def test_a_rate_for_each_thing_is_remembered_within_bounds() -> None:
    rates: Rates[int] = Rates(1.0, 2.0, 4)
    assert [rates.take(1, 0.0) for _ in range(3)] == [True, True, False]
    assert rates.take(2, 0.0)
    assert rates.take(1, 1.0)
    for key in range(100):
        rates.take(key, 1.0)
    assert len(rates) == 4
