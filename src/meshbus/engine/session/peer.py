"""Peers: other nodes with which this node has a session, and the table of all of them.

Streams belong to the peer and outlive its sessions: when a new handshake replaces the session, sequences and credit
start again. What a peer claims about itself (capabilities, subnet) comes from its signed announcements and is
forgotten when the peer fails. Keys and address of the current session are in session/link.py.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial

import msgspec

from meshbus.engine.base.packets import Address, Output, host_of, place_of
from meshbus.engine.session.dialect import Dialect
from meshbus.engine.session.link import IN_THE_CLEAR, Link
from meshbus.engine.session.stream import RxStream, TxStream
from meshbus.engine.session.work import PeerWork
from meshbus.errors import LocalProtocolError, PeerError, PeerFault
from meshbus.names.subnet import SubnetId
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.reason import Reason
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENT, STREAM_WINDOW, Subprotocol
from meshbus.wire.frames import Packed, pack_frames
from meshbus.wire.header import Header

MAX_STREAMS = 4096
"""Streams kept per peer and direction; beyond it the one that was opened first is evicted.

transport.md §13: 0.23 nodes keep as many, but evict the one that was idle longest."""
MAX_PEERS = 8192
"""Peers whose sessions they began. Our choice: more than a node can usefully talk to directly; they take about 100 MB."""
MAX_PER_HOST = 2048
"""Of these, peers of one host, or behind one relay. Our choice: a quarter, so that no host takes all the room."""
MAX_HELD = 256
"""Calls whose messages wait for a secure session. Our choice: what services say in the first moments."""
MESSAGES_BYTES = 1200
"""Payload of a packet that several messages share: it fits into one IP packet on any path."""


BOUNDS = (
    Bound(
        name="peers",
        what="peers that began their session",
        by=By.MEMBER,
        per_node=MAX_PEERS,
        per={"host or relay": MAX_PER_HOST},
        full="the handshake is not answered; from half of it on, peers that fail go at once",
        counter=Reason.REFUSE_PEERS_FULL,
    ),
    Bound(
        name="streams",
        what="plain streams of a peer, in each direction",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_STREAMS},
        full="the one that was opened first goes",
        counter=forgotten("streams"),
    ),
    Bound(
        name="held_messages",
        what="calls with messages for a peer that wait until its session is secure",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_HELD},
        full="the message is not sent",
        counter=Reason.UNSENT_INSECURE,
    ),
)


class Health(StrEnum):
    """State of a peer according to the failure detector (session/liveness.py)."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    FAILED = "failed"


class PeerClaims(msgspec.Struct, frozen=True):
    """What a peer's signed, direct announcements say, and what it proved; forgotten when the peer fails."""

    entity_id: bytes | None = None
    capabilities: CapabilitySet = CapabilitySet()
    subnet: SubnetId = SubnetId.GLOBAL
    proved_entity_id: bytes | None = None
    """The entity whose key the peer has shown to have in this session, without announcing it (channels/identityproof.py)."""

    @property
    def holder(self) -> bytes | None:
        """The entity by which tokens are judged: the announced one, or the one that was proved."""
        return self.entity_id if self.entity_id is not None else self.proved_entity_id


class PeerClock(msgspec.Struct, frozen=True):
    """How far a peer's wall clock is from ours, as measured by presence."""

    offset_ns: int
    """Their clock minus ours."""
    error_ns: int
    """The offset is wrong by at most this much: half a round trip."""


