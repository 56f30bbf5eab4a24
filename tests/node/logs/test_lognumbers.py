"""Publish numbers that a log holds: each is new once, unless its publisher began to count again."""

import random

import pytest

from meshbus.node.logs import lognumbers
from meshbus.node.logs.lognumbers import SLACK_NS, LoggedNumbers, NumberRange

S = 10**9


def test_only_numbers_that_are_not_known_are_new() -> None:
    known = LoggedNumbers()
    assert known.add(1, NumberRange(10, 20)) == [(10, 20)]
    assert known.add(1, NumberRange(30, 40)) == [(30, 40)]
    assert known.add(1, NumberRange(12, 18)) == []
    assert known.add(1, NumberRange(5, 45)) == [(5, 10), (20, 30), (40, 45)]
    assert known.add(1, NumberRange(0, 50)) == [(0, 5), (45, 50)]
    assert known.add(2, NumberRange(0, 50)) == [(0, 50)], "another publisher"


def test_numbers_agree_with_a_set() -> None:
    for seed in range(50):
        draw, known, truth = random.Random(seed), LoggedNumbers(), set[int]()
        for _ in range(60):
            first = draw.randrange(200)
            end = first + draw.randrange(1, 30)
            new = {number for low, high in known.add(7, NumberRange(first, end)) for number in range(low, high)}
            assert new == set(range(first, end)) - truth, seed
            truth |= set(range(first, end))


def test_a_publisher_that_counts_from_zero_again_is_new() -> None:
    known = LoggedNumbers()
    assert known.add(1, NumberRange(0, 100, 1_000 * S, 1_100 * S)) == [(0, 100)]
    assert known.add(1, NumberRange(0, 100, 1_000 * S + SLACK_NS, 1_100 * S)) == [], "the times fit"
    assert known.add(1, NumberRange(50, 60)) == [], "a time that is not known says nothing"
    assert known.add(1, NumberRange(0, 5, 2_000 * S, 2_001 * S)) == [(0, 5)]
    assert known.add(1, NumberRange(5, 9, 2_001 * S, 2_002 * S)) == [(5, 9)]
    assert known.add(1, NumberRange(3, 9, 2_001 * S, 2_002 * S)) == []
    assert known.add(1, NumberRange(0, 2, 900 * S, 901 * S)) == [(0, 2)], "a clock that was set back"


def test_memory_is_bounded() -> None:
    known = LoggedNumbers()
    for number in range(0, 2 * (lognumbers.MAX_RANGES + 5), 2):
        known.add(1, NumberRange(number, number + 1))
    assert known.add(1, NumberRange(0, 1)) == [(0, 1)], "the lowest were forgotten"


def test_invented_publishers_are_bounded_and_the_quietest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet names its publisher unproved, so a peer can name any number of them."""
    monkeypatch.setattr(lognumbers, "MAX_ORIGINS", 3)
    forgotten: list[None] = []
    known = LoggedNumbers(lambda: forgotten.append(None))
    for origin in range(100, 110):
        known.add(1, NumberRange(origin, origin + 1))
        known.add(origin, NumberRange(0, 1))
    assert len(known._ranges) == 3
    assert len(forgotten) == 8
    assert known.add(1, NumberRange(100, 110)) == [], "the one that goes on is remembered"
