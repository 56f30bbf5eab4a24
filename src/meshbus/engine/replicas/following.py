"""Following: make the own log equal to a leader's, event by event, and set aside what differs.

An event is identified by its sequence and its epoch. If the event before a message is the same here, everything before
it is the same too; then own events that differ from the message are not the leader's and are moved to a side file. A
candidate copies the log of the best promiser in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbus.engine.replicas.journal import Journal
from meshbus.engine.replicas.records import Diverged, Gap, Out
from meshbus.wire.messages.leadership import Data


class Contradiction(Exception):
    """The leader's log contradicts events that are committed here: one of the two disks is wrong."""


class Following:
    """How far the own log is known to equal that of one leader, in one epoch."""

    def __init__(self, journal: Journal, committed: int) -> None:
        self._journal = journal
        self.committed = committed
        """Everything below is on the disks of a majority."""
        self.verified = committed
        """Everything below equals the leader's log: committed events are the same everywhere."""
        self.round = 0

    def accept(self, data: Data, out: Out) -> int | None:
        """Take over events; return the sequence from which the leader has to send, or None if all is well."""
        first, payloads = self._without_committed(data)
        # Also if events are missing: a round asks whether this member still follows, not how far its log is.
        self.round = max(self.round, data.round)
        journal = self._journal
        differs = first > self.committed and journal.runs.epoch_at(first - 1) != data.prev_epoch
        if first > journal.tail or differs:
            if first != data.first_retained:
                # One step per epoch: all events of the own run before `first` are in doubt.
                return journal.tail if first > journal.tail else max(self.committed, journal.runs.start_of(first - 1))
            self._skip(data, out)
        self._take(data, first, payloads, out)
        self.verified = max(self.verified, first + len(payloads))
        self.committed = max(self.committed, min(data.committed, self.verified))
        return None

    def _without_committed(self, data: Data) -> tuple[int, Sequence[bytes]]:
        """Leave out events that are committed: they are the same here, and may be removed by retention."""
        known = max(0, min(self.committed - data.first_seq, len(data.payloads)))
        last = data.first_seq + known - 1
        if known and last >= self._journal.first_retained and self._journal.runs.epoch_at(last) != data.entry_epoch:
            raise self._contradiction(last)
        return last + 1, data.payloads[known:]

    def _take(self, data: Data, first: int, payloads: Sequence[bytes], out: Out) -> None:
        journal, end = self._journal, first + len(payloads)
        same = first
        if first < journal.tail and journal.runs.epoch_at(first) == data.entry_epoch:
            same = min(end, journal.runs.end_of(first, journal.tail))
        # Behind events of its own epoch the leader has nothing of an older one.
        newest = data.entry_epoch == data.epoch
        differs = same < end or (newest and same < journal.tail and journal.runs.epoch_at(same) != data.entry_epoch)
        if same < journal.tail and differs:
            self._set_aside(same, out)
        if same == journal.tail and (same < end or journal.runs.last_epoch < data.entry_epoch):
            journal.append(data.entry_epoch, payloads[same - first :], out)

    def _set_aside(self, seq: int, out: Out) -> None:
        journal = self._journal
        if seq < self.committed:
            raise Contradiction(
                f"the leader's log differs at {seq}, and everything below {self.committed} is committed"
            )
        out.notices.append(Diverged(seq, journal.tail - seq, journal.runs.epoch_at(seq)))
        journal.set_aside(seq, out)

    def _contradiction(self, seq: int) -> Contradiction:
        return Contradiction(f"the leader's log differs at {seq}, and everything below {self.committed} is committed")

    def _skip(self, data: Data, out: Out) -> None:
        """Continue at the first event that the leader still has; what it removed was committed."""
        journal = self._journal
        if journal.tail > self.committed:
            self._set_aside(self.committed, out)
        out.notices.append(Gap(journal.tail, data.first_seq))
        journal.skip_to(data.first_seq, data.prev_epoch, out)
        self.committed = max(self.committed, data.first_seq)
