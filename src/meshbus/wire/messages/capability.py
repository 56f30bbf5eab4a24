"""Capability announcements (0x0C00): what a node can do, signed by its entity key (policy.md §8.2).

On the wire an announcement is one JSON object. The signature covers its *canonical* form (fixed key order, no spaces,
sorted tags and metadata) without the signature and the hop count. A reader parses the JSON, writes the canonical form
again and verifies that. So spelling does not matter, and an unknown field is dropped before verification. Forwarders
send the canonical form.

Whether an announcement is accepted is decided in engine/directory/directory.py.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from meshbus.errors import UNDECODABLE, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, derive_node_id, verify_signature
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.header import Buffer
from meshbus.wire.messages.address import parse_address

# policy.md §8.4 (ttl) and §10 (allow-list, hops).
DEFAULT_TTL_SECS = 300
MAX_ALLOWED = 64
"""Entries of one allow-list."""
MAX_HOPS = 16
"""An announcement that would arrive with this many hops is not forwarded."""
SUBNET_BYTES = 16
GROUP_BYTES = 32
OWNER_CERT_BYTES = 156
"""dialects.md §2.10."""

_WHAT = "announcement"

_Unsigned = Annotated[int, msgspec.Meta(ge=0)]
"""The decoder does not support bounds above 63 bits, so `_u64` checks the upper one."""
_U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_U8 = Annotated[int, msgspec.Meta(ge=0, le=0xFF)]
# policy.md §8.2: an empty tag, or a list that is too long, drops the whole announcement.
_Tag = Annotated[str, msgspec.Meta(min_length=1)]
_Subnet = Annotated[list[_U8], msgspec.Meta(min_length=SUBNET_BYTES, max_length=SUBNET_BYTES)]
_Group = Annotated[list[_U8], msgspec.Meta(min_length=GROUP_BYTES, max_length=GROUP_BYTES)]
_AtMost64 = msgspec.Meta(max_length=MAX_ALLOWED)


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """One announcement; the constructor puts tags and metadata into canonical order."""

    node_id: int
    entity_id: bytes
    """The Ed25519 public key, 32 bytes."""
    version: int
    """Only a higher version replaces what a peer holds."""
    timestamp_ns: int
    """When it was made, for display only (policy.md §8.4)."""
    ttl_secs: int = DEFAULT_TTL_SECS
    """How long a peer keeps it, from receipt."""
    tags: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    signature: bytes | None = None
    hop_count: int = 0
    """0 from the node itself, counted up by forwarders; not signed."""
    reflex_addr: str | None = None
    """The address at which others see the node: `ip:port` or `[ip]:port`."""
    allowed_nodes: tuple[int, ...] = ()
    allowed_subnets: tuple[bytes, ...] = ()
    """16 bytes each."""
    allowed_groups: tuple[bytes, ...] = ()
    """32 bytes each."""
    owner_cert: bytes | None = None
    """The certificate of an organization, from members of one (net-mesh 0.34 and later); carried and not interpreted."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "tags", tuple(sorted(set(self.tags))))
        msgspec.structs.force_setattr(self, "metadata", dict(sorted(self.metadata.items())))

    @property
    def signing_bytes(self) -> bytes:
        """The bytes that the signature covers."""
        # policy.md §8.2: forwarders change the hop count, so it is not signed.
        return _serialize(msgspec.structs.replace(self, signature=None, hop_count=0))

    @property
    def owns_node_id(self) -> bool:
        """Whether the node id is the one that belongs to the entity key."""
        return self.node_id == derive_node_id(self.entity_id)

    def sign(self, identity: Identity) -> Announcement:
        """Return the announcement with the signature of `identity`, whose entity id it must carry."""
        if identity.entity_id != self.entity_id:
            raise LocalProtocolError("an announcement must be signed by the entity that it names")
        return msgspec.structs.replace(self, signature=identity.sign(self.signing_bytes))

    def verify(self) -> bool:
        """Return whether it carries the signature of its entity; False when it is unsigned."""
        return self.signature is not None and verify_signature(self.entity_id, self.signing_bytes, self.signature)

    def forwarded(self) -> Announcement | None:
        """Return the announcement one hop further, or None at its hop limit."""
        # policy.md §8.3, step 12: forwarded only while the hop count is below 15.
        hop_count = self.hop_count + 1
        return None if hop_count >= MAX_HOPS else msgspec.structs.replace(self, hop_count=hop_count)


class _WireCapabilities(msgspec.Struct):
    tags: list[_Tag]
    metadata: dict[str, str] = {}


