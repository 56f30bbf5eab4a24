"""Handshakes on their way through a relay, inside sessions (0x0601).

A handshake with a node that is not our neighbor goes to a relay. When the relay is a meshbus node that agreed to it, the
message travels inside our session with it, and from there inside its session with the receiver; otherwise behind a
routing header, in the clear, which every node understands. The answer comes back through the same relay, by the same
choice.

A relay passes on only what a peer says in its own name, and makes at most one stop of this kind: where the receiver is
not its neighbor, the message goes on behind a routing header, whose ttl ends every circle.
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
    """Carries handshake messages: ours, and those of peers."""

    def __init__(self, context: Context, table: RoutingTable, handshakes: Handshakes) -> None:
        """Set up, and carry the messages of this node's handshakes from now on."""
        self._context = context
        self._node_id = context.identity.node_id
        self._peers = context.peers
        self._table = table
        self._counters = context.counters
        self._handshakes = handshakes
        handshakes.carry = self.carry

    def carry(self, address: Address, message: bytes, sender: int, receiver: int, out: Output) -> None:
        """Send a handshake message of ours towards a node, by way of an address."""
        relay = self._peers.by_address(address)
        if relay is None or relay.node_id == receiver or not relay.uses(Subprotocol.HANDSHAKE_RELAY):
            carry_routed(address, message, sender, receiver, out)
        else:
            self._pass_to(relay, RelayedHandshake(receiver, sender, message), out)

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Take a relayed handshake message: for us, or to be passed on."""
        try:
            relayed = decode_relay(message)
        except RemoteProtocolError:
            self._counters.count(Reason.RELAY_MALFORMED)
            return
        if relayed.dest_id == self._node_id:
            self._take(peer, relayed, now, out)
        elif relayed.src_id != peer.node_id:
            self._counters.count(Reason.RELAY_SOURCE)
        else:
            self._pass_on(relayed, now, out)

    def _take(self, peer: Peer, relayed: RelayedHandshake, now: float, out: Output) -> None:
        """Treat a message as if it had come behind a routing header."""
        established = self._handshakes.receive_routed(peer.link.address, memoryview(_routed(relayed)), now, out)
        self._context.establish(established, now, out)

    def _pass_on(self, relayed: RelayedHandshake, now: float, out: Output) -> None:
        receiver = self._peers.get(relayed.dest_id)
        if receiver is not None and receiver.link.home is not None and receiver.uses(Subprotocol.HANDSHAKE_RELAY):
            self._counters.add("relay", "inside")
            self._pass_to(receiver, relayed, out)
            return
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
    """Put a message behind a routing header that counts the hop it has made."""
    route = RouteHeader(ttl=HANDSHAKE_TTL - 1, hop_count=1, src_id=routing_id(relayed.src_id), dest_id=relayed.dest_id)
    return pack_route(route) + encode_handshake(relayed.message)
