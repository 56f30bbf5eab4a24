"""Joining: DATA messages that follow each other become one, as if the leader could send larger packets.

A packet has room for a few events. What one read of the socket brings of one leader, in the order of the log, is taken
over in one step: one comparison with the own log, one write. Only the heads are looked at here; what a message that
continues the others says about channel and epoch is the same bytes. The counterpart is wire/datarun.py.
"""

from __future__ import annotations

import struct

import msgspec

from meshbus.wire.datarun import DataBodies
from meshbus.wire.messages.leadership import DATA_HEAD, MAX_SEQ, Data

_COMMON = 41
"""Kind, channel id and epoch: how many bytes of all messages of one leader in one epoch are the same."""
_FIELDS = struct.Struct("<QQQQQQI")


class Joined:
    """Consecutive messages of one node, beginning with one that was decoded."""

    __slots__ = ("_bodies", "_committed", "_common", "_first", "_next", "_round", "sender")

    def __init__(self, sender: int, message: memoryview, data: Data) -> None:
        self.sender = sender
        self._first = data
        self._common = bytes(message[:_COMMON])
        self._next = data.first_seq + len(data.payloads)
        self._round, self._committed = data.round, data.committed
        self._bodies = DataBodies()
        self._bodies.add(message[DATA_HEAD:], len(data.payloads))

    def join(self, sender: int, message: memoryview) -> bool:  # hot: bench_replication
        """Add a message, if it continues these; return whether it does. Raises MalformedPacket for a broken one."""
        if sender != self.sender or len(message) < DATA_HEAD or message[:_COMMON] != self._common:
            return False
        round_, prev, entry, committed, retained, first, count = _FIELDS.unpack_from(message, _COMMON)
        mine = self._first
        if (
            first != self._next
            or not count
            or not prev == entry == mine.entry_epoch
            or retained != mine.first_retained
            or not round_
            or not mine.round
            or max(committed, first + count) > MAX_SEQ
        ):
            return False
        self._bodies.add(message[DATA_HEAD:], count)
        self._next += count
        self._round, self._committed = max(self._round, round_), max(self._committed, committed)
        return True

    def data(self) -> Data:
        """Return all as one message: it begins as the first, and knows what the last knew."""
        first = self._first
        if self._next == first.first_seq + len(first.payloads):
            return first
        return msgspec.structs.replace(
            first, round=self._round, committed=self._committed, payloads=self._bodies.column()
        )
