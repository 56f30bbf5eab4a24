"""Replica sets (0x4D05): the replicated channels of this node, one `Leadership` each, between messages and the disk.

    message, timer, request of the application ──► Leadership ──► messages to members, sent at once
                                                              └─► ReplicaWork: writes and notices, for the node

The node carries the writes out in their order and calls `durable`; nothing here waits for a disk. What one call into the
engine causes is collected, so that a batch of packets gives one piece of work and as few packets as possible. Messages
that cannot be sent, because there is no session with the member, are dropped: everything is repeated that matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.base.packets import Output
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.records import Acks, LogReader, Out
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.leadership import LeadershipMessage, decode_leadership, encode_leadership


class ReplicaSets(Service):
    """The members that this node is of replicated channels, by channel id."""

    def __init__(self, context: Context) -> None:
        self._own = context.identity.node_id
        self._peers = context.peers
        self._counters = context.counters
        self._entropy = context.entropy
        self._max_window = context.settings.window
        self._members: dict[bytes, Leadership] = {}
        self._timers: Deadlines[bytes] = Deadlines()
        self._work: dict[bytes, Out] = {}
        """What the members asked for in this call into the engine."""

    def __getitem__(self, channel_id: bytes) -> Leadership:
        """Return the member of a channel, to look at it; KeyError if the channel is not replicated here."""
        return self._members[channel_id]

    def __contains__(self, channel_id: object) -> bool:
        return channel_id in self._members

    # ── requests of the node ────────────────────────────────────────────────────────────────

    def open(
        self,
        channel_id: bytes,
        settings: ReplicaSettings,
        found: Recovered,
        reader: LogReader,
        now: float,
        out: Output,
    ) -> None:
        """Begin to take part in a channel, with what is on disk; a member that was open before is replaced."""
        # What is under way to one member must fit the receive buffer that its node was granted.
        window = min(settings.window_bytes, self._max_window)
        member = Leadership(
            channel_id,
            self._own,
            found,
            reader,
            msgspec.structs.replace(settings, window_bytes=window),
            entropy=self._entropy,
        )
        member.seat.counters = self._counters
        self._members[channel_id] = member
        self._take(channel_id, member.open(now))
        self.finish(now, out)

    def close(self, channel_id: bytes) -> None:
        """Stop taking part in a channel."""
        self._members.pop(channel_id, None)
        self._work.pop(channel_id, None)
        self._timers.drop(channel_id)

    def append(
        self, channel_id: bytes, token: int, records: Sequence[bytes], acks: Acks, now: float, out: Output
    ) -> None:
        """Append records; work with an `Acknowledged`, `Refused` or `Unresolved` of this token follows.

        Without records, the acknowledgement says that everything before is as durable as asked for.
        """
        self._take(channel_id, self._members[channel_id].append(token, records, acks, now))
        self.finish(now, out)

    def add(self, channel_id: bytes, token: int, node: int, now: float, out: Output) -> None:
        """Make a newcomer a member."""
        self._take(channel_id, self._members[channel_id].add(token, node, now))
        self.finish(now, out)

    def remove(self, channel_id: bytes, token: int, node: int, now: float, out: Output) -> None:
        """Remove a member."""
        self._take(channel_id, self._members[channel_id].remove(token, node, now))
        self.finish(now, out)

    def durable(self, channel_id: bytes, number: int, now: float, out: Output) -> None:
        """Record that a write and all before it survive a loss of power."""
        if channel_id in self._members:
            self._take(channel_id, self._members[channel_id].durable(number, now))
            self.finish(now, out)

    def disk_failed(self, channel_id: bytes, problem: str, now: float, out: Output) -> None:
        """Stop the member of a channel whose disk failed; it stays readable."""
        if channel_id in self._members:
            self._take(channel_id, self._members[channel_id].disk_failed(problem))
            self.finish(now, out)

    # ── hooks ───────────────────────────────────────────────────────────────────────────────

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Pass a message to the member of its channel."""
        try:
            decoded = decode_leadership(message)
        except RemoteProtocolError:
            self._counters.count(Reason.REPLICATION_MALFORMED)
            return
        member = self._members.get(decoded.channel_id)
        if member is None:
            self._counters.count(Reason.REPLICATION_UNKNOWN_CHANNEL)
            return
        if peer.clock is not None:
            # The bound of a clock's offset is half the round trip in which it was measured.
            member.measured(peer.node_id, 2 * peer.clock.error_ns // 1000)
        self._take(decoded.channel_id, member.receive(peer.node_id, decoded, now))

    def next_timer(self) -> float | None:
        """Return when a member has something to do."""
        return self._timers.next()

    def tick(self, now: float, out: Output) -> None:
        """Let the members do what is due."""
        for channel_id in self._timers.over(now):
            self._take(channel_id, self._members[channel_id].tick(now))

    def finish(self, now: float, out: Output) -> None:
        """Send what the members have to say, and hand their work to the node."""
        for channel_id in list(self._work):
            work = self._work.pop(channel_id)
            messages: dict[int, list[LeadershipMessage]] = {}
            for send in work.sends:
                messages.setdefault(send.to, []).append(send.message)  # type: ignore[arg-type]
            for node, said in messages.items():
                peer = self._peers.get(node)
                if peer is not None and peer.uses(Subprotocol.LEADERSHIP):
                    peer.send_messages(Subprotocol.LEADERSHIP, [encode_leadership(one) for one in said], out)
            if work.writes or work.notices:
                out.control.append(ReplicaWork(channel_id, tuple(work.writes), tuple(work.notices)))

    def _take(self, channel_id: bytes, result: Out) -> None:
        """Collect what a member asked for, and set its timer."""
        work = self._work.get(channel_id)
        if work is None:
            self._work[channel_id] = result
        else:
            work.sends += result.sends
            work.writes += result.writes
            work.notices += result.notices
        due = self._members[channel_id].next_timer()
        if due is None:
            self._timers.drop(channel_id)
        elif due != self._timers.get(channel_id):
            self._timers.set(channel_id, due)
