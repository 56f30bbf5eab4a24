"""Inbox of 0x0E00: which messages of other nodes reach a channel's coordinator, and which are rejected, and how.

The gates, in their order (redex.md §4): the message decodes; its channel is replicated here; its sender is a member;
there is room. The reference drops silently at each of them. Here every request that fails a gate is answered with a
SyncNack, and everything that is dropped is counted. Answers are served before requests and heartbeats.
"""

from __future__ import annotations

from collections import deque

from meshbus.engine.base.counters import Counters
from meshbus.engine.replicas.catchup import refuse
from meshbus.errors import RemoteProtocolError
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.header import Buffer
from meshbus.wire.messages.redex import (
    NackCode,
    RedexMessage,
    Reserved,
    SyncNack,
    SyncRequest,
    SyncResponse,
    decode_redex,
)

MAX_ANSWERS = 128
MAX_QUESTIONS = 1024


BOUNDS = (
    Bound(
        name="replica_inbox",
        what="messages of a replica that wait while it reads or writes",
        by=By.PEER,
        per_node=MAX_QUESTIONS + MAX_ANSWERS,
        full="the new one is rejected",
        counter=Reason.REPLICATION_QUEUE_FULL,
    ),
)


class Inbox:
    """Messages that wait for the coordinators of a node."""

    def __init__(self, counters: Counters, *, compat_47: bool = False) -> None:
        self._counters = counters
        self._compat_47 = compat_47
        self._members: dict[bytes, frozenset[int]] = {}
        self._answers: deque[tuple[int, RedexMessage]] = deque()
        self._questions: deque[tuple[int, RedexMessage]] = deque()
        self.queues = (self._answers, self._questions)
        """What waits, in two queues."""

    def open(self, channel_id: bytes, members: frozenset[int]) -> None:
        """Accept messages of these members about a channel."""
        self._members[channel_id] = members

    def close(self, channel_id: bytes) -> None:
        """Reject messages about a channel from now on."""
        self._members.pop(channel_id, None)

    def put(self, sender: int, event: Buffer) -> SyncNack | None:
        """Keep a message; return the rejection of a request that is not kept."""
        try:
            message = decode_redex(event, compat_47=self._compat_47)
        except RemoteProtocolError:
            self._counters.count(Reason.REPLICATION_MALFORMED)
            return None
        if isinstance(message, Reserved):
            self._counters.count(Reason.REPLICATION_RESERVED)
            return None
        members = self._members.get(message.channel_id)
        if members is None:
            why = Reason.REPLICATION_UNKNOWN_CHANNEL
            return self._reject(message, why, NackCode.CHANNEL_CLOSED, "the channel is not replicated here")
        if sender not in members:
            why = Reason.REPLICA_NOT_MEMBER
            return self._reject(message, why, NackCode.NOT_LEADER, "the sender is not a member of the replica set")
        return self._queue(sender, message)

    def take(self) -> tuple[int, RedexMessage] | None:
        """Return the next message and its sender, or None."""
        queue = self._answers or self._questions
        return queue.popleft() if queue else None

    def _queue(self, sender: int, message: RedexMessage) -> SyncNack | None:
        is_answer = isinstance(message, SyncResponse | SyncNack)
        queue, limit = (self._answers, MAX_ANSWERS) if is_answer else (self._questions, MAX_QUESTIONS)
        if len(queue) >= limit:
            why = Reason.REPLICATION_QUEUE_FULL
            return self._reject(message, why, NackCode.BACKPRESSURE, "too many messages are waiting")
        queue.append((sender, message))
        return None

    def _reject(self, message: RedexMessage, why: Reason, code: NackCode, detail: str) -> SyncNack | None:
        self._counters.count(why)
        return refuse(message, code, detail) if isinstance(message, SyncRequest) else None
