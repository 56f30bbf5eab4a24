"""Joining: DATA messages that follow each other become one, as if the leader could send larger packets.

A packet has room for a few events. What one read of the socket brings of one leader, in the order of the log, is taken
over in one step: one comparison with the own log, one write.
"""

from __future__ import annotations

import msgspec

from meshbus.wire.messages.leadership import Data


class Joined:
    """Consecutive messages of one node."""

    __slots__ = ("_first", "_last", "_payloads", "sender")

    def __init__(self, sender: int, data: Data) -> None:
        self.sender = sender
        self._first = self._last = data
        self._payloads = list(data.payloads)

    def join(self, sender: int, data: Data) -> bool:  # hot: bench_replication
        """Add a message, if it continues these; return whether it does."""
        last = self._last
        if (
            sender != self.sender
            or data.first_seq != last.first_seq + len(last.payloads)
            or not data.payloads
            or data.epoch != last.epoch
            or not data.prev_epoch == data.entry_epoch == last.entry_epoch
            or data.first_retained != last.first_retained
            or not data.round
            or not last.round
        ):
            return False
        self._payloads += data.payloads
        self._last = data
        return True

    def data(self) -> Data:
        """Return all as one message: it begins as the first, and knows what the last knew."""
        if self._first is self._last:
            return self._first
        first, last = self._first, self._last
        return msgspec.structs.replace(
            first,
            round=max(first.round, last.round),
            committed=max(first.committed, last.committed),
            payloads=tuple(self._payloads),
        )
