"""Putting the parts of a snapshot together, in whatever order and how often they arrive (compute.md §4).

Memory is bounded by what one snapshot may have and by the number of snapshots at once; a part that does not fit is
refused and changes nothing. Parts of different senders are never put together, and no sender can make the parts of
another one look old.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.policy.bound import Bound, By
from meshbus.wire.messages.migration import CHUNK_BYTES, MAX_RANGES, SnapshotReady, count_chunks

IDLE_S = 300.0
"""A snapshot without progress for this long is forgotten (compute.md §4)."""
MAX_SNAPSHOTS = 16
"""Snapshots on their way here at the same time. Our choice."""
REPORT_EVERY = 16
"""Parts after which a meshbus source is told what is missing: half of what it sends before it is told anything."""
_MAX_REMEMBERED = 4096
"""Daemons whose newest snapshot is remembered. Our choice."""

BOUNDS = (
    Bound(
        name="arriving_snapshots",
        what="snapshots of daemons that are being received",
        by=By.PEER,
        per_node=MAX_SNAPSHOTS,
        full="the one without progress for the longest time goes; its sender begins again",
        counter="none: the move takes longer",
    ),
    Bound(
        name="newest_snapshots",
        what="daemons whose newest snapshot is known",
        by=By.PEER,
        per_node=_MAX_REMEMBERED,
        full="the oldest goes",
        counter="none: an older snapshot of it is then taken",
    ),
)


class _Key(NamedTuple):
    sender: int
    origin: int
    attempt: int | None
    seq_through: int


class _Parts:
    def __init__(self, total: int, now: float) -> None:
        self.total = total
        self.chunks: dict[int, bytes] = {}
        self.missing = [(0, total)]
        """Ranges of parts that have not arrived, ascending."""
        self.arrived = 0
        """How many came, repetitions included."""
        self.size = 0
        self.touched_at = now

    def put(self, index: int, chunk: bytes) -> None:
        before = self.chunks.get(index)
        if before is None:
            self._fill(index)
        self.arrived += 1
        self.size += len(chunk) - len(before or b"")
        self.chunks[index] = chunk

    def _fill(self, index: int) -> None:
        place = bisect_right(self.missing, (index, self.total)) - 1
        start, end = self.missing[place]
        self.missing[place : place + 1] = [one for one in ((start, index), (index + 1, end)) if one[0] < one[1]]


class Reassembler:
    """Snapshots on their way here."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_chunks = count_chunks(max_bytes)
        self._parts: dict[_Key, _Parts] = {}
        self._newest: BoundedMap[tuple[int, int], int] = BoundedMap(_MAX_REMEMBERED)
        """The newest snapshot of each sender and daemon in moves without a number: an older one is from the past."""

    def __len__(self) -> int:
        return len(self._parts)

    def feed(self, part: SnapshotReady, sender: int, now: float) -> bytes | str | None:
        """Take one part, and return the snapshot if it is complete, None if not, or why the part was refused."""
        self._forget_idle(now)
        key = _Key(sender, part.origin, part.attempt, part.seq_through)
        if problem := self._problem(part, key):
            return problem
        parts = self._parts.get(key)
        if parts is None:
            self._make_room(key)
            parts = self._parts[key] = _Parts(part.total_chunks, now)
        parts.put(part.chunk_index, part.chunk)
        parts.touched_at = now
        if part.attempt is None:
            self._newest.put((sender, part.origin), part.seq_through)
        if len(parts.chunks) < parts.total:
            return None
        del self._parts[key]
        return b"".join(parts.chunks[index] for index in range(parts.total))

    def missing(self, part: SnapshotReady, sender: int) -> tuple[tuple[int, int], ...] | None:
        """Return which parts are missing after one has come, if it is time to tell; they are ranges, ascending."""
        parts = self._parts.get(_Key(sender, part.origin, part.attempt, part.seq_through))
        if parts is None or (parts.arrived % REPORT_EVERY and part.chunk_index + 1 < parts.total):
            return None
        return tuple(parts.missing[:MAX_RANGES])

    def drop(self, sender: int, origin: int) -> None:
        """Remove the parts of a daemon's snapshots that a sender has sent."""
        for key in [key for key in self._parts if (key.sender, key.origin) == (sender, origin)]:
            del self._parts[key]

    def _problem(self, part: SnapshotReady, key: _Key) -> str:
        if not part.chunk:
            return "the part is empty"
        if part.total_chunks > self._max_chunks:
            return f"{part.total_chunks} parts; allowed are {self._max_chunks}"
        if part.attempt is None and part.seq_through < (self._newest.get((key.sender, part.origin)) or 0):
            return "a newer snapshot of the daemon has arrived"
        parts = self._parts.get(key)
        if parts is not None and parts.total != part.total_chunks:
            return f"{part.total_chunks} parts, and the first part said {parts.total}"
        if parts is not None and parts.size + CHUNK_BYTES > self._max_bytes + CHUNK_BYTES:
            return f"more than {self._max_bytes} bytes"
        return ""

    def _make_room(self, key: _Key) -> None:
        if key.attempt is None:
            # compute.md §4: a newer snapshot of a daemon replaces the parts of older ones.
            for other in [one for one in self._parts if one[:3] == key[:3] and one.seq_through < key.seq_through]:
                del self._parts[other]
        if len(self._parts) >= MAX_SNAPSHOTS:
            del self._parts[min(self._parts, key=lambda key: self._parts[key].touched_at)]

    def _forget_idle(self, now: float) -> None:
        for key in [key for key, parts in self._parts.items() if now >= parts.touched_at + IDLE_S]:
            del self._parts[key]