class Peer:
    """One other node."""

    __slots__ = (
        "_forget",
        "claims",
        "clock",
        "dialect",
        "health",
        "heard_at",
        "held",
        "link",
        "muted",
        "negotiated",
        "node_id",
        "rx",
        "settles_at",
        "tx",
        "unsent",
        "window",
        "work",
    )

    def __init__(self, node_id: int, link: Link, now: float, forget: Callable[[], None] | None = None) -> None:
        self.node_id = node_id
        self._forget = forget
        self.link = link
        self.claims = PeerClaims()
        self.negotiated = NegotiatedSet()
        """The profile subprotocols that both sides may use; empty for a plain 0.23 peer."""
        self.settles_at = 0.0
        """Until when reliable events wait for the negotiation to end; 0 if it is decided."""
        self.clock: PeerClock | None = None
        """The offset of its clock; None while it is unknown, and for a plain 0.23 peer."""
        self.dialect = Dialect()
        """Which form of the net-mesh wire it was seen to use in this session."""
        self.health = Health.ALIVE
        self.heard_at = now
        """When the last heartbeat was verified; data packets do not count (transport.md §16)."""
        self.window = STREAM_WINDOW
        """Initial byte credit of new streams."""
        self.held: list[Callable[[Output], None]] = []
        """Sends messages that wait until the session is secure."""
        self.unsent = 0
        """Packets and calls for which there was no room, or no use, in `held`; engine/session/secure.py counts them."""
        self.muted = False
        """Whether its events are dropped, because its key may not publish any more (policy/revocations.py)."""
        self.work = PeerWork()
        """How much of this node's time its messages may still take."""
        # Not dicts: the first must be found without a search (base/boundedmap.py).
        self.tx: OrderedDict[int, TxStream] = OrderedDict()
        self.rx: OrderedDict[int, RxStream] = OrderedDict()

    def tx_stream(self, stream_id: int) -> TxStream:
        """Return the sending side of a stream; create it on first use."""
        stream = self.tx.get(stream_id)
        if stream is None:
            self._make_room(self.tx)
            stream = self.tx[stream_id] = TxStream(stream_id, self._window_of(stream_id))
        return stream

    def rx_stream(self, stream_id: int) -> RxStream:
        """Return the receiving side of a stream; create it on first use."""
        stream = self.rx.get(stream_id)
        if stream is None:
            self._make_room(self.rx)
            stream = self.rx[stream_id] = RxStream(stream_id, self._window_of(stream_id))
        return stream

    def send_message(self, subprotocol_id: int, message: bytes, out: Output, *, stream_id: int | None = None) -> None:
        """Send a subprotocol message as one event, without credit and without retransmission.

        The stream is the subprotocol's own unless another is given. Raises LocalProtocolError if the message is too
        long.
        """
        self.send_messages(subprotocol_id, [message], out, stream_id=stream_id)

    def send_messages(
        self, subprotocol_id: int, messages: Sequence[bytes], out: Output, *, stream_id: int | None = None
    ) -> None:
        """Send messages as `send_message` does, in as few packets as they fit into."""
        if self.link.holds and subprotocol_id not in IN_THE_CLEAR:
            self._hold(partial(self.send_messages, subprotocol_id, tuple(messages), stream_id=stream_id))
            return
        # transport.md §13: a subprotocol's own stream is its id; §14: its messages need no credit.
        where = subprotocol_id if stream_id is None else stream_id
        stream = self.tx_stream(where)
        # subprotocols.md §1: flags 0, no origin hash and no channel hash.
        for part in _packets_of(messages):
            header = Header(
                subprotocol_id=subprotocol_id,
                stream_id=where,
                sequence=stream.next_sequence,
                event_count=len(part),
            )
            stream.next_sequence += 1
            out.trains.append(self.link.seal(header, pack_frames(part)))

    def send_packed(self, subprotocol_id: int, packed: Packed, out: Output) -> None:  # hot: bench_replication
        """Send the payloads of many packets with messages, as `send_message` sends one."""
        if self.link.holds:
            self.unsent += len(packed)  # too much to keep; whoever sends so much sends it again
            return
        stream = self.tx_stream(subprotocol_id)
        header = Header(subprotocol_id=subprotocol_id, stream_id=subprotocol_id)
        first, stream.next_sequence = stream.next_sequence, stream.next_sequence + len(packed)
        out.trains += self.link.seal_batch(header, packed, first)

    def release(self, out: Output) -> None:
        """Send what waited for a secure session."""
        held, self.held = self.held, []
        for send in held:
            send(out)

    def widen(self, window: int) -> None:
        """Set the byte credit of all present and future streams."""
        self.window = window
        for sending in self.tx.values():
            sending.widen(self._window_of(sending.stream_id))
        for receiving in self.rx.values():
            receiving.window = self._window_of(receiving.stream_id)

    def _window_of(self, stream_id: int) -> int:
        # Events without a channel keep the small window: they go to an inbox, which may be as small as one likes.
        return STREAM_WINDOW if stream_id == Subprotocol.EVENTS else self.window

    def _make_room(self, streams: OrderedDict[int, TxStream] | OrderedDict[int, RxStream]) -> None:
        if len(streams) >= MAX_STREAMS:
            # Insertion order: the stream that was opened first.
            streams.popitem(last=False)
            if self._forget is not None:
                self._forget()

    def _hold(self, send: Callable[[Output], None]) -> None:
        if len(self.held) < MAX_HELD:
            self.held.append(send)
        else:
            self.unsent += 1

    def uses(self, subprotocol_id: int) -> bool:
        """Return whether a profile subprotocol was negotiated with this peer."""
        return subprotocol_id in self.negotiated.compatible


