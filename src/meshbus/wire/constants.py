"""The numbers of the net-mesh 0.23 wire, in one place.

All integers on the wire are little-endian unless a codec says otherwise.
"""

from __future__ import annotations

from enum import IntFlag

# transport.md §1. In the order of the bytes on the wire: 45 4E, 52 54 ("RT") and 50 48.
NET_MAGIC = 0x4E45
ROUTE_MAGIC = 0x5452
PUNCH_MAGIC = 0x4850
VERSION = 1

# The layouts: transport.md §3 header, §4 associated data, §7 routing header, §8 pingwave, §9 keep-alive.
HEADER_BYTES = 68
TAG_BYTES = 16
NONCE_BYTES = 12
AAD_BYTES = 56
ROUTE_BYTES = 18
PINGWAVE_BYTES = 72
PUNCH_BYTES = 14

# transport.md §1 and §5: every receiver rejects a longer datagram, without an answer.
MAX_DATAGRAM = 8192
MAX_PAYLOAD = MAX_DATAGRAM - HEADER_BYTES - TAG_BYTES
"""8108: the largest plaintext of one packet."""
ROUTED_PAYLOAD = MAX_PAYLOAD - ROUTE_BYTES
"""Packets are filled up to this: with the routing header in front, a 0.23 relay drops anything above MAX_DATAGRAM."""
FRAME_PREFIX_BYTES = 4
MAX_EVENT = MAX_PAYLOAD - FRAME_PREFIX_BYTES
"""8104: the largest event in one packet. 0.23 nodes send larger ones, which every receiver drops; only meshbus nodes that
agreed on 0x4D0A get larger ones, in parts."""
MAX_LARGE_EVENT = 64 << 20
"""The largest event at all. Our choice: it bounds what a receiver puts together, and fits 32-bit offsets many times."""
DEFAULT_LARGE_EVENT = 16 << 20
"""The largest event of a channel that is not configured. Our choice: a raw camera frame fits, and four at a time take no
more memory than one of the largest size."""
MAX_EVENTS = MAX_PAYLOAD // FRAME_PREFIX_BYTES
"""2027, the number of empty events that fill a packet; a header that claims more is invalid (transport.md §3)."""
PACKET_COST = HEADER_BYTES + TAG_BYTES
"""84: what each packet costs in credit, in addition to its plaintext (transport.md §14)."""

CONTROL_STREAM = 0xFFFFFFFFFFFFFFFF
"""Stream id of credit grants (transport.md §13)."""

# transport.md §7: 16 for handshakes and 8 for data. §8: 3 for pingwaves, which are then heard four hops away.
HANDSHAKE_TTL = 16
ROUTED_TTL = 8
PINGWAVE_TTL = 3

# transport.md §12.
REPLAY_WINDOW = 1024
MAX_REPLAY_JUMP = 1 << 20
"""Largest forward jump of the packet counter (profile.md §8). 0.23 nodes have no limit, so that one packet far ahead
empties their window."""

STREAM_WINDOW = 65_536
"""Byte credit of a stream to a 0.23 peer (transport.md §14)."""


class Flags(IntFlag):
    """The flag byte of the packet header (transport.md §3); unknown bits are carried and authenticated."""

    NONE = 0
    RELIABLE = 0x01
    # 0.23 nodes neither send nor interpret NACK, PRIORITY and FIN.
    NACK = 0x02
    PRIORITY = 0x04
    FIN = 0x08
    HANDSHAKE = 0x10
    HEARTBEAT = 0x20
    START = 0x40
    """From net-mesh 0.37 on: nothing below the sequence of this packet will come any more (dialects.md §2.5)."""


class Subprotocol:
    """Known subprotocol ids. Plain ints, because a packet may carry any id."""

    # subprotocols.md §2 has the ids of 0.23 nodes; some of them have a codec there but no handler.
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
    # Later versions have added these (dialects.md §6); an older node takes their messages for events.
    IDENTITY_PROOF = 0x0A01
    STREAM_NACK = 0x0B01
    STREAM_RESET = 0x0B02
    STREAM_RANGES = 0x0B03
    ROUTE_WITHDRAWAL = 0x0C01
    REFLEX = 0x0D00
    RENDEZVOUS = 0x0D01
    REDEX = 0x0E00
    # The meshbus profile (docs/wire/profile.md), in the vendor range.
    RELIABLE = 0x4D01
    HISTORY = 0x4D02
    INTEREST = 0x4D03
    SECURE = 0x4D04
    LEADERSHIP = 0x4D05
    REQUEST = 0x4D06
    GROUPS = 0x4D07
    PRESENCE = 0x4D08
    APPEND = 0x4D09
    LARGE = 0x4D0A
    POLICY = 0x4D0B
    REVOCATION = 0x4D0C
    ROTATION = 0x4D0D
