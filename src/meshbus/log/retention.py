"""Which part of a log has expired: a pure function of its parts, the limits and the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshbus.log.durability import Retention

_NS = 1_000_000_000


class Unit(NamedTuple):
    """A part of a log that expires as a whole: a segment, or a hot file that is no longer appended to."""

    end: int
    bytes: int
    written_ns: int


def expired_until(units: Sequence[Unit], next_seq: int, hot_bytes: int, limits: Retention, now_ns: int) -> int:
    """Return the sequence below which everything has expired, or 0 if nothing has.

    `units` are in order; `hot_bytes` is the size of the file being appended to, which never expires. A unit expires by
    age if its last event is older than the limit, by count if enough events follow it, and by size while the total is
    too large.
    """
    total = sum(unit.bytes for unit in units) + hot_bytes
    until = 0
    for unit in units:
        old = limits.max_age_s is not None and now_ns - unit.written_ns > limits.max_age_s * _NS
        many = limits.max_events is not None and next_seq - unit.end >= limits.max_events
        large = limits.max_bytes is not None and total > limits.max_bytes
        # Only a prefix expires: a log has no gaps.
        if not (old or many or large):
            break
        until = unit.end
        # What expires first makes room, so later units may stay.
        total -= unit.bytes
    return until


def swept_until(retired: Sequence[Unit], live_bytes: int, limits: Retention, grace_s: float, now_ns: int) -> int:
    """Return how many of the retired parts are to be removed, the oldest first.

    A part goes when its grace period is over, or earlier while everything together is larger than the limit. `end` of a
    unit has no meaning here; `written_ns` is when it was retired.
    """
    total = live_bytes + sum(unit.bytes for unit in retired)
    for count, unit in enumerate(retired):
        over = limits.max_bytes is not None and total > limits.max_bytes
        if not over and now_ns - unit.written_ns < grace_s * _NS:
            return count
        total -= unit.bytes
    return len(retired)
