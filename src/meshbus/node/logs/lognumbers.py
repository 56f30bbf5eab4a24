"""The publish numbers that a received log holds, so that an event is appended once, however often it arrives.

An event is identified by its publisher (origin hash) and its publish number on the channel. Events without a number
cannot be compared and are always new. A publisher that lost its log counts from 0 again; its times then do not fit those
of the numbers that are known, and everything from this publisher is new. Numbers are kept as ranges, because events
arrive in order. The log itself is written in node/logs/logs.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.policy.bound import Bound, By, forgotten

MAX_ORIGINS = 4096
"""Publishers of one channel whose numbers are kept. Our choice: a packet names its publisher unproved, so any number can
be invented; of more, the one that was quiet longest is forgotten, and its events count as new."""
MAX_RANGES = 65_536
"""Ranges that are kept for one publisher. Each gap makes one; of more than that, the lowest are forgotten."""
SLACK_NS = 10 * 10**9
"""By how much the time of an event may differ between its packet and the publisher's log, which an append and a sync
lie between."""


BOUNDS = (
    Bound(
        name="logged_publishers",
        what="publishers whose numbers a received log knows",
        by=By.PUBLISHER,
        per_node=None,
        per={"channel": MAX_ORIGINS, "publisher, in gaps": MAX_RANGES},
        full="the one that was quiet longest goes",
        counter=forgotten("logged_publishers"),
    ),
)


class NumberRange(NamedTuple):
    """Consecutive publish numbers, and the times of the first and the last event where they are known."""

    first: int
    end: int
    """One past the last number."""
    from_ns: int | None = None
    to_ns: int | None = None


class LoggedNumbers:
    """The publish numbers of one channel that are in a log, by publisher."""

    def __init__(self, forget: Callable[[], None] | None = None) -> None:
        """Start without numbers; `forget` is called when those of a publisher make room for another's."""
        self._ranges: BoundedMap[int, list[NumberRange]] = BoundedMap(MAX_ORIGINS, forget)
        """Disjoint and ascending, by origin hash."""

    def add(self, origin: int, given: NumberRange) -> list[tuple[int, int]]:
        """Add numbers, and return those that were not known before, as pairs of first and end."""
        ranges = self._ranges.get(origin) or []
        self._ranges.put(origin, ranges)
        low = bisect_left(ranges, given.first, key=lambda one: one.end)  # the first that touches or overlaps
        high = bisect_right(ranges, given.end, key=lambda one: one.first)
        touched = ranges[low:high]
        if any(_contradict(one, given) for one in touched):
            ranges.clear()
            low = high = 0
            touched = []
        new, at = [], given.first
        for one in touched:
            if one.first > at:
                new.append((at, one.first))
            at = max(at, one.end)
        if at < given.end:
            new.append((at, given.end))
        ranges[low:high] = [_joined([*touched, given])]
        if len(ranges) > MAX_RANGES:
            del ranges[0]
        return new


def _contradict(known: NumberRange, given: NumberRange) -> bool:
    """Return whether two ranges overlap, but their times show that they are not of the same events."""
    if given.end <= known.first or known.end <= given.first:
        return False
    if known.from_ns is None or known.to_ns is None or given.from_ns is None or given.to_ns is None:
        return False
    # Times ascend with the numbers, so those of a part lie within those of the whole.
    late = given.first >= known.first and given.from_ns < known.from_ns - SLACK_NS
    return (
        late
        or (given.end <= known.end and given.to_ns > known.to_ns + SLACK_NS)
        or (given.first <= known.first and given.from_ns > known.from_ns + SLACK_NS)
        or (given.end >= known.end and given.to_ns < known.to_ns - SLACK_NS)
    )


def _joined(ranges: Iterable[NumberRange]) -> NumberRange:
    parts = sorted(ranges, key=lambda one: one.first)
    last = max(parts, key=lambda one: one.end)
    return NumberRange(parts[0].first, last.end, parts[0].from_ns, last.to_ns)
