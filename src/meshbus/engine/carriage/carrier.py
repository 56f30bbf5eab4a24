"""Carriers: subprotocols whose messages are handled above the engine, such as moves of daemons (0x0500).

    peer ──► message ──► room for it? ──► Carried ──► the node hands it on, and calls `release` when it was handled
                              └── no ──► dropped and counted
    send ──► the session with the node of this id, over a relay or not

The engine knows nothing about the messages. A carrier bounds what waits to be handled: of one peer, so that it cannot
take the room of others, and of all peers together. What is dropped must be repeated by the protocol that uses it, as
must what the network loses. One carrier handles one subprotocol; its row says whether that is a part of the profile, and
whether its messages travel on reliable streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshbus.engine.base.notices import Carried
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.streams import Streams
from meshbus.errors import PeerError, PeerFault
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

MAX_PEER_BYTES = 8 << 20
"""Of one peer and subprotocol. Our choice: a thousand parts of a snapshot, more than half a second of the fastest move."""
MAX_CARRIED_BYTES = 64 << 20
"""Of all peers and one subprotocol. Our choice: eight peers that send as much as they may."""
MESSAGE_BYTES = 256
"""What keeping a message costs beside its bytes, so that empty ones are bounded too."""


BOUNDS = (
    Bound(
        name="carried",
        what="messages of one subprotocol, such as moves of daemons, that wait to be handled above the engine",
        by=By.PEER,
        per_node=MAX_CARRIED_BYTES,
        per={"peer": MAX_PEER_BYTES},
        unit="bytes",
        full="the new one is dropped",
        counter=Reason.CARRIED_FULL,
    ),
)


class Carrier(Service):
    """The messages of one subprotocol."""

    def __init__(self, context: Context, subprotocol_id: int) -> None:
        self._id = subprotocol_id
        self._row = next(row for row in context.services.table if row.id == subprotocol_id)
        self._peers = context.peers
        self._counters = context.counters
        self._streams = context.services[Streams]
        self._waiting: dict[int, int] = {}
        """Bytes that were handed out and not released, by peer."""
        self._total = 0

    @property
    def waiting(self) -> int:
        """Bytes of messages that were handed out and not released."""
        return self._total

    def send(self, node_id: int, messages: Sequence[bytes], now: float, out: Output) -> None:
        """Send messages to a node with which there is a session; without reliable streams they may be lost.

        Raises PeerError if there is no session, or if the peer has not agreed to a subprotocol of the profile;
        LocalProtocolError if a message is too long; Backpressure if too many wait on a reliable stream.
        """
        # mesh.md §2: 0.23 nodes look peers up by their address, and a message for a relayed one reaches the relay.
        peer = self._peers.require(node_id)
        if self._row.profile and not peer.uses(self._id):
            problem = f"it does not use {self._row.name} (0x{self._id:04x} is not negotiated)"
            raise PeerError(PeerFault.UNREACHABLE, node_id, problem)
        if self._row.reliable:
            for message in messages:
                self._streams.send_reliable(peer, self._id, message, now, out)
        elif peer.uses(self._id):
            peer.send_messages(self._id, messages, out)
        else:
            # subprotocols.md §1: 0.23 nodes send one message in a packet, so that is what they get.
            for message in messages:
                peer.send_message(self._id, message, out)

    def agreed_with(self, node_id: int) -> bool:
        """Return whether a node is a meshbus node that negotiated the subprotocol."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.uses(self._id)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Pass a message to the node, if there is room."""
        size = len(message) + MESSAGE_BYTES
        waiting = self._waiting.get(peer.node_id, 0) + size
        if waiting > MAX_PEER_BYTES or self._total + size > MAX_CARRIED_BYTES:
            self._counters.count(Reason.CARRIED_FULL)
            return
        self._waiting[peer.node_id] = waiting
        self._total += size
        out.control.append(Carried(peer.node_id, self._id, bytes(message)))

    def release(self, carried: Carried) -> None:
        """Make room again: a message was handled. Call it once for each notice."""
        size = len(carried.message) + MESSAGE_BYTES
        left = self._waiting[carried.node_id] - size
        self._total -= size
        if left:
            self._waiting[carried.node_id] = left
        else:
            del self._waiting[carried.node_id]


def carrying(subprotocol_id: int) -> Callable[[Context], Carrier]:
    """Return the factory of a row whose messages are handled above the engine."""
    return lambda context: Carrier(context, subprotocol_id)
