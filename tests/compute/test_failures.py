from __future__ import annotations

import pytest

from meshbus.compute.failures import (
    BroadOutage,
    Cause,
    FailureWindow,
    Independent,
    MassFailure,
    SubnetFailure,
    UnknownCause,
    find_cause,
)
from meshbus.names.subnet import SubnetId


def subnets(*texts: str) -> list[SubnetId]:
    return [SubnetId.parse(text) for text in texts]


def test_few_failures_are_independent_and_only_new_ones_are_told() -> None:
    window = FailureWindow()
    assert window.fail([1], 10, {}, 0.0) == Independent((1,))
    assert window.fail([2], 10, {}, 1.0) == Independent((2,))
    budgets = [window.recovery_budget]
    assert window.fail([3], 10, {}, 1.5) == MassFailure((1, 2, 3), UnknownCause())
    budgets.append(window.recovery_budget)
    for node in (1, 2, 3):
        window.recovered(node)
        budgets.append(window.recovery_budget)
    assert budgets == [None, 3, 3, 3, None]


def test_failures_that_are_long_ago_do_not_count() -> None:
    window = FailureWindow()
    window.fail([1, 2], 10, {}, 0.0)
    assert window.fail([3], 10, {}, 2.1) == Independent((3,))
    assert window.fail([], 0, {}, 9.0) == Independent(())


@pytest.mark.parametrize(
    ("failed", "cause"),
    [
        ((), UnknownCause()),
        (("global",), BroadOutage()),
        (("3.7", "3.7", "3.7"), SubnetFailure(SubnetId.parse("3.7"))),
        (("3.7.1", "3.7.2"), SubnetFailure(SubnetId.parse("3.7"))),
        (("3.7.1", "3.8.2"), SubnetFailure(SubnetId.parse("3"))),
        (("3.7", "4.7"), BroadOutage()),
        (("3.7", "3.7", "3.7", "3.7", "5"), SubnetFailure(SubnetId.parse("3.7"))),
        (("3.7", "3.7", "3.7", "5"), BroadOutage()),
    ],
)
def test_the_cause_is_the_deepest_subnet_of_most(failed: tuple[str, ...], cause: Cause) -> None:
    assert find_cause(subnets(*failed)) == cause


def test_a_mass_failure_names_its_cause() -> None:
    places = dict(enumerate(subnets("3.7", "3.7", "4")))
    assert FailureWindow().fail([0, 1], 3, places, 0.0) == MassFailure((0, 1), SubnetFailure(SubnetId.parse("3.7")))
