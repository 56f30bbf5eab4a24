"""Replica sets (0x4D05): the channels that this node replicates with meshbus members, one `Leadership` each.

How messages, timers and writes get in and out is hosting.py. The counterpart for 0.23 members is replication.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from meshbus.engine.base.packets import Output
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.hosting import Hosting
from meshbus.engine.replicas.joining import Joined
from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.records import Acks, LogReader, Send
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context
from meshbus.errors import RemoteProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.datarun import encode_data_run
from meshbus.wire.frames import Packed
from meshbus.wire.messages.leadership import Data, decode_leadership, encode_leadership

MAX_RUNS = 16
"""Our choice: of half a window each, several times what is under way to a follower."""


class ReplicaSets(Hosting[Leadership]):
    """The members that this node is of replica sets with epochs."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, Subprotocol.LEADERSHIP)
        self._joined: dict[bytes, Joined] = {}
        """By channel: events that came in this batch of packets and that its member does not have yet."""
        self.unfinished = (self._work, self._joined)
        self._newest: Joined | None = None
        """The last of these: mostly, the next message continues it."""
        self._runs: OrderedDict[int, tuple[Data, Packed]] = OrderedDict()
        """Runs of messages that were sent to a follower, by the id of what they were made from; others need them soon."""

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
        # What is under way to one member must fit the receive buffer that its node was granted.
        fitting = msgspec.structs.replace(settings, window_bytes=min(settings.window_bytes, self._max_window))
        member = Leadership(channel_id, self._own, found, reader, fitting, entropy=self._entropy)
        self.begin(channel_id, member, now, out)

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

    def transfer(self, channel_id: bytes, token: int, node: int, now: float, out: Output) -> None:
        """Ask another member to lead."""
        self._take(channel_id, self._members[channel_id].transfer(token, node, now))
        self.finish(now, out)

    def welcome(self, channel_id: bytes, node: int) -> None:
        """Accept messages of a node that is to become a member."""
        self._members[channel_id].welcome(node)

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

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Pass a message to the member of its channel."""
        try:
            if self._newest is not None and self._newest.join(peer.node_id, message):
                return
            decoded = decode_leadership(message)
        except RemoteProtocolError:
            self._counters.count(Reason.REPLICATION_MALFORMED)
            return
        member = self._members.get(decoded.channel_id)
        if member is None:
            self._counters.count(Reason.REPLICATION_UNKNOWN_CHANNEL)
            return
        self._pass_on(decoded.channel_id, now)
        self._measure(peer, member)
        if isinstance(decoded, Data) and decoded.payloads:
            self._newest = self._joined[decoded.channel_id] = Joined(peer.node_id, message, decoded)
            return
        self._take(decoded.channel_id, member.receive(peer.node_id, decoded, now))

    def finish(self, now: float, out: Output) -> None:
        """Pass on the events that came, then send and hand over what follows from it."""
        for channel_id in list(self._joined):
            self._pass_on(channel_id, now)
        super().finish(now, out)

    def close(self, channel_id: bytes) -> None:
        """Stop taking part in a channel."""
        self._joined.pop(channel_id, None)
        self._newest = None
        super().close(channel_id)

    def _pass_on(self, channel_id: bytes, now: float) -> None:
        joined = self._joined.pop(channel_id, None)
        if joined is not None:
            self._newest = None
            self._take(channel_id, self._members[channel_id].receive(joined.sender, joined.data(), now))

    def _encode(self, send: Send) -> bytes | Packed:
        message = send.message
        if not isinstance(message, Data) or not message.payloads:
            return encode_leadership(message)  # type: ignore[arg-type]
        found = self._runs.get(id(message))
        if found is None:
            # What was made from it is kept with it, so that no other has its id.
            found = self._runs[id(message)] = message, encode_data_run(message)
            if len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)
        return found[1]
