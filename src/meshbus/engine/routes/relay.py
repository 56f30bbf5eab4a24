"""Handshake relay (0x0601): carries handshake messages through a relay inside encrypted sessions (profile.md §7).

A handshake with a node that is not a neighbor goes through a relay. If the relay negotiated 0x0601, the message travels
inside our session with the relay, and from there inside the relay's session with the receiver. Otherwise it travels
unencrypted behind a routing header, which every node understands (mesh.md §3). The answer comes back through the same
relay in one of these two ways.

A relay accepts only messages that name their sender as source, and there is at most one relay of this kind on a path: if
the receiver is not a neighbor of the relay, the message continues behind a routing header, whose ttl ends every loop.
"""

from __future__ import annotations

from meshbus.engine.base.packets import Address, Output
from meshbus.engine.routes.routing import RoutingTable
from meshbus.engine.session.attempt import carry_routed
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.names.identity import routing_id
from meshbus.policy.reason import Reason
from meshbus.wire.constants import HANDSHAKE_TTL, Subprotocol
from meshbus.wire.handshake import encode_handshake
from meshbus.wire.header import Buffer
from meshbus.wire.messages.relay import RelayedHandshake, decode_relay, encode_relay
from meshbus.wire.route import RouteHeader, pack_route


class HandshakeRelay(Service):
    """Carries handshake messages of this node and of its peers."""

    def __init__(self, context: Context, table: RoutingTable, handshakes: Handshakes) -> None:
        """Register as the carrier of this node's handshake messages."""
        self._context = context
        self._identity = context.identity
        self._peers = context.peers
        self._table = table
        self._counters = context.counters
        self._handshakes = handshakes
        handshakes.carry = self.carry

    def carry(self, address: Address, message: bytes, sender: int, receiver: int, out: Output) -> None:
        """Send a handshake message of this node to a receiver through an address."""
        relay = self._peers.by_address(address)
        if relay is None or relay.node_id == receiver or not relay.uses(Subprotocol.HANDSHAKE_RELAY):
            carry_routed(address, message, sender, receiver, out)
        else:
            self._pass_to(relay, RelayedHandshake(receiver, sender, message), out)

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle a relayed handshake message, for this node or for another one."""
        try:
            relayed = decode_relay(message)
        except RemoteProtocolError:
            self._counters.count(Reason.RELAY_MALFORMED)
            return
        if relayed.dest_id == self._identity.node_id:
            self._take(peer, relayed, now, out)
        # A peer may only speak for itself: else it could start handshakes in the name of others.
        elif relayed.src_id != peer.node_id:
            self._counters.count(Reason.RELAY_SOURCE)
        elif relayed.dest_id in self._context.revocations.nodes:
            self._counters.count(Reason.REFUSE_REVOKED)
        else:
            self._pass_on(relayed, now, out)

    def _take(self, peer: Peer, relayed: RelayedHandshake, now: float, out: Output) -> None:
        """Handle a message for this node as if it had come behind a routing header."""
        established = self._handshakes.receive_routed(peer.link.address, memoryview(_routed(relayed)), now, out)
        self._context.establish(established, now, out)

    def _pass_on(self, relayed: RelayedHandshake, now: float, out: Output) -> None:
        receiver = self._peers.get(relayed.dest_id)
        if receiver is not None and receiver.link.home is not None and receiver.uses(Subprotocol.HANDSHAKE_RELAY):
            self._counters.add("relay", "inside")
            self._pass_to(receiver, relayed, out)
            return
        # Not a neighbor that negotiated 0x0601: continue as an ordinary routed handshake (mesh.md §3).
        hop = self._table.lookup(relayed.dest_id, now)
        if hop is None:
            self._counters.count(Reason.RELAY_NO_ROUTE)
            return
        self._counters.add("relay", "routed")
        out.send(hop, _routed(relayed))

    @staticmethod
    def _pass_to(peer: Peer, relayed: RelayedHandshake, out: Output) -> None:
        peer.send_message(Subprotocol.HANDSHAKE_RELAY, encode_relay(relayed), out)


def _routed(relayed: RelayedHandshake) -> bytes:
    """Put a message behind a routing header that counts the hop it already made."""
    # docs/decisions/0013: hop count 1 tells the receiver that it came through a relay.
    route = RouteHeader(ttl=HANDSHAKE_TTL - 1, hop_count=1, src_id=routing_id(relayed.src_id), dest_id=relayed.dest_id)
    return pack_route(route) + encode_handshake(relayed.message)
