from __future__ import annotations

import pytest

from meshbus.engine.replicas.progress import Progress, is_majority, majority_value
from meshbus.wire.messages.leadership import Config, Member


def config(count: int) -> Config:
    return Config(epoch=1, version=1, members=tuple(Member(node, 0) for node in range(count)))


@pytest.mark.parametrize(("count", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_more_than_half_is_a_majority(count: int, needed: int) -> None:
    members = config(count).members
    assert not is_majority(config(count), members[: needed - 1])
    assert is_majority(config(count), members[:needed])


def test_strangers_and_other_incarnations_do_not_count() -> None:
    assert not is_majority(config(3), {Member(0, 0), Member(1, 9), Member(7, 0)})


@pytest.mark.parametrize(
    ("values", "expected"), [([5], 5), ([5, 9], 5), ([1, 5, 9], 5), ([1, 5, 9, 9], 5), ([1, 2, 5, 9, 9], 5)]
)
def test_a_majority_has_reached_its_lowest_value(values: list[int], expected: int) -> None:
    assert majority_value(config(len(values)), lambda member: values[member.node]) == expected


def test_what_is_confirmed_leaves_the_window() -> None:
    one = Progress()
    one.sent(10, 100)
    one.sent(20, 50)
    one.stored(10)
    assert (one.match, one.next, one.in_flight_bytes) == (10, 20, 50)
    one.stored(5)
    assert one.match == 10, "a late confirmation takes nothing back"
    one.resume(12)
    assert (one.next, one.in_flight_bytes) == (12, 0)
    one.stored(30)
    assert one.next == 30
