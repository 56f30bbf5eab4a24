"""Progress: how far each follower of a leader is, and what a majority has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import msgspec

from meshbus.wire.messages.leadership import Config, Member


class Progress(msgspec.Struct):
    """One follower, as its leader sees it."""

    incarnation: int | None = None
    """None until it has answered in this epoch."""
    match: int = 0
    """Its log equals the leader's up to here, on its disk."""
    started: bool = False
    """Whether the start of the epoch is on its disk: only then its log counts for commits."""
    round: int = 0
    heard_at: float = float("-inf")
    config_rank: tuple[int, int] = (0, 0)
    next: int = 0
    """The next sequence to send."""
    in_flight: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    """End and size of each message with events that was sent and is not confirmed."""
    in_flight_bytes: int = 0

    def sent(self, end: int, size: int) -> None:
        """Record a message with events."""
        self.next = end
        self.in_flight.append((end, size))
        self.in_flight_bytes += size

    def stored(self, tail: int) -> int:
        """Record how far the follower's log is on disk, and return the bytes of events that this confirms."""
        before = self.in_flight_bytes
        self.match = max(self.match, tail)
        self.next = max(self.next, self.match)
        while self.in_flight and self.in_flight[0][0] <= self.match:
            self.in_flight_bytes -= self.in_flight.popleft()[1]
        return before - self.in_flight_bytes

    def resume(self, seq: int) -> None:
        """Send again from a sequence on: what was under way is taken for lost."""
        self.next = seq
        self.in_flight.clear()
        self.in_flight_bytes = 0


def is_majority(config: Config, present: Collection[Member]) -> bool:
    """Return whether more than half of the members are present."""
    return 2 * sum(member in present for member in config.members) > len(config.members)


def majority_value(config: Config, value_of: Callable[[Member], float]) -> float:
    """Return the highest value that a majority of the members has reached."""
    values = sorted((value_of(member) for member in config.members), reverse=True)
    return values[len(values) // 2]
