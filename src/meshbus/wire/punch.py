"""The 14-byte keep-alive that opens a hole in a NAT (mesh.md §8.3).

Not encrypted, not authenticated and never answered; it only shows that a packet got through. The messages that arrange
a punch are in messages/rendezvous.py. They are big-endian, this one is little-endian.
"""

from __future__ import annotations

import msgspec

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.constants import PUNCH_MAGIC
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_LAYOUT = Layout("keep-alive", "<HQI")


class Keepalive(msgspec.Struct, frozen=True, kw_only=True):
    """One hole-punch keep-alive."""

    node_id: int
    """The sender."""
    punch_id: int = 0
    """Always 0 from 0.23 nodes."""


def pack_keepalive(keepalive: Keepalive) -> bytes:
    """Write a keep-alive."""
    return _LAYOUT.pack(PUNCH_MAGIC, keepalive.node_id, keepalive.punch_id)


def unpack_keepalive(buffer: Buffer) -> Keepalive:
    """Read a keep-alive, which fills the whole datagram."""
    magic, node_id, punch_id = _LAYOUT.unpack(buffer)
    if magic != PUNCH_MAGIC:
        raise MalformedPacket("keep-alive", Fault.BAD_MAGIC, f"{magic:04x}")
    return Keepalive(node_id=node_id, punch_id=punch_id)
