"""Pacing: appends wait for a live follower that lacks too much, so that it cannot fall behind without end.

A majority acknowledges, so a leader could append as fast as the fastest followers store. The slower ones would lack more and
more; if the leader is lost then, whoever leads next may have much to copy. So a follower that was in step paces the
appends: they wait while it lacks more than `PACE_BYTES`. One that then stores less than `STEP_BYTES` within
`patience_s`, or is not heard, is left behind: it catches up on its own, and is in step again when it lacks less than half
of that.
"""

from __future__ import annotations

from typing import NamedTuple

from meshbus.engine.replicas.recent import KEPT_BYTES
from meshbus.policy.bound import Bound, By

PACE_BYTES = KEPT_BYTES // 2
"""What a follower in step may lack before appends wait. Our choice: the leader has it in memory, with a batch more."""

STEP_BYTES = 1 << 20
"""What a follower has to store while it is waited for. Our choice: with the default heartbeats 0.7 MB/s; a majority must not
wait for a disk that is slower than that."""

BOUNDS = (
    Bound(
        name="replica_lag",
        what="events that a live follower in step lacks",
        by=By.PEER,
        per_node=None,
        per={"follower": PACE_BYTES},
        unit="bytes",
        full="appends wait, and more than wait are refused with BACKPRESSURE; a follower that is too slow is left behind",
        counter="replica.paced, replica.left_behind",
    ),
)


class _Slow(NamedTuple):
    """A follower for which appends waited."""

    since: float
    stored: int
    """Bytes that it stored since then."""


class Pacing:
    """Which followers of a leader are in step, and for which of them appends wait."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._in_step: set[int] = set()
        self._slow: dict[int, _Slow] = {}
        """Followers for which appends waited, until they are well in step again."""

    def stored(self, node: int, nbytes: int, lacks: int | None, now: float) -> None:
        """Record that a follower stored events; `lacks` is None for more than the leader has in memory."""
        slow = self._slow.get(node)
        if lacks is not None and lacks <= PACE_BYTES // 2:
            self._in_step.add(node)
            self._slow.pop(node, None)
        elif slow is not None:
            stored = slow.stored + nbytes
            self._slow[node] = _Slow(now, 0) if stored >= STEP_BYTES else slow._replace(stored=stored)

    def lost(self, node: int) -> None:
        """Wait no longer for a follower that is not heard, or too slow."""
        self._in_step.discard(node)
        self._slow.pop(node, None)

    def waits(self, node: int, lacks: int | None, now: float) -> bool:
        """Return whether appends wait for a follower."""
        if node not in self._in_step or (lacks is not None and lacks <= PACE_BYTES):
            return False
        self._slow.setdefault(node, _Slow(now, 0))
        return not self.overdue(node, now)

    def overdue(self, node: int, now: float) -> bool:
        """Return whether a follower for which appends wait is too slow."""
        slow = self._slow.get(node)
        return slow is not None and now - slow.since >= self.patience_s
