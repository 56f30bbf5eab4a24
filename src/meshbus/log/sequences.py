"""Ranges of sequences: clip a requested range to what a log holds, and the size of the parts that it is read in."""

from __future__ import annotations

from typing import Final

from meshbus.errors import LogError, LogFault

SPLIT_ROWS: Final = 131_072
"""Target size of a split in rows: at most about a second of work for a Python worker."""


def clip_range(channel: str, first: int, end: int, start: int | None, stop: int | None) -> tuple[int, int]:
    """Clip the range from `start` to `stop` (excluded) to a log that holds `first` to `end` (excluded).

    None stands for the end of the log on that side. Raises LogError `range_gone` if `start` has expired: a reader must
    never skip events without noticing.
    """
    low = first if start is None else start
    high = end if stop is None else min(stop, end)
    # An empty range before `first` asks for nothing, so nothing is missing.
    if low < first and (stop is None or stop > low):
        raise LogError(
            LogFault.RANGE_GONE,
            f"channel {channel}: sequence {low} has expired, the first available is {first}; read from {first} on",
            first_available=first,
        )
    return low, high
