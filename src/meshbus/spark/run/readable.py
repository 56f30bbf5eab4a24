"""Numbers of tables as people read them: with the unit that fits, and columns without the unit in their name.

A column says its unit by its name: `bytes` and `bytes_…` are bytes, `…_us` microseconds, `seconds` and `seconds_…` seconds,
and `…_per_s` a rate. Every other number is a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SIZES: Final = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
_DURATIONS: Final = (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
_LONG: Final = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
_LONG_S: Final = 120.0
"""From here on, durations are in minutes and more: 90 s is easier to read than 1.5 min."""


def heading(column: str) -> str:
    """Return what a column is called for people."""
    if column == "seconds":
        return "duration"
    for unit in ("_us", "_per_s"):
        column = column.removesuffix(unit)
    return column.replace("_", " ")


def number(column: str, value: float) -> str:
    """Return a number with the unit of its column."""
    if column.endswith("_us"):
        return duration(value / 1e6)
    if column.endswith("_per_s"):
        return f"{_digits(value)} /s"
    match column.partition("_")[0]:
        case "bytes":
            return size(value)
        case "seconds":
            return duration(value)
    return f"{value:,}" if isinstance(value, int) else _digits(value)


def size(count: float) -> str:
    """Return a number of bytes in decimal units."""
    return _fitted(count, _SIZES)


def duration(seconds: float) -> str:
    """Return a time in the unit that fits, from microseconds to days."""
    if seconds == 0:
        return "0 s"
    return _fitted(seconds, _DURATIONS if abs(seconds) < _LONG_S else _LONG)


def _fitted(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Return a value in the largest unit of which it has at least one, after it is rounded."""
    name, unit = next((one for one in reversed(units) if abs(value) >= 0.9995 * one[1]), units[0])
    return f"{_digits(value / unit)} {name}"


def _digits(value: float) -> str:
    """Return three digits of a number, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
