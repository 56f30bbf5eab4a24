"""Pacing: appends wait for a live follower that lacks too much, so that it cannot fall behind without end.

A majority acknowledges, so a leader could append as fast as the fastest followers store. The slower ones would lack more and
more; if the leader is lost then, whoever leads next may have much to copy. So a follower that was in step paces the
appends: they wait while it lacks more than `PACE_BYTES`. It is waited for as long as it stores something. One that
stores nothing for `patience_s`, or is not heard, is left behind: it catches up on its own, and is in step again when it
lacks less than half of that.
"""

from __future__ import annotations

from meshbus.engine.replicas.recent import KEPT_BYTES
from meshbus.policy.bound import Bound, By

PACE_BYTES = KEPT_BYTES // 2
"""What a follower in step may lack before appends wait. Our choice: the leader has it in memory, with a batch more."""

BOUNDS = (
    Bound(
        name="replica_lag",
        what="events that a live follower in step lacks",
        by=By.PEER,
        per_node=None,
        per={"follower": PACE_BYTES},
        unit="bytes",
        full="appends wait, and more than wait are refused with BACKPRESSURE; a follower that stores nothing is left behind",
        counter="replica.paced, replica.left_behind",
    ),
)


class Pacing:
    """Which followers of a leader are in step, and for which of them appends wait."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._in_step: set[int] = set()
        self._since: dict[int, float] = {}
        """Since when appends wait for a follower that has not stored anything."""

    def stored(self, node: int, lacks: int | None, now: float) -> None:
        """Record that a follower stored something; `lacks` is None for more than the leader has in memory."""
        if node in self._since:
            self._since[node] = now
        if lacks is not None and lacks <= PACE_BYTES // 2:
            self._in_step.add(node)

    def lost(self, node: int) -> None:
        """Wait no longer for a follower that is not heard."""
        self._in_step.discard(node)
        self._since.pop(node, None)

    def waits(self, node: int, lacks: int | None, now: float) -> bool:
        """Return whether appends wait for a follower."""
        if node not in self._in_step:
            return False
        if lacks is not None and lacks <= PACE_BYTES:
            self._since.pop(node, None)
            return False
        return not self.overdue(node, now) and self._since.setdefault(node, now) <= now

    def overdue(self, node: int, now: float) -> bool:
        """Return whether a follower for which appends wait has stored nothing for too long."""
        return now - self._since.get(node, now) >= self.patience_s
