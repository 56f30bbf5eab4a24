"""Numbers that a user types: what is not allowed is one sentence, before any connection is made."""

from __future__ import annotations

import math

from meshbus.errors import ConfigError


def positive(option: str, number: float) -> float:
    """Return a number of seconds. Raises ConfigError unless it is positive and finite."""
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(option, f"must be a positive number of seconds, got {number:g}; try {option} 5")
    return number


def at_least_one(option: str, number: int | None) -> int | None:
    """Return a count, or None if none was given. Raises ConfigError for 0 and less."""
    if number is not None and number < 1:
        raise ConfigError(option, f"must be at least 1, got {number}; leave it out for no limit")
    return number
