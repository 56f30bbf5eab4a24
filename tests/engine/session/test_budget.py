from __future__ import annotations

from meshbus.engine.base.counters import Counters
from meshbus.engine.session.budget import (
    HOST_BURST,
    HOST_RATE,
    KNOWN_BURST,
    KNOWN_RATE,
    MAX_HOSTS,
    MAX_KNOWN,
    TOTAL_BURST,
    TOTAL_RATE,
    HandshakeBudget,
    Rates,
    Standing,
)


def admitted(budget: HandshakeBudget, host: str, count: int, now: float) -> int:
    """Send messages from as many ports of a host, and return how many may be read."""
    found = [budget.admit((host, port), now) for port in range(count)]
    return len(found) - found.count(Standing.REFUSED)


def test_a_host_has_a_burst_and_then_a_rate_whatever_its_ports() -> None:
    budget = HandshakeBudget(Counters())
    assert admitted(budget, "noisy", 500, 0.0) == HOST_BURST
    assert admitted(budget, "other", 1, 0.0) == 1
    assert admitted(budget, "noisy", 500, 1.0) == HOST_RATE


def test_direct_and_routed_tries_of_strangers_are_counted_apart() -> None:
    budget = HandshakeBudget(Counters())
    assert [budget.afford_direct(Standing.STRANGER, 0.0) for _ in range(1100)].count(True) == TOTAL_BURST
    assert [budget.afford_routed(Standing.STRANGER, 0.0) for _ in range(1100)].count(True) == TOTAL_BURST
    assert [budget.afford_direct(Standing.STRANGER, 1.0) for _ in range(1100)].count(True) == TOTAL_RATE


def test_a_known_address_has_a_limit_of_its_own_and_then_that_of_its_host() -> None:
    budget = HandshakeBudget(Counters())
    budget.remember(("10.0.0.1", 9000, 0, 7))
    assert admitted(budget, "10.0.0.1", int(HOST_BURST), 0.0) == HOST_BURST
    source = ("10.0.0.1", 9000)
    burst = int(KNOWN_BURST)
    assert [budget.admit(source, 0.0) for _ in range(burst + 1)] == [Standing.KNOWN] * burst + [Standing.REFUSED]
    assert [budget.admit(source, 1.0) for _ in range(3)].count(Standing.KNOWN) == KNOWN_RATE
    while budget.afford_routed(Standing.STRANGER, 1.0):
        pass
    assert budget.afford_routed(Standing.KNOWN, 1.0)


def test_known_addresses_are_bounded_and_the_one_of_last_time_stays() -> None:
    budget = HandshakeBudget(Counters())
    for number in range(MAX_KNOWN + 10):
        budget.remember((f"h{number}", 1))
        budget.remember(("steady", 1))
    assert budget.admit(("steady", 1), 0.0) is Standing.KNOWN
    assert budget.admit(("h0", 1), 0.0) is Standing.STRANGER


def test_hosts_are_forgotten_one_by_one_and_the_busy_last() -> None:
    budget = HandshakeBudget(Counters())
    admitted(budget, "early", int(HOST_BURST), 0.0)
    for number in range(MAX_HOSTS - 1):
        budget.admit(number, 0.0)
    assert admitted(budget, "early", 1, 0.0) == 0
    for number in range(MAX_HOSTS - 1):
        budget.admit(-1 - number, 0.0)
    assert admitted(budget, "early", 1, 0.0) == 0
    for number in range(MAX_HOSTS):
        budget.admit(number, 0.0)
    assert admitted(budget, "early", 1, 0.0) == 1  # unheard among so many others, and new again


def test_a_rate_for_each_thing_is_remembered_within_bounds() -> None:
    rates: Rates[int] = Rates(1.0, 2.0, 4)
    assert [rates.take(1, 0.0) for _ in range(3)] == [True, True, False]
    assert rates.take(2, 0.0)
    assert rates.take(1, 1.0)
    for key in range(100):
        rates.take(key, 1.0)
    assert len(rates) == 4


def test_a_limit_that_is_spent_is_known_before_anything_is_read() -> None:
    budget = HandshakeBudget(Counters())
    budget.remember(("friend", 1))
    assert not budget.spent_routed(("noisy", 1), 0.0)
    admitted(budget, "noisy", int(HOST_BURST), 0.0)
    assert budget.spent_routed(("noisy", 7), 0.0)
    assert not budget.spent_routed(("other", 1), 0.0)
    while budget.afford_routed(Standing.STRANGER, 0.0):
        pass
    assert budget.spent_routed(("other", 1), 0.0)
    assert not budget.spent_routed(("friend", 1), 0.0)
    assert not budget.spent_routed(("other", 1), 1.0)
