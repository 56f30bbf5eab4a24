"""Hosting: what the services of replicated channels share: their members, timers, and work for the node.

    message, timer, request of the application ──► member ──► messages to other members, sent at once
                                                         └──► ReplicaWork: writes and notices, for the node

The node carries the writes out in their order and reports when they are durable; nothing here waits for a disk. What one
call into the engine causes is collected, so that a batch of packets gives one piece of work and as few packets as
possible. Messages that cannot be sent, because there is no session with the member, are dropped: everything that matters
is repeated.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.base.packets import Output
from meshbus.engine.replicas.base import Seat
from meshbus.engine.replicas.records import Out, Send
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.wire.frames import Packed


class Member(Protocol):
    """One member of one replicated channel."""

    seat: Seat

    def open(self, now: float) -> Out:
        """Begin to take part."""

    def tick(self, now: float) -> Out:
        """Do what is due."""

    def next_timer(self) -> float | None:
        """Return when `tick` is due, or None."""

    def measured(self, node: int, rtt_us: int) -> None:
        """Record the round-trip time to a member."""


MemberType = TypeVar("MemberType", bound=Member)


class Hosting(Service, Generic[MemberType]):
    """The members of one kind that this node is of replicated channels, by channel id."""

    def __init__(self, context: Context, subprotocol_id: int) -> None:
        self._own = context.identity.node_id
        self._peers = context.peers
        self._counters = context.counters
        self._entropy = context.entropy
        self._max_window = context.settings.window
        self._subprotocol_id = subprotocol_id
        self._members: dict[bytes, MemberType] = {}
        self._timers: Deadlines[bytes] = Deadlines()
        self._work: dict[bytes, Out] = {}
        """What the members asked for in this call into the engine."""
        self.unfinished = (self._work,)

    def __getitem__(self, channel_id: bytes) -> MemberType:
        """Return the member of a channel, to look at it; KeyError if the channel is not replicated here."""
        return self._members[channel_id]

    def __contains__(self, channel_id: object) -> bool:
        return channel_id in self._members

    def begin(self, channel_id: bytes, member: MemberType, now: float, out: Output) -> None:
        """Start a member of a channel; one that was open before is replaced."""
        member.seat.counters = self._counters
        self._members[channel_id] = member
        self._take(channel_id, member.open(now))
        self.finish(now, out)

    def close(self, channel_id: bytes) -> None:
        """Stop taking part in a channel."""
        self._members.pop(channel_id, None)
        self._work.pop(channel_id, None)
        self._timers.drop(channel_id)

    def next_timer(self) -> float | None:
        """Return when a member has something to do."""
        return self._timers.next()

    def tick(self, now: float, out: Output) -> None:
        """Call the members that are due."""
        for channel_id in self._timers.over(now):
            self._take(channel_id, self._members[channel_id].tick(now))

    def finish(self, now: float, out: Output) -> None:
        """Send what the members have to say, and hand their work to the node."""
        for channel_id in list(self._work):
            work = self._work.pop(channel_id)
            self._set_timer(channel_id)
            messages: dict[int, list[bytes]] = {}
            for send in work.sends:
                peer = self._peers.get(send.to)
                if peer is None or not self._reaches(peer):
                    continue
                found = self._encode(send)
                if isinstance(found, bytes):
                    messages.setdefault(send.to, []).append(found)
                    continue
                # What was said before goes first: events that overtake it would look as if some were missing.
                peer.send_messages(self._subprotocol_id, messages.pop(send.to, ()), out)
                peer.send_packed(self._subprotocol_id, found, out)
            for node, said in messages.items():
                self._peers.require(node).send_messages(self._subprotocol_id, said, out)
            if work.writes or work.notices:
                out.control.append(ReplicaWork(channel_id, tuple(work.writes), tuple(work.notices)))

    def _set_timer(self, channel_id: bytes) -> None:
        due = self._members[channel_id].next_timer()
        if due is None:
            self._timers.drop(channel_id)
        elif due != self._timers.get(channel_id):
            self._timers.set(channel_id, due)

    def _reaches(self, peer: Peer) -> bool:
        """Return whether messages may be sent to a peer."""
        return peer.uses(self._subprotocol_id)

    def _encode(self, send: Send) -> bytes | Packed:
        """Return a message, or a run of messages that each fill a packet."""
        raise NotImplementedError

    def _measure(self, peer: Peer, member: MemberType) -> None:
        if peer.clock is not None:
            # The bound of a clock's offset is half the round trip in which it was measured.
            member.measured(peer.node_id, 2 * peer.clock.error_ns // 1000)

    def _take(self, channel_id: bytes, result: Out) -> None:
        """Collect what a member asked for."""
        work = self._work.get(channel_id)
        if work is None:
            self._work[channel_id] = result
        else:
            work.sends += result.sends
            work.writes += result.writes
            work.notices += result.notices
