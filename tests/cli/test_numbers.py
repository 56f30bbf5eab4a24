"""Numbers that a user types."""

import pytest

from meshbus.cli.numbers import at_least_one, positive
from meshbus.errors import ConfigError


@pytest.mark.parametrize("number", [0.0, -1.0, float("inf"), float("nan")])
def test_seconds_are_positive_and_finite(number: float) -> None:
    with pytest.raises(ConfigError, match="--timeout: must be a positive number of seconds, got"):
        positive("--timeout", number)
    assert positive("--timeout", 0.5) == 0.5


def test_a_count_is_at_least_one_or_none() -> None:
    with pytest.raises(ConfigError, match="--count: must be at least 1, got 0; leave it out for no limit"):
        at_least_one("--count", 0)
    assert (at_least_one("--count", 1), at_least_one("--count", None)) == (1, None)
