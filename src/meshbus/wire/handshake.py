"""Packets of the two handshake messages: alone, or behind a routing header (transport.md §10).

A handshake packet is a header whose only fields are the HANDSHAKE flag and the length, then the raw Noise message,
without a tag of the packet layer. A routed message 1 carries the initiator's full node id in its payload, because the
routing header has room for half of it. The cryptography is in wire/noise.py; retries and the replacement of sessions
are in engine/session/handshake.py.
"""

from __future__ import annotations

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import routing_id
from meshbus.wire.constants import HANDSHAKE_TTL, HEADER_BYTES, MAX_PAYLOAD, ROUTE_BYTES, Flags
from meshbus.wire.header import Buffer, Header, pack_header, unpack_header
from meshbus.wire.layout import Layout
from meshbus.wire.route import RouteHeader, pack_route, unpack_route

_HANDSHAKE = int(Flags.HANDSHAKE)  # arithmetic on enum members costs more than the rest of a check
_INITIATOR_ID = Layout("handshake payload", "<Q")


def encode_handshake(message: bytes) -> bytes:
    """Return the packet of a Noise message for a peer that is reached directly."""
    if len(message) > MAX_PAYLOAD:
        raise LocalProtocolError(f"a handshake message of {len(message)} bytes does not fit one packet")
    # transport.md §10.1: every other field is 0, also nonce and session id, and the packet layer adds no tag.
    return pack_header(Header(flags=Flags.HANDSHAKE, payload_len=len(message))) + message


def encode_routed_handshake(message: bytes, *, sender: int, receiver: int) -> bytes:
    """Return the packet of a Noise message that is routed by node id, also if that takes a single hop.

    `sender` and `receiver` are full node ids; only the low half of the sender's is on the wire.
    """
    route = RouteHeader(ttl=HANDSHAKE_TTL, src_id=routing_id(sender), dest_id=receiver)
    return pack_route(route) + encode_handshake(message)


def decode_handshake(datagram: Buffer) -> bytes:
    """Return the Noise message of a handshake packet.

    Everything after the header belongs to the message. Its length in the header is not compared, as in 0.23 nodes
    (transport.md §10.1).
    """
    header = unpack_header(datagram)
    if not header.flags & _HANDSHAKE:
        raise MalformedPacket("handshake", Fault.UNKNOWN_KIND, "the HANDSHAKE flag is not set")
    return bytes(datagram[HEADER_BYTES:])


def decode_routed_handshake(datagram: Buffer) -> tuple[RouteHeader, bytes]:
    """Return the routing header and the Noise message of a routed handshake packet."""
    route = unpack_route(datagram)
    return route, decode_handshake(memoryview(datagram)[ROUTE_BYTES:])


def pack_initiator_id(node_id: int) -> bytes:
    """Write the payload of a routed message 1."""
    return _INITIATOR_ID.pack(node_id)


def unpack_initiator_id(payload: Buffer, src_id: int) -> int:
    """Read the initiator's node id from the payload of a routed message 1.

    Its low half must be the `src_id` of the routing header, which the prologue binds; the rest is only claimed.
    """
    # transport.md §10.3: at least 8 bytes; more are legal and ignored.
    (node_id,) = _INITIATOR_ID.unpack_prefix(payload)
    if routing_id(node_id) != src_id:
        raise MalformedPacket("handshake payload", Fault.BAD_VALUE, f"node id {node_id:016x} from source {src_id:08x}")
    return int(node_id)
