"""Appending (0x4D09): hands events to the leader of a replicated channel, and takes those of other nodes.

    publisher                          leader
    ask ──── APPEND, APPEND, … ──────► policy? channel? room? ── no ──► APPENDED with the outcome
                                       AppendAsked ──► the node appends, as it does for its own publishers
    AppendAnswered ◄── APPENDED ────── answer

Every request ends exactly once at the publisher. If the leader is lost before it answers, the outcome is UNRESOLVED: what
was asked for may be stored or not. Whether this node leads a channel is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshbus.engine.base.notices import AppendAnswered, AppendAsked, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.outbox import Leg
from meshbus.engine.streams.streams import Streams
from meshbus.errors import DeliveryError, PeerError, PeerFault, RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.append import (
    Append,
    Appended,
    AppendFlags,
    Outcome,
    decode_append,
    encode_append,
    split_append,
)

MAX_ASKED = 4096
"""Appends of this node that may wait for an answer. Our choice, as for requests."""
MAX_APPEND_BYTES = 32 << 20
"""Bytes of one append of a peer. Our choice: half of what may wait for acknowledgement."""
MAX_APPEND_RECORDS = 65_536
"""Records of one append of a peer, as many as may wait for acknowledgement (ReplicaSettings)."""
MAX_INCOMPLETE_BYTES = 256 << 20
"""Bytes of the appends of all peers whose last message has not come. Our choice: eight of the largest."""
RECORD_COST = 64
"""Bytes that a record takes beside its content."""

BOUNDS = (
    Bound(
        name="appends_asked",
        what="appends at the leaders of replicated channels that wait for an answer",
        by=By.USER,
        per_node=MAX_ASKED,
        full="a publish is refused",
        counter="DeliveryError",
    ),
    Bound(
        name="append_bytes",
        what="an append of a peer whose last message has not come",
        by=By.PEER,
        per_node=MAX_INCOMPLETE_BYTES,
        per={"peer": MAX_APPEND_BYTES},
        unit="bytes",
        full="the append is refused",
        counter=Reason.REFUSE_REPLICA_APPEND,
    ),
    Bound(
        name="append_records",
        what="records of that append",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_APPEND_RECORDS},
        full="the append is refused",
        counter=Reason.REFUSE_REPLICA_APPEND,
    ),
)

MayPublish = Callable[[Peer, ChannelName, float], bool]
"""Returns whether the policy of a channel lets a peer publish on it."""


class _Incomplete:
    """The append of a peer whose last message has not come. There is one: its messages follow each other."""

    __slots__ = ("nbytes", "records", "refused", "request")

    @property
    def cost(self) -> int:
        """What it takes of memory."""
        return self.nbytes + RECORD_COST * len(self.records)

    def __init__(self, request: int) -> None:
        self.request = request
        self.records: list[bytes] = []
        self.nbytes = 0
        self.refused = False
        """Whether it was answered before its last message."""


class Appending(Service):
    """Both sides of appends through the leader."""

    def __init__(self, context: Context, streams: Streams, may_publish: MayPublish) -> None:
        self._peers = context.peers
        self._counters = context.counters
        self._streams = streams
        self._may_publish = may_publish
        self._entropy = context.entropy
        self._asked: dict[int, int] = {}
        """The node that was asked, by request."""
        self._channels: dict[bytes, ChannelName] = {}
        self._incomplete: dict[int, _Incomplete] = {}
        self._held_bytes = 0
        """What the incomplete appends take."""

    def serve(self, channel_id: bytes, channel: ChannelName) -> None:
        """Take appends to a channel."""
        self._channels[channel_id] = channel

    def ask(
        self, peer: Peer, channel_id: bytes, records: Sequence[bytes], flags: AppendFlags, now: float, out: Output
    ) -> int:
        """Ask a peer to append records, and return the number that `AppendAnswered` carries.

        Raises PeerError if the peer did not negotiate the subprotocol, and DeliveryError if too many appends wait.
        """
        if not peer.uses(Subprotocol.APPEND):
            raise PeerError(PeerFault.UNREACHABLE, peer.node_id, "it takes no appends (0x4d09 is not negotiated)")
        if len(self._asked) >= MAX_ASKED:
            raise DeliveryError(f"{MAX_ASKED} appends already wait for an answer, the limit; wait for some of them")
        # At random: a late answer to a request from before a restart must not match a new one.
        request = int.from_bytes(self._entropy(8), "little")
        messages = [encode_append(part) for part in split_append(request, channel_id, records, flags)]
        self._asked[request] = peer.node_id
        self._send(peer, messages, now, out)
        return request

    def forget(self, request: int) -> None:
        """Wait no longer for the answer to a request."""
        self._asked.pop(request, None)

    def answer(self, node_id: int, answer: Appended, now: float, out: Output) -> None:
        """Answer an append of a peer, if it is still there."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.uses(Subprotocol.APPEND):
            self._send(peer, [encode_append(answer)], now, out)

    # ── hooks ───────────────────────────────────────────────────────────────────────────────

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message."""
        try:
            decoded = decode_append(message)
        except RemoteProtocolError:
            self._counters.count(Reason.REPLICATION_MALFORMED)
            return
        if isinstance(decoded, Append):
            self._on_append(peer, decoded, now, out)
        elif self._asked.get(decoded.req) != peer.node_id:
            # Numbers can be guessed: only the node that was asked may answer.
            self._counters.count(Reason.REPLICA_UNEXPECTED)
        else:
            self.forget(decoded.req)
            out.control.append(AppendAnswered(peer.node_id, decoded))

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """End what was asked in an earlier session as unresolved: the peer may have started anew."""
        self._lose(peer.node_id, out)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End what was asked of a peer that failed or is gone."""
        self._lose(down.node_id, out)

    def stream_failed(self, node_id: int, stream_id: int, now: float, out: Output) -> None:
        """End what was asked on a stream that failed."""
        if stream_id == Subprotocol.APPEND:
            self._lose(node_id, out)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _on_append(self, peer: Peer, append: Append, now: float, out: Output) -> None:
        begun = self._take(peer.node_id)
        if begun is not None and begun.request != append.req:
            # An honest peer finishes an append before it begins the next: the stream keeps their order.
            self._counters.count(Reason.REPLICA_UNEXPECTED)
            begun = None
        begun = begun or _Incomplete(append.req)
        last = AppendFlags.MORE not in append.flags
        if not begun.refused:
            begun.records += append.records
            begun.nbytes += sum(map(len, append.records))
            self._judge(peer, append, begun, now, out, last=last)
        if not last:
            self._incomplete[peer.node_id] = begun
            self._held_bytes += begun.cost

    def _judge(self, peer: Peer, append: Append, begun: _Incomplete, now: float, out: Output, *, last: bool) -> None:
        outcome = self._objection(peer, append.channel_id, begun, now)
        if outcome is not None:
            begun.refused, begun.records, begun.nbytes = True, [], 0
            self._counters.count(Reason.REFUSE_REPLICA_APPEND)
            self.answer(peer.node_id, Appended(req=append.req, outcome=outcome), now, out)
        elif last:
            flags = append.flags & ~AppendFlags.MORE
            records = tuple(begun.records)
            out.control.append(AppendAsked(peer.node_id, append.req, append.channel_id, int(flags), records))

    def _objection(self, peer: Peer, channel_id: bytes, begun: _Incomplete, now: float) -> Outcome | None:
        """Return why an append is refused, or None."""
        channel = self._channels.get(channel_id)
        if channel is None:
            return Outcome.UNKNOWN_CHANNEL
        if not self._may_publish(peer, channel, now):
            return Outcome.DENIED
        too_much = begun.nbytes > MAX_APPEND_BYTES or len(begun.records) > MAX_APPEND_RECORDS
        too_much |= self._held_bytes + begun.cost > MAX_INCOMPLETE_BYTES
        return Outcome.BACKPRESSURE if too_much else None

    def _take(self, node_id: int) -> _Incomplete | None:
        begun = self._incomplete.pop(node_id, None)
        if begun is not None:
            self._held_bytes -= begun.cost
        return begun

    def _lose(self, node_id: int, out: Output) -> None:
        self._take(node_id)
        for request in [request for request, node in self._asked.items() if node == node_id]:
            self.forget(request)
            out.control.append(AppendAnswered(node_id, Appended(req=request, outcome=Outcome.UNRESOLVED)))

    def _send(self, peer: Peer, messages: list[bytes], now: float, out: Output) -> None:
        traffic = self._streams.traffic_of(peer)
        traffic.send_messages(Subprotocol.APPEND, Subprotocol.APPEND, messages, _ignore, now, out)


def _ignore(_leg: Leg, _sent: bool) -> None:
    """Nothing waits for the sending; a lost stream is reported by its hooks."""
