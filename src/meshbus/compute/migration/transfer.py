"""Sending a snapshot in parts, a burst at a time, once around for each time it is asked for."""

from __future__ import annotations

from meshbus.compute.migration.base import Outbound
from meshbus.wire.messages.migration import CHUNK_BYTES, SnapshotReady, count_chunks


class Transfer:
    """One snapshot on its way to one node."""

    __slots__ = ("_attempt", "_next", "_origin", "_seq_through", "_snapshot", "_total", "to")

    def __init__(self, to: int, origin: int, attempt: int | None, seq_through: int, snapshot: bytes) -> None:
        self.to = to
        self._origin = origin
        self._attempt = attempt
        self._seq_through = seq_through
        self._snapshot = snapshot
        self._total = count_chunks(len(snapshot))
        self._next = 0

    @property
    def done(self) -> bool:
        """Whether every part was sent since the last start."""
        return self._next >= self._total

    def restart(self) -> None:
        """Send everything again, unless it is still being sent."""
        if self.done:
            self._next = 0

    def burst(self, count: int) -> list[Outbound]:
        """Return the next parts, at most `count`."""
        first, self._next = self._next, min(self._next + count, self._total)
        return [(self.to, self._part(index)) for index in range(first, self._next)]

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
