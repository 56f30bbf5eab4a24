"""Durations on the command line."""

import pytest

from meshbus.cli.durations import seconds_of
from meshbus.errors import ConfigError


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2m", 120), (" 12h ", 43_200), ("30d", 2_592_000)])
def test_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert seconds_of(text, "--ttl") == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "1.5h", "0s", "-1s", "5w", "1h30m"])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="--wait: expected a number and s, m, h or d"):
        seconds_of(text, "--wait")
