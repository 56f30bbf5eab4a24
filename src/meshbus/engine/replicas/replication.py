"""Replication (0x0E00): the channels that this node replicates together with 0.23 members, one coordinator each.

Messages pass the gates of inbox.py; a request that fails one is answered with a SyncNack. A channel that is replicated
with epochs (sets.py) is known here too, so that a member which asks for it in this way learns that nobody leads in this
protocol. How messages, timers and writes get in and out is hosting.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbus.engine.base.packets import Output
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.catchup import refuse
from meshbus.engine.replicas.coordinator import ReplicationCoordinator
from meshbus.engine.replicas.hosting import Hosting
from meshbus.engine.replicas.inbox import Inbox
from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.records import Acks, LogReader, Send
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.redex import NackCode, SyncRequest, encode_redex

_MS = 1_000_000


class Replication(Hosting[ReplicationCoordinator]):
    """The members that this node is of replica sets without epochs."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, Subprotocol.REDEX)
        self._wall = context.wall
        self._inbox = Inbox(context.counters, compat_47=context.settings.short_sync)
        self.unfinished = (self._work, *self._inbox.queues)

    def open(
        self,
        channel_id: bytes,
        settings: ReplicaSettings,
        found: Recovered,
        reader: LogReader,
        now: float,
        out: Output,
    ) -> None:
        """Begin to take part in a channel, with what is on disk."""
        member = ReplicationCoordinator(
            channel_id,
            self._own,
            found,
            reader,
            settings,
            entropy=self._entropy,
            wall_ms=lambda now: self._wall(now) // _MS,
        )
        self.admit(channel_id, settings.nodes)
        self.begin(channel_id, member, now, out)

    def admit(self, channel_id: bytes, members: Sequence[int]) -> None:
        """Answer these members about a channel that is replicated with epochs: nobody leads in this protocol."""
        self._inbox.open(channel_id, frozenset(members))

    def close(self, channel_id: bytes) -> None:
        """Stop taking part in a channel, and reject messages about it."""
        self._inbox.close(channel_id)
        super().close(channel_id)

    def append(
        self, channel_id: bytes, token: int, payloads: Sequence[bytes], _acks: Acks, now: float, out: Output
    ) -> None:
        """Append events, which are acknowledged locally whatever was asked for; work with an `Acknowledged`, `Refused` or `Unresolved` of this token follows."""
        self._take(channel_id, self._members[channel_id].append(token, payloads))
        self.finish(now, out)

    def durable(self, channel_id: bytes, number: int, now: float, out: Output) -> None:
        """Record that a write and all before it survive a loss of power."""
        if channel_id in self._members:
            self._take(channel_id, self._members[channel_id].durable(number))
            self.finish(now, out)

    def disk_failed(self, channel_id: bytes, _problem: str, now: float, out: Output) -> None:
        """Withdraw from a channel whose disk failed."""
        if channel_id in self._members:
            self._take(channel_id, self._members[channel_id].disk_failed())
            self.finish(now, out)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Keep a message for the member of its channel, or reject it."""
        nack = self._inbox.put(peer.node_id, message)
        if nack is not None:
            peer.send_message(Subprotocol.REDEX, encode_redex(nack), out)

    def finish(self, now: float, out: Output) -> None:
        """Pass on what came, answers first, then send and hand over what follows from it."""
        while (waiting := self._inbox.take()) is not None:
            sender, message = waiting
            member = self._members.get(message.channel_id)
            peer = self._peers.get(sender)
            if member is not None:
                if peer is not None:
                    self._measure(peer, member)
                self._take(message.channel_id, member.receive(sender, message, now))
            elif isinstance(message, SyncRequest) and peer is not None:
                nack = refuse(message, NackCode.NOT_LEADER, "the channel is replicated with epochs (0x4d05)")
                peer.send_message(Subprotocol.REDEX, encode_redex(nack), out)
            else:
                self._counters.count(Reason.REPLICA_UNEXPECTED)
        super().finish(now, out)

    def _reaches(self, peer: Peer) -> bool:
        return True  # a part of the 0.23 wire, which is not negotiated

    def _encode(self, send: Send) -> bytes:
        return encode_redex(send.message)  # type: ignore[arg-type]
