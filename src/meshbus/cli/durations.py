"""Durations on the command line: a number and a unit, such as 90s, 12h or 30d."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_of(text: str, option: str) -> int:
    """Return a duration in seconds. Raises ConfigError, with the option, for anything else."""
    from meshbus.errors import ConfigError

    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if found is None or not int(found[1]):
        raise ConfigError(option, f"expected a number and s, m, h or d, such as 90s, 12h or 30d, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]
