"""A peer: another node as this one knows it. Streams and subscriptions belong here, sessions come and go.

A session is replaced by a new handshake; sequences, credit and subscriptions go on. Whatever the peer claims about
itself (capabilities, subnet) is taken from its signed announcements and forgotten when it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from meshbus.engine.base.packets import Address, Output, place_of
from meshbus.engine.session.link import Link
from meshbus.engine.session.stream import RxStream, TxStream
from meshbus.errors import LocalProtocolError, PeerError, PeerFault
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENT, ROUTED_PAYLOAD, STREAM_WINDOW, Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import Header

MAX_STREAMS = 4096
"""Streams remembered per peer and direction; beyond, the one that was opened first is forgotten."""


class Health(StrEnum):
    """What the failure detector says about a peer."""

    ALIVE = "alive"
    SUSPECTED = "suspected"
    FAILED = "failed"


class PeerClaims(msgspec.Struct, frozen=True):
    """What a peer's signed, direct announcements say; dropped when it fails."""

    entity_id: bytes | None = None
    capabilities: CapabilitySet = CapabilitySet()
    subnet: SubnetId = SubnetId.GLOBAL


class Peer:
    """One other node."""

    __slots__ = (
        "claims",
        "health",
        "heard_at",
        "link",
        "negotiated",
        "node_id",
        "rx",
        "tx",
        "window",
    )

    def __init__(self, node_id: int, link: Link, now: float) -> None:
        self.node_id = node_id
        self.link = link
        self.claims = PeerClaims()
        self.negotiated = NegotiatedSet()
        """What both sides may use beyond the 0.23 wire; empty towards a plain peer."""
        self.health = Health.ALIVE
        self.heard_at = now
        """When the last heartbeat was verified; data packets do not count."""
        self.window = STREAM_WINDOW
        """Byte credit of new streams."""
        self.tx: dict[int, TxStream] = {}
        self.rx: dict[int, RxStream] = {}

    def tx_stream(self, stream_id: int) -> TxStream:
        """Give the sending side of a stream, made on first use."""
        stream = self.tx.get(stream_id)
        if stream is None:
            _make_room(self.tx)
            stream = self.tx[stream_id] = TxStream(stream_id, self.window)
        return stream

    def rx_stream(self, stream_id: int) -> RxStream:
        """Give the receiving side of a stream, made on first use."""
        stream = self.rx.get(stream_id)
        if stream is None:
            _make_room(self.rx)
            stream = self.rx[stream_id] = RxStream(stream_id, self.window)
        return stream

    def send_message(self, subprotocol_id: int, message: bytes, out: Output, *, stream_id: int | None = None) -> None:
        """Send a subprotocol message: one event, no credit, not retransmitted.

        The stream is the subprotocol's own unless another is given.
        """
        if len(message) > MAX_EVENT:
            raise LocalProtocolError(f"a message of {len(message)} bytes does not fit one packet of {MAX_EVENT}")
        where = subprotocol_id if stream_id is None else stream_id
        stream = self.tx_stream(where)
        sequence = stream.next_sequence
        stream.next_sequence += 1
        header = Header(subprotocol_id=subprotocol_id, stream_id=where, sequence=sequence, event_count=1)
        out.trains.append(self.link.seal(header, pack_frames([message])))

    def send_events(self, events: Sequence[bytes], out: Output) -> None:
        """Send events without a channel, as many in a packet as fit: no credit, not retransmitted."""
        longest = max(map(len, events), default=0)
        if longest > MAX_EVENT:
            raise LocalProtocolError(f"an event of {longest} bytes does not fit one packet of {MAX_EVENT}")
        stream = self.tx_stream(Subprotocol.EVENTS)
        first, most = 0, max(ROUTED_PAYLOAD, FRAME_PREFIX_BYTES + longest)
        while first < len(events):
            last, size = first, 0
            while last < len(events) and size + FRAME_PREFIX_BYTES + len(events[last]) <= most:
                size += FRAME_PREFIX_BYTES + len(events[last])
                last += 1
            header = Header(sequence=stream.next_sequence, event_count=last - first)
            stream.next_sequence += 1
            out.trains.append(self.link.seal(header, pack_frames(events[first:last])))
            first = last

    def widen(self, window: int) -> None:
        """Give every stream, present and future, this much byte credit."""
        self.window = window
        for sending in self.tx.values():
            sending.widen(window)
        for receiving in self.rx.values():
            receiving.window = window

    def uses(self, subprotocol_id: int) -> bool:
        """Say whether a profile subprotocol was negotiated with this peer."""
        return subprotocol_id in self.negotiated


class PeerTable:
    """All peers, by node id, by session, and those that are reached without a relay by address."""

    def __init__(self) -> None:
        self._by_id: dict[int, Peer] = {}
        self._by_session: dict[int, Peer] = {}
        self._by_place: dict[Address, Peer] = {}
        self.version = 0
        """Grows when a peer comes, goes or gets another session."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._by_id.values()))

    def get(self, node_id: int) -> Peer | None:
        """Find a peer by node id."""
        return self._by_id.get(node_id)

    def require(self, node_id: int) -> Peer:
        """Find a peer by node id, or raise PeerError."""
        peer = self._by_id.get(node_id)
        if peer is None:
            raise PeerError(PeerFault.UNKNOWN, node_id, "connect to it first")
        return peer

    def by_session(self, session_id: int) -> Peer | None:
        """Find the peer whose current session this is."""
        return self._by_session.get(session_id)

    def by_address(self, address: Address) -> Peer | None:
        """Find the neighbor with this address; one behind a relay has none."""
        return self._by_place.get(place_of(address))

    def neighbors(self) -> list[Peer]:
        """Give the peers that have an address of their own."""
        return list(self._by_place.values())

    def establish(self, node_id: int, link: Link, now: float) -> Peer:
        """Give a node a new session; what it had before goes on with it."""
        self.version += 1
        peer = self._by_id.get(node_id)
        if peer is None:
            peer = self._by_id[node_id] = Peer(node_id, link, now)
        else:
            self._unlink(peer)
            peer.link = link
            # Credit counts bytes of one session; sequences go on.
            for sending in peer.tx.values():
                sending.restart()
            for receiving in peer.rx.values():
                receiving.restart()
            peer.heard_at = now
            peer.health = Health.ALIVE
        self._by_session[link.session_id] = peer
        if link.home is not None:
            self._by_place[place_of(link.home)] = peer
        return peer

    def remove(self, node_id: int) -> Peer | None:
        """Forget a peer and its session."""
        peer = self._by_id.pop(node_id, None)
        if peer is not None:
            self._unlink(peer)
        return peer

    def _unlink(self, peer: Peer) -> None:
        self.version += 1
        self._by_session.pop(peer.link.session_id, None)
        if peer.link.home is not None and self.by_address(peer.link.home) is peer:
            del self._by_place[place_of(peer.link.home)]


def _make_room(streams: dict[int, TxStream] | dict[int, RxStream]) -> None:
    if len(streams) >= MAX_STREAMS:
        del streams[next(iter(streams))]
