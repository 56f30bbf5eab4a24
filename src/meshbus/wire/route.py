"""The 18-byte routing header in front of a relayed packet (transport.md §7).

It is plaintext and unauthenticated: a relay reads it, counts the hop and copies every byte after it. The next hop to a
destination comes from engine/routes/routing.py.
"""

from __future__ import annotations

from enum import IntFlag
from struct import Struct

import msgspec

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.constants import ROUTE_MAGIC, ROUTED_TTL
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_LAYOUT = Layout("routing header", "<HBBBBIQ")
_DEST, _DEST_AT = Struct("<Q"), 10
# transport.md §7: the high nibble is cleared when parsed, and the hop count stops at 255.
_KNOWN_FLAGS = 0x0F
_MAX_HOPS = 0xFF


class RouteFlags(IntFlag):
    """The low nibble of the flag byte; no flag changes how a packet is forwarded."""

    NONE = 0
    CONTROL = 1
    REQUIRES_ACK = 2
    PRIORITY = 4
    END_OF_STREAM = 8


class RouteHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one routing header, in wire order; the magic is implied."""

    ttl: int = ROUTED_TTL
    """Hops that are left."""
    hop_count: int = 0
    """Hops already made."""
    flags: int = 0
    reserved: int = 0
    """Sent as 0, forwarded as it came."""
    src_id: int
    """The low 32 bits of the originator's node id."""
    dest_id: int
    """The full node id of the destination."""


def pack_route(header: RouteHeader) -> bytes:
    """Write a routing header."""
    return _LAYOUT.pack(ROUTE_MAGIC, *msgspec.structs.astuple(header))


def destination_of(buffer: Buffer) -> int:
    """Return the `dest_id` of a routing header, without reading the rest of it."""
    (dest_id,) = _DEST.unpack_from(buffer, _DEST_AT)
    return int(dest_id)


def unpack_route(buffer: Buffer) -> RouteHeader:
    """Read the routing header at the start of a buffer; the packet after it is not read.

    The reserved high nibble of the flags is cleared, so a forwarder re-emits it as 0.
    """
    magic, ttl, hop_count, flags, reserved, src_id, dest_id = _LAYOUT.unpack_prefix(buffer)
    if magic != ROUTE_MAGIC:
        raise MalformedPacket("routing header", Fault.BAD_MAGIC, f"{magic:04x}")
    return RouteHeader(
        ttl=ttl,
        hop_count=hop_count,
        flags=flags & _KNOWN_FLAGS,
        reserved=reserved,
        src_id=src_id,
        dest_id=dest_id,
    )


def forwarded(header: RouteHeader) -> RouteHeader | None:
    """Return the header for the next hop, or None if the ttl is used up and the packet must be dropped."""
    if header.ttl == 0:
        return None
    # mesh.md §2.1: a packet that arrives with ttl 1 is forwarded with ttl 0, and its destination accepts that.
    return msgspec.structs.replace(header, ttl=header.ttl - 1, hop_count=min(header.hop_count + 1, _MAX_HOPS))
