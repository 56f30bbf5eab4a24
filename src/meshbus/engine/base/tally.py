"""Tally: how many events and bytes went over each channel.

A count never goes back, because those who watch a node read differences. So nothing is evicted: the first `MAX_TALLIED`
channels have a count of their own, and all others share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshbus.policy.bound import Bound, By

MAX_TALLIED = 1024
"""Channels with a count of their own. Our choice: more than a person looks at."""

BOUNDS = (
    Bound(
        name="tallied_channels",
        what="channels whose traffic is counted one by one, each way",
        by=By.PUBLISHER,
        per_node=MAX_TALLIED,
        full="the rest is counted together",
        counter="the row of all other channels",
    ),
)


class Volume(NamedTuple):
    """What went over one channel so far."""

    channel: str | None
    """None for all channels that have no count of their own."""
    events: int
    bytes: int


class Tally:
    """Events and bytes by channel, in one direction."""

    __slots__ = ("_counts", "_others")

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._others = [0, 0]

    def add(self, channel: str, events: int, nbytes: int) -> None:  # hot: bench_publish
        """Count events of a channel."""
        counts = self._counts.get(channel)
        if counts is None:
            counts = self._others
            if len(self._counts) < MAX_TALLIED:
                counts = self._counts[channel] = [0, 0]
        counts[0] += events
        counts[1] += nbytes

    def __iter__(self) -> Iterator[Volume]:
        """Iterate over the channels in the order of their first event, then over the rest if there is any."""
        for channel, (events, nbytes) in self._counts.items():
            yield Volume(channel, events, nbytes)
        if self._others[0]:
            yield Volume(None, *self._others)
