"""Which segments of a log move to object storage: pure functions of its parts, the limits and the time.

A segment is copied when it is old enough, or while too much is only local. A local file is removed when its segment has a
verified copy and, if there is a limit for local bytes, while that is exceeded: the newest stay where reading is fast.
The steps are in log/embedded/tier.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshbus.log.durability import Tiering

_NS = 1_000_000_000


class Place(NamedTuple):
    """A segment, and where it is."""

    name: str
    bytes: int
    written_ns: int
    local: bool
    remote: bool


def next_to_copy(places: Sequence[Place], hot_bytes: int, limits: Tiering, now_ns: int) -> str | None:
    """Return the oldest segment that is due to be copied, or None. `places` are in order."""
    waiting = [place for place in places if not place.remote]
    if not waiting:
        return None
    oldest = waiting[0]
    old = limits.after_s is not None and now_ns - oldest.written_ns > limits.after_s * _NS
    # What has a copy can be removed at once, so only what has none counts.
    only_local = sum(place.bytes for place in waiting) + hot_bytes
    large = limits.local_bytes is not None and only_local > limits.local_bytes
    return oldest.name if old or large else None


def surplus(places: Sequence[Place], hot_bytes: int, limits: Tiering) -> Iterator[str]:
    """Yield the segments whose local files are to be removed, the oldest first. `places` are in order."""
    excess = local_bytes(places) + hot_bytes - (limits.local_bytes or 0)
    for place in places:
        if place.local and place.remote and (limits.local_bytes is None or excess > 0):
            excess -= place.bytes
            yield place.name


def local_bytes(places: Sequence[Place]) -> int:
    """Return the size of the local files."""
    return sum(place.bytes for place in places if place.local)
