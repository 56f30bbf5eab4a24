"""The 72-byte pingwave, from which nodes learn of nodes beyond their direct peers (transport.md §8).

Plaintext and unauthenticated. This file only parses and writes it; engine/routes/pingwaves.py learns routes from it and
suppresses copies.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import PINGWAVE_TTL
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

HEALTH_OFFSET = 63
"""Offset of the health byte, the only field whose value can make a pingwave unreadable."""

_LAYOUT = Layout("pingwave", "<Q24sQBBQQIBBBBBBI")
# The origin field has 32 bytes, of which only the first 8 are interpreted (mesh.md §4).
_REST_BYTES = 24
_MAX_HOPS = 0xFF


class Health(IntEnum):
    """The state that a node reports about itself."""

    HEALTHY = 0
    DEGRADED = 1
    UNHEALTHY = 2
    UNKNOWN = 3


class Pingwave(msgspec.Struct, frozen=True, kw_only=True):
    """One pingwave, in wire order. 0.23 nodes leave everything after the timestamp at its default."""

    node_id: int
    """The origin."""
    origin_rest: bytes = bytes(_REST_BYTES)
    """The other 24 bytes of the origin field: zero from 0.23 nodes, but compared to detect copies (mesh.md §4)."""
    seq: int
    """Counts the pingwaves of one origin."""
    ttl: int = PINGWAVE_TTL
    hop_count: int = 0
    timestamp_us: int
    """When the origin sent it: microseconds since the Unix epoch, unchanged by forwarders."""
    capability_hash: int = 0
    capability_version: int = 0
    load: int = 0
    """0 (idle) to 255."""
    health: Health = Health.HEALTHY
    gpu: int = 0
    model_slots: int = 0
    memory_tier: int = 0
    """0 to 7."""
    tools: int = 0
    capability_flags: int = 0


def pack_pingwave(pingwave: Pingwave) -> bytes:
    """Write a pingwave."""
    if len(pingwave.origin_rest) != _REST_BYTES:
        raise LocalProtocolError(f"pingwave: origin_rest is {len(pingwave.origin_rest)} bytes, not {_REST_BYTES}")
    return _LAYOUT.pack(*msgspec.structs.astuple(pingwave))


def unpack_pingwave(buffer: Buffer) -> Pingwave:
    """Read a pingwave, which fills the whole datagram."""
    fields = dict(zip(Pingwave.__struct_fields__, _LAYOUT.unpack(buffer), strict=True))
    if fields["health"] > Health.UNKNOWN:
        raise MalformedPacket("pingwave", Fault.BAD_VALUE, f"health {fields['health']}")
    fields["health"] = Health(fields["health"])
    return Pingwave(**fields)


def forwarded(pingwave: Pingwave) -> Pingwave | None:
    """Return the pingwave to forward, or None if its ttl is used up."""
    if pingwave.ttl == 0:
        return None
    # transport.md §8: a pingwave with ttl 1 is forwarded once more, with ttl 0.
    return msgspec.structs.replace(pingwave, ttl=pingwave.ttl - 1, hop_count=min(pingwave.hop_count + 1, _MAX_HOPS))