class _WireAnnouncement(msgspec.Struct):
    """The JSON before conversion; net-mesh refuses the same types and values."""

    node_id: _Unsigned
    entity_id: str
    version: _Unsigned
    timestamp_ns: _Unsigned
    ttl_secs: _U32
    capabilities: _WireCapabilities
    signature: str | None = None
    hop_count: _U8 = 0
    reflex_addr: str | None = None
    allowed_nodes: Annotated[list[_Unsigned], _AtMost64] = []
    allowed_subnets: Annotated[list[_Subnet], _AtMost64] = []
    allowed_groups: Annotated[list[_Group], _AtMost64] = []
    owner_cert: str | None = None


_DECODER = msgspec.json.Decoder(_WireAnnouncement)


def encode_announcement(announcement: Announcement) -> bytes:
    """Write the canonical form.

    Raises LocalProtocolError when a reader would refuse or change it, or when it does not fit one packet.
    """
    event = _serialize(announcement)
    if len(event) > MAX_EVENT:
        raise LocalProtocolError(f"an announcement of {len(event)} bytes does not fit one packet of {MAX_EVENT}")
    try:
        # Receivers verify what they parsed. A form that changes on the way would make the signature invalid.
        unchanged = decode_announcement(event) == announcement
    except MalformedPacket as error:
        raise LocalProtocolError(str(error)) from error
    if not unchanged:
        raise LocalProtocolError("the announcement does not survive a round trip; check the form of its reflex address")
    return event


def decode_announcement(event: Buffer) -> Announcement:
    """Read an announcement in any spelling; the signature is not verified here."""
    try:
        wire = _DECODER.decode(event)
    except UNDECODABLE as error:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, str(error)) from error
    return Announcement(
        node_id=_u64(wire.node_id),
        entity_id=_unhex(wire.entity_id, KEY_BYTES),
        version=_u64(wire.version),
        timestamp_ns=_u64(wire.timestamp_ns),
        ttl_secs=wire.ttl_secs,
        tags=tuple(wire.capabilities.tags),
        metadata=wire.capabilities.metadata,
        signature=None if wire.signature is None else _unhex(wire.signature, SIGNATURE_BYTES),
        hop_count=wire.hop_count,
        reflex_addr=None if wire.reflex_addr is None else str(parse_address(wire.reflex_addr)),
        allowed_nodes=tuple(_u64(node_id) for node_id in wire.allowed_nodes),
        allowed_subnets=tuple(bytes(subnet) for subnet in wire.allowed_subnets),
        allowed_groups=tuple(bytes(group) for group in wire.allowed_groups),
        owner_cert=None if wire.owner_cert is None else _unhex(wire.owner_cert, OWNER_CERT_BYTES),
    )


def _serialize(announcement: Announcement) -> bytes:
    """Write the keys in the canonical order, without those that have no value."""
    # policy.md §8.2: this order is signed, and so are the minimal escapes that msgspec writes.
    document: dict[str, Any] = {
        "node_id": announcement.node_id,
        "entity_id": announcement.entity_id.hex(),
        "version": announcement.version,
        "timestamp_ns": announcement.timestamp_ns,
        "ttl_secs": announcement.ttl_secs,
        "capabilities": {"tags": announcement.tags, "metadata": announcement.metadata},
    }
    optional = {
        "signature": announcement.signature and announcement.signature.hex(),
        "hop_count": announcement.hop_count,
        "reflex_addr": announcement.reflex_addr,
        "allowed_nodes": announcement.allowed_nodes,
        "allowed_subnets": [list(subnet) for subnet in announcement.allowed_subnets],
        "allowed_groups": [list(group) for group in announcement.allowed_groups],
        # dialects.md §2.10: signed as the last key; a reader that drops it would refuse the announcement.
        "owner_cert": announcement.owner_cert and announcement.owner_cert.hex(),
    }
    document.update((key, value) for key, value in optional.items() if value)
    try:
        return msgspec.json.encode(document)
    except (OverflowError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"{_WHAT}: {error}") from error


def _u64(value: int) -> int:
    if value > 0xFFFFFFFFFFFFFFFF:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, "a number above 64 bits")
    return value


def _unhex(text: str, size: int) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError as error:
        raise MalformedPacket(_WHAT, Fault.BAD_TEXT, str(error)) from error
    # fromhex skips spaces, so the length of the text is compared too.
    if len(value) != size or len(text) != 2 * size:
        raise MalformedPacket(_WHAT, Fault.BAD_LENGTH, f"{len(text)} hex digits, expected {2 * size}")
    return value
