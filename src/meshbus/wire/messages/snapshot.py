"""State snapshots (0x0401): everything that a daemon needs to continue on another node (compute.md §2, state.md §4).

A snapshot has the daemon's state, the head of its causal chain, its subscriptions (wire/messages/bindings.py) and, if it
travels to a node that does not have the daemon's key, the sealed key (wire/messages/envelope.py). Neither the observed
horizon nor the payload of the head is in it; what meshbus adds for its own nodes is inside the state
(wire/messages/checkpoint.py).
"""

from __future__ import annotations

import msgspec

from meshbus.errors import Fault, MalformedPacket
from meshbus.names.identity import derive_origin_hash
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, take_field
from meshbus.wire.messages.causal import LINK_BYTES, CausalLink, pack_link, unpack_link
from meshbus.wire.messages.envelope import ENVELOPE_BYTES, IdentityEnvelope, decode_envelope, encode_envelope

MAGIC = b"CDS1"
VERSION = 2
MIN_BYTES = 94
"""A snapshot of an empty state, without subscriptions and envelope."""

_WHAT = "state snapshot"
_HEAD = Layout(_WHAT, f"<4sB32sQ{LINK_BYTES}sQ")
_SIZE = Layout(_WHAT, "<I")
STATE_AT = _HEAD.size + _SIZE.size
"""Where the state begins in a snapshot."""


class StateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a daemon at the head of its chain."""

    entity_id: bytes
    head: CausalLink
    """The link of the last event that the daemon emitted, or the genesis link."""
    created_ns: int
    """Unix time in nanoseconds."""
    state: bytes
    bindings: bytes = b""
    envelope: IdentityEnvelope | None = None

    @property
    def origin_hash(self) -> int:
        """The daemon, as its events name it."""
        return self.head.origin_hash

    @property
    def through_seq(self) -> int:
        """The number of the last event that the daemon emitted."""
        return self.head.sequence


def encode_snapshot(snapshot: StateSnapshot) -> bytes:
    """Write a snapshot.

    Raises LocalProtocolError for a state of 4 GiB or more.
    """
    link = pack_link(snapshot.head)
    head = _HEAD.pack(MAGIC, VERSION, snapshot.entity_id, snapshot.through_seq, link, snapshot.created_ns)
    envelope = b"\0" if snapshot.envelope is None else b"\1" + encode_envelope(snapshot.envelope)
    parts = head, _SIZE.pack(len(snapshot.state)), snapshot.state, _SIZE.pack(len(snapshot.bindings)), snapshot.bindings
    return b"".join((*parts, envelope))


def decode_snapshot(buffer: Buffer) -> StateSnapshot:
    """Read a snapshot; the state is copied. An envelope is read, and not verified."""
    view = memoryview(buffer)
    entity_id, head, created_ns = _decode_head(view)
    state, rest = take_field(_WHAT, "state", view[_HEAD.size :], _SIZE.size)
    bindings, rest = take_field(_WHAT, "subscriptions", rest, _SIZE.size)
    return StateSnapshot(
        entity_id=entity_id,
        head=head,
        created_ns=created_ns,
        state=bytes(state),
        bindings=bytes(bindings),
        envelope=_decode_envelope(rest),
    )


def check_snapshot_start(buffer: Buffer, origin_hash: int) -> None:
    """Check the first bytes of a snapshot, as a node does that forwards its parts: it must be one of this daemon.

    Raises MalformedPacket if it is not.
    """
    _, head, _ = _decode_head(memoryview(buffer))
    if head.origin_hash != origin_hash:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"of daemon {head.origin_hash:016x}, expected {origin_hash:016x}")


def _decode_head(view: memoryview) -> tuple[bytes, CausalLink, int]:
    magic, version, entity_id, through_seq, link, created_ns = _HEAD.unpack_prefix(view)
    if magic != MAGIC:
        raise MalformedPacket(_WHAT, Fault.BAD_MAGIC, repr(magic))
    if version != VERSION:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"version {version}, expected {VERSION}")
    head = unpack_link(link)
    if head.sequence != through_seq:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"through {through_seq}, but the link has {head.sequence}")
    if head.origin_hash != derive_origin_hash(entity_id):
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"the link's origin {head.origin_hash:016x} is not the entity's")
    return entity_id, head, created_ns


def _decode_envelope(rest: memoryview) -> IdentityEnvelope | None:
    if len(rest) < 1:
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, "the envelope flag is missing")
    flag, envelope = rest[0], rest[1:]
    if flag > 1:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"envelope flag {flag}")
    expected = ENVELOPE_BYTES if flag else 0
    if len(envelope) != expected:
        fault = Fault.TRUNCATED if len(envelope) < expected else Fault.TRAILING
        raise MalformedPacket(_WHAT, fault, f"{len(envelope)} bytes after the envelope flag, expected {expected}")
    return decode_envelope(envelope) if flag else None
