"""What has expired: a pure function of what there is, the limits and the time. log/log.py acts on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshbus.log.durability import Retention

_NS = 1_000_000_000


class Unit(NamedTuple):
    """A part of a log that expires as a whole: a sealed segment, or a hot file that waits for its seal."""

    end: int
    bytes: int
    written_ns: int


def expired_until(units: Sequence[Unit], next_seq: int, hot_bytes: int, limits: Retention, now_ns: int) -> int:
    """Give the sequence below which everything has expired; 0 when nothing has.

    `units` are in order; `hot_bytes` is what the file being written takes, which never expires itself. A unit expires
    by age when its last event is older, by count when enough events follow it, by bytes while the whole is too large.
    """
    total = sum(unit.bytes for unit in units) + hot_bytes
    until = 0
    for unit in units:
        old = limits.max_age_s is not None and now_ns - unit.written_ns > limits.max_age_s * _NS
        many = limits.max_events is not None and next_seq - unit.end >= limits.max_events
        large = limits.max_bytes is not None and total > limits.max_bytes
        if not (old or many or large):
            break
        until = unit.end
        total -= unit.bytes
    return until
