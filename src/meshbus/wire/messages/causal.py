"""Causal events (0x0400): events whose links chain each one to the event before it, and the bytes of a link.

A link names who emitted an event, its number, and a hash of the previous link and payload, so that whoever holds the
events can check that none is missing, changed or inserted (compute/causal.py). The horizon of a link is a bloom filter
of the origins that its emitter had seen: it may contain too much and never too little (state.md §2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

LINK_BYTES = 32
MAX_SEQUENCE = 0xFFFFFFFFFFFFFFFF

_LINK = Layout("causal link", "<QQQQ")
_LENGTH = Layout("causal event", "<I")
_MAX_U32 = 0xFFFFFFFF


class CausalLink(msgspec.Struct, frozen=True):
    """The place of one event in the chain of its origin, fields in wire order."""

    origin_hash: int
    horizon: int = 0
    """A bloom filter of the origins that the emitter had observed."""
    sequence: int = 0
    """From 1 on; 0 is the genesis link, which no event has."""
    parent_hash: int = 0
    """`hash_event` of the event before."""


class CausalEvent(NamedTuple):
    """One event with its link."""

    link: CausalLink
    payload: bytes


def pack_link(link: CausalLink) -> bytes:
    """Write the 32 bytes of a link."""
    return _LINK.pack(link.origin_hash, link.horizon, link.sequence, link.parent_hash)


def unpack_link(buffer: Buffer) -> CausalLink:
    """Read a link from exactly 32 bytes."""
    return CausalLink(*_LINK.unpack(buffer))


def hash_event(link: CausalLink, payload: bytes) -> int:
    """Return the hash of an event, which the next link of its chain carries as its parent."""
    return xxhash.xxh3_64_intdigest(pack_link(link) + payload)


def encode_causal(events: Sequence[CausalEvent]) -> bytes:
    """Write the events of one body; their number is carried outside of it."""
    return b"".join(
        _LENGTH.pack(LINK_BYTES + len(event.payload)) + pack_link(event.link) + event.payload for event in events
    )


def decode_causal(body: Buffer, count: int) -> list[CausalEvent]:
    """Read up to `count` events, and keep those before the first one that is cut off or too short for a link."""
    view, found = memoryview(body), list[CausalEvent]()
    while len(found) < count and len(view) >= _LENGTH.size:
        (total,) = _LENGTH.unpack_prefix(view)
        event = view[_LENGTH.size : _LENGTH.size + total]
        if total < LINK_BYTES or len(event) < total:
            break
        found.append(CausalEvent(unpack_link(event[:LINK_BYTES]), bytes(event[LINK_BYTES:])))
        view = view[_LENGTH.size + total :]
    return found


def decode_causal_event(event: Buffer) -> CausalEvent:
    """Read a body of exactly one event, as one 0x0400 message carries it."""
    found = decode_causal(event, 1)
    if not found:
        raise MalformedPacket("causal event", Fault.TRUNCATED, f"{len(event)} bytes")
    if len(event) > _LENGTH.size + LINK_BYTES + len(found[0].payload):
        raise MalformedPacket("causal event", Fault.TRAILING, f"{len(event)} bytes")
    return found[0]


def origin_bits(origin_hash: int) -> int:
    """Return the bits that one origin sets in a horizon."""
    digest = xxhash.xxh3_64_intdigest(origin_hash.to_bytes(8, "little"))
    first, step = digest & _MAX_U32, (digest >> 32) | 1
    # Sums wrap at 32 bits before they are reduced (state.md §2).
    return 1 << first % 64 | 1 << (first + step & _MAX_U32) % 64 | 1 << (first + 2 * step & _MAX_U32) % 64


def encode_horizon(origins: Iterable[int]) -> int:
    """Return the bloom filter of some origins."""
    horizon = 0
    for origin in origins:
        horizon |= origin_bits(origin)
    return horizon


def might_contain(horizon: int, origin_hash: int) -> bool:
    """Return whether an origin may have been observed; False is certain."""
    bits = origin_bits(origin_hash)
    return horizon & bits == bits


def potentially_concurrent(link: CausalLink, other: CausalLink) -> bool:
    """Return whether neither of two events can have observed the origin of the other."""
    return not (might_contain(link.horizon, other.origin_hash) or might_contain(other.horizon, link.origin_hash))
