"""Sending a snapshot in parts: as fast as the target takes them, and again what did not arrive.

To a 0.23 node everything is sent at an even pace, and once more each time it is asked for. A meshbus target tells which
parts it misses (PartsMissing), so parts go out in rounds:

| round | parts | pace |
|---|---|---|
| first | all, in order | at most `window` parts ahead of the highest one that has arrived; more after each good report, less after a loss |
| others | those that were missing at the end of the round before, and then the last part | bursts at an even pace |

The last part ends a round: a target that gets it and is not complete says at once what is missing. If that is lost, the
orchestrator asks again after a while, and the last part is sent once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbus.compute.migration.base import Outbound
from meshbus.wire.messages.migration import CHUNK_BYTES, PartsMissing, SnapshotReady, count_chunks

FIRST_WINDOW, MAX_WINDOW = 32, 256
"""Parts under way: 220 kB, what the receive buffer of a node holds by default, to 1.8 MB, a part of what a carrier keeps."""


class Transfer:
    """One snapshot on its way to one node."""

    __slots__ = (
        "_attempt",
        "_highest",
        "_lost",
        "_next",
        "_origin",
        "_probe",
        "_round",
        "_seq_through",
        "_snapshot",
        "_total",
        "_window",
        "to",
    )

    def __init__(self, to: int, origin: int, attempt: int | None, seq_through: int, snapshot: bytes) -> None:
        self.to = to
        self._origin = origin
        self._attempt = attempt
        self._seq_through = seq_through
        self._snapshot = snapshot
        self._total = count_chunks(len(snapshot))
        self._round: Sequence[int] = range(self._total)
        self._next = 0
        """Place in the round of the part that is sent next."""
        self._window = FIRST_WINDOW
        self._highest = -1
        """The highest part of the first round that has arrived; what is missing below was lost."""
        self._lost = 0
        self._probe = False

    @property
    def done(self) -> bool:
        """Whether every part of the round was sent."""
        return self._next >= len(self._round)

    @property
    def is_windowed(self) -> bool:
        """Whether the target says what it gets, and parts wait for that."""
        return self._attempt is not None and isinstance(self._round, range)

    @property
    def ready(self) -> int:
        """How many parts may be sent now."""
        left = len(self._round) - self._next
        if self.is_windowed:
            left = max(0, min(left, self._highest + 1 + self._window - self._next))
        return left + self._probe

    def finish(self) -> None:
        """Send nothing more: the target is complete."""
        self._round, self._next, self._probe = (), 0, False

    def restart(self) -> None:
        """Send everything again, unless it is still being sent; to a meshbus target only the last part, as a question."""
        if self._attempt is not None:
            self._probe = bool(self._round) and self.ready == 0
        elif self.done:
            self._next = 0

    def burst(self, count: int) -> list[Outbound]:
        """Return the next parts, at most `count`."""
        count = min(count, self.ready)
        parts: list[int] = []
        if self._probe and count:
            self._probe = False
            parts, count = [self._total - 1], count - 1
        first, self._next = self._next, self._next + count
        return [(self.to, self._part(index)) for index in (*parts, *self._round[first : self._next])]

    def report(self, message: PartsMissing) -> None:
        """Record what the target has got, and so what may be sent, or must be sent again."""
        if (message.seq_through, message.total_chunks) != (self._seq_through, self._total) or not self._round:
            return
        if self.is_windowed:
            self._adjust(message.ranges)
        last = self._total - 1
        has_last = not message.ranges or message.ranges[-1][1] <= last
        if self.done and has_last and message.ranges:
            missing = [index for start, end in message.ranges for index in range(start, end)]
            self._round, self._next = [*missing, last], 0

    def _adjust(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Move and resize the window."""
        # The last part may have come before its turn, as a question.
        sent = min(self._next, self._total - 1)
        missing = [(start, min(end, sent)) for start, end in ranges if start < sent]
        tail = missing.pop() if missing and missing[-1][1] == sent else (sent, sent)
        arrived = tail[0] - 1 - self._highest
        if arrived <= 0:
            return
        self._highest = tail[0] - 1
        lost = sum(end - start for start, end in missing)
        grown = self._window + arrived if lost <= self._lost else self._window // 2
        self._window = max(FIRST_WINDOW // 2, min(grown, MAX_WINDOW))
        self._lost = lost

    def _part(self, index: int) -> SnapshotReady:
        start = index * CHUNK_BYTES
        return SnapshotReady(
            origin=self._origin,
            attempt=self._attempt,
            seq_through=self._seq_through,
            chunk_index=index,
            total_chunks=self._total,
            chunk=self._snapshot[start : start + CHUNK_BYTES],
        )
