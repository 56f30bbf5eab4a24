"""Epoch runs: which epoch appended which events of a log, as a short sorted list instead of a column.

A run is an epoch and the sequence at which it starts; it ends where the next one starts. The last run may be empty: an
epoch has started, and nothing was appended yet. Epochs only grow along a log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class EpochRuns:
    """The runs of one log."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        pairs = list(runs)
        self._epochs = [epoch for epoch, _ in pairs]
        self._starts = [start for _, start in pairs]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._epochs, self._starts, strict=True)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def last_epoch(self) -> int:
        """The epoch of the end of the log; 0 if it is empty."""
        return self._epochs[-1] if self._epochs else 0

    def epoch_at(self, seq: int) -> int:
        """Return the epoch that appended an event; 0 before the first event of all."""
        place = self._place(seq)
        return self._epochs[place] if place >= 0 else 0

    def start_of(self, seq: int) -> int:
        """Return where the run of an event starts."""
        return self._starts[self._place(seq)]

    def end_of(self, seq: int, tail: int) -> int:
        """Return where the run of an event ends."""
        place = self._place(seq) + 1
        return self._starts[place] if place < len(self._starts) else tail

    def append(self, epoch: int, seq: int) -> None:
        """Record that an epoch appends at the end of the log, or starts there."""
        if self.last_epoch == epoch:
            return
        # An epoch that started here and appended nothing is replaced.
        self._cut(seq)
        if self.last_epoch != epoch:
            self._epochs.append(epoch)
            self._starts.append(seq)

    def truncate(self, seq: int) -> None:
        """Remove what starts behind a sequence. A run that starts there stays, as an empty one.

        It was stored with a log that had everything below `seq`, and may have been counted for a majority: forgetting
        it would let a member with an older log pass for a better one.
        """
        self._cut(seq + 1)

    def trim(self, seq: int) -> None:
        """Remove runs that end at or before a sequence; the epoch of the event before it stays known."""
        place = max(0, self._place(seq - 1))
        del self._epochs[:place], self._starts[:place]

    def _place(self, seq: int) -> int:
        return bisect_right(self._starts, seq) - 1

    def _cut(self, first_start: int) -> None:
        while self._starts and self._starts[-1] >= first_start:
            self._starts.pop()
            self._epochs.pop()