class PeerTable:
    """All peers, by node id and by session; those that are reached without a relay also by address."""

    def __init__(self, forget: Callable[[], None] | None = None) -> None:
        """Create an empty table; `forget` is called for each stream of a peer that makes room for a newer one."""
        self._forget = forget
        self._by_id: dict[int, Peer] = {}
        self._by_session: dict[int, Peer] = {}
        # Methods of the dicts themselves: every packet asks, and a method around them would cost as much again.
        self.get: Callable[[int], Peer | None] = self._by_id.get
        """Returns a peer by node id, or None."""
        self.by_session: Callable[[int], Peer | None] = self._by_session.get
        """Returns the peer whose current session this is, or None."""
        self._by_place: dict[Address, list[Peer]] = {}
        """Usually one; a session is begun from any address that its sender claims, so several may claim the same."""
        self._host_of: dict[int, Address] = {}
        self._per_host: Counter[Address] = Counter()
        self.version = 0
        """Increases when a peer is added or removed or gets a new session."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Peer]:
        # A copy: the failure detector removes peers while it iterates.
        return iter(list(self._by_id.values()))

    def require(self, node_id: int) -> Peer:
        """Return a peer by node id; raise PeerError if there is none."""
        peer = self._by_id.get(node_id)
        if peer is None:
            raise PeerError(PeerFault.UNKNOWN, node_id, "connect to it first")
        return peer

    def by_address(self, address: Address) -> Peer | None:
        """Return the neighbor with this address, or None; peers behind a relay have no address of their own.

        If several claim it, it is the newest that has proved itself and did not fail: the others may have invented it.
        """
        claiming = self._by_place.get(place_of(address))
        return None if claiming is None else _holder(claiming)

    def neighbors(self) -> list[Peer]:
        """Return the peers that are reached without a relay, one for each address."""
        return [_holder(claiming) for claiming in self._by_place.values()]

    def has_room(self, address: Address) -> bool:
        """Return whether one more node may begin a session from this address."""
        return len(self._by_id) < MAX_PEERS and self._per_host[host_of(address)] < MAX_PER_HOST

    def is_crowded(self, peer: Peer) -> bool:
        """Return whether peers that failed should make room soon, because half of it is taken."""
        return 2 * len(self._by_id) > MAX_PEERS or 2 * self._per_host[self._host_of[peer.node_id]] > MAX_PER_HOST

    def establish(self, node_id: int, link: Link, now: float) -> Peer:
        """Record a new session with a node, and return its peer; the streams of a known peer continue in it."""
        self.version += 1
        peer = self._by_id.get(node_id)
        if peer is None:
            peer = self._by_id[node_id] = Peer(node_id, link, now, self._forget)
        else:
            self._unlink(peer)
            peer.link = link
            # Credit and sequences count within one session, as at a net-mesh peer.
            for sending in peer.tx.values():
                sending.restart()
            for receiving in peer.rx.values():
                receiving.restart()
            peer.dialect = Dialect()
            peer.held.clear()
            peer.heard_at = now
            peer.health = Health.ALIVE
        self._by_session[link.session_id] = peer
        host = self._host_of[node_id] = host_of(link.address)
        self._per_host[host] += 1
        # A peer behind a relay has the relay's address, which must keep leading to the relay.
        if link.home is not None:
            self._by_place.setdefault(place_of(link.home), []).append(peer)
        return peer

    def add_keys(self, peer: Peer, session_id: int) -> bool:
        """Find a peer by the id of further keys of its session too; return False if a session has this id already."""
        if session_id in self._by_session:
            return False
        self._by_session[session_id] = peer
        return True

    def drop_keys(self, peer: Peer) -> None:
        """Remove the keys that the session of a peer had before the current ones."""
        for session_id in peer.link.forget_old():
            self._by_session.pop(session_id, None)

    def rename(self, old: int, new: int) -> Peer | None:
        """Move a peer that goes on under another key to its new id, and return it; None if there is no such peer.

        The new id must not be that of a peer.
        """
        peer = self._by_id.pop(old, None)
        if peer is not None:
            self.version += 1
            peer.node_id = new
            self._by_id[new] = peer
            self._host_of[new] = self._host_of.pop(old)
        return peer

    def remove(self, node_id: int) -> Peer | None:
        """Remove a peer and its session, and return it, or None."""
        peer = self._by_id.pop(node_id, None)
        if peer is not None:
            self._unlink(peer)
        return peer

    def _unlink(self, peer: Peer) -> None:
        self.version += 1
        for session_id in peer.link.session_ids:
            self._by_session.pop(session_id, None)
        host = self._host_of.pop(peer.node_id)
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        if peer.link.home is not None:
            place = place_of(peer.link.home)
            self._by_place[place].remove(peer)
            if not self._by_place[place]:
                del self._by_place[place]


def _holder(claiming: Sequence[Peer]) -> Peer:
    if len(claiming) > 1:
        for peer in reversed(claiming):
            if peer.link.proved and peer.health is not Health.FAILED:
                return peer
    return claiming[0]


def _packets_of(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the messages of each packet. Raises LocalProtocolError for a message that does not fit into one."""
    start = size = 0
    for place, message in enumerate(messages):
        if len(message) > MAX_EVENT:
            raise LocalProtocolError(
                f"message of {len(message)} bytes does not fit into one packet; the limit is {MAX_EVENT} bytes"
            )
        size += FRAME_PREFIX_BYTES + len(message)
        if size > MESSAGES_BYTES and place > start:
            yield messages[start:place]
            start, size = place, FRAME_PREFIX_BYTES + len(message)
    if len(messages) > start:
        yield messages[start:]
