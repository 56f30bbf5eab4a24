"""Every number of the net-mesh 0.23 wire, in one place.

All integers on the wire are little-endian unless a codec says otherwise.
"""

from __future__ import annotations

from enum import IntFlag

NET_MAGIC = 0x4E45
ROUTE_MAGIC = 0x5452
PUNCH_MAGIC = 0x4850
VERSION = 1

HEADER_BYTES = 68
TAG_BYTES = 16
NONCE_BYTES = 12
NONCE_PREFIX_BYTES = 4
AAD_BYTES = 56
ROUTE_BYTES = 18
PINGWAVE_BYTES = 72
PUNCH_BYTES = 14

MAX_DATAGRAM = 8192
MAX_PAYLOAD = MAX_DATAGRAM - HEADER_BYTES - TAG_BYTES
"""8108: the largest plaintext of one packet."""
ROUTED_PAYLOAD = MAX_PAYLOAD - ROUTE_BYTES
"""What we fill packets up to: a 0.23 relay drops what is longer than a datagram with its routing header."""
FRAME_PREFIX_BYTES = 4
MAX_EVENT = MAX_PAYLOAD - FRAME_PREFIX_BYTES
"""8104: the largest event; every receiver drops a larger one, so we refuse to send it."""
MAX_EVENTS = MAX_PAYLOAD // FRAME_PREFIX_BYTES
"""2027 empty events fill a packet."""
PACKET_COST = HEADER_BYTES + TAG_BYTES
"""Credit counts this beside the plaintext of each packet."""

CONTROL_STREAM = 0xFFFFFFFFFFFFFFFF
"""The stream of credit grants."""

HANDSHAKE_TTL = 16
ROUTED_TTL = 8
PINGWAVE_TTL = 3

REPLAY_WINDOW = 1024
MAX_REPLAY_JUMP = 1 << 20
"""Our cap on forward jumps of the packet counter; the reference has none."""

STREAM_WINDOW = 65_536
"""Byte credit of a stream towards a 0.23 peer."""


class Flags(IntFlag):
    """The flag byte of the packet header; unknown bits are carried and authenticated."""

    NONE = 0
    RELIABLE = 0x01
    NACK = 0x02
    PRIORITY = 0x04
    FIN = 0x08
    HANDSHAKE = 0x10
    HEARTBEAT = 0x20


class Subprotocol:
    """Subprotocol ids with a meaning here; plain ints, because unknown ids are legal everywhere."""

    EVENTS = 0x0000
    CAUSAL = 0x0400
    SNAPSHOT = 0x0401
    MIGRATION = 0x0500
    NEGOTIATION = 0x0600
    HANDSHAKE_RELAY = 0x0601
    CONTINUITY = 0x0700
    FORK = 0x0701
    PROOF = 0x0702
    PARTITION = 0x0800
    RECONCILE = 0x0801
    MEMBERSHIP = 0x0A00
    STREAM_WINDOW = 0x0B00
    CAPABILITY = 0x0C00
    REFLEX = 0x0D00
    RENDEZVOUS = 0x0D01
    REDEX = 0x0E00
    RELIABLE = 0x4D01
    HISTORY = 0x4D02
    INTEREST = 0x4D03
    SECURE = 0x4D04
    LEADERSHIP = 0x4D05
    REQUEST = 0x4D06
    GROUPS = 0x4D07
    PRESENCE = 0x4D08
