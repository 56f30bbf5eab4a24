"""Classify datagrams by their length and first bytes.

The order of the tests is part of the protocol (transport.md §2). Nothing is ever answered with an error datagram.
"""

from __future__ import annotations

from enum import IntEnum

from meshbus.wire.constants import (
    HEADER_BYTES,
    NET_MAGIC,
    PINGWAVE_BYTES,
    PUNCH_BYTES,
    PUNCH_MAGIC,
    ROUTE_BYTES,
    ROUTE_MAGIC,
)
from meshbus.wire.header import Buffer
from meshbus.wire.pingwave import HEALTH_OFFSET, Health

NET_PREFIX = NET_MAGIC.to_bytes(2, "little")
"""The first bytes of every packet, and of nothing else."""
_ROUTE = ROUTE_MAGIC.to_bytes(2, "little")
_PUNCH = PUNCH_MAGIC.to_bytes(2, "little")


class DatagramKind(IntEnum):
    """The kinds of datagram a node can receive; small numbers, so that a column can hold them."""

    DROP = 0
    """None of the others; dropped without a reply."""
    KEEPALIVE = 1
    PINGWAVE = 2
    ROUTED = 3
    """A routing header and a packet."""
    NET = 4
    """A packet for us."""


def classify(datagram: Buffer) -> DatagramKind:  # hot
    """Return what a received datagram is; its content is left to the decoder of that kind."""
    size = len(datagram)
    magic = bytes(datagram[:2])
    if magic == NET_PREFIX:  # nearly always, and none of the other kinds
        return DatagramKind.NET
    if size == PUNCH_BYTES and magic == _PUNCH:
        return DatagramKind.KEEPALIVE
    # A pingwave begins with the node id of its origin. If that looks like the magic of a packet, it is read as a
    # packet: one node id in 65 536 cannot send pingwaves, and names/identity.py avoids it. An unknown health makes a
    # pingwave unreadable (transport.md §8), so the later tests apply to it.
    if size == PINGWAVE_BYTES and datagram[HEALTH_OFFSET] <= Health.UNKNOWN:
        return DatagramKind.PINGWAVE
    if magic == _ROUTE and size >= ROUTE_BYTES + HEADER_BYTES:
        return DatagramKind.ROUTED
    return DatagramKind.DROP
