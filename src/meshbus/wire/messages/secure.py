"""Secure sessions (0x4D04): the messages by which two nodes agree on keys that only they have.

    OFFER     initiator → responder    epoch, ephemeral key, entity key, signature
    ACCEPT    responder → initiator    the same fields
    DONE      both                     epoch; sealed with the new keys

The initiator is the side that began the session. What the signatures cover, and how keys follow, is in wire/secure.py;
docs/wire/secure.md has the whole protocol.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import KEY_BYTES, SIGNATURE_BYTES
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_SHARE = Layout("secure share", f"<BI{KEY_BYTES}s{KEY_BYTES}s{SIGNATURE_BYTES}s")
_DONE = Layout("secure done", "<BI")


class _Kind(IntEnum):
    OFFER = 1
    ACCEPT = 2
    DONE = 3


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Propose the keys of an epoch."""

    epoch: int
    """Number of the keys in this session: 1 for the first ones that replace those of the 0.23 handshake."""
    ephemeral: bytes
    """X25519 public key, used for this epoch only."""
    entity_id: bytes
    signature: bytes


class Accept(msgspec.Struct, frozen=True, kw_only=True):
    """Answer an offer; both sides can compute the keys now."""

    epoch: int
    ephemeral: bytes
    entity_id: bytes
    signature: bytes


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Show that the sender has the keys of an epoch: it is sealed with them."""

    epoch: int


SecureMessage: TypeAlias = Offer | Accept | Done


def encode_secure(message: SecureMessage) -> bytes:
    """Write a message; raise LocalProtocolError for a field of another size."""
    if isinstance(message, Done):
        return _DONE.pack(_Kind.DONE, message.epoch)
    for field, size in (
        (message.ephemeral, KEY_BYTES),
        (message.entity_id, KEY_BYTES),
        (message.signature, SIGNATURE_BYTES),
    ):
        # `struct` would silently pad or cut it.
        if len(field) != size:
            raise LocalProtocolError(f"a key or signature of a secure session has {size} bytes, got {len(field)}")
    kind = _Kind.OFFER if isinstance(message, Offer) else _Kind.ACCEPT
    return _SHARE.pack(kind, message.epoch, message.ephemeral, message.entity_id, message.signature)


def decode_secure(event: Buffer) -> SecureMessage:
    """Read a message; the signature is not checked."""
    if not len(event):
        raise MalformedPacket("secure session", Fault.TRUNCATED, "empty")
    match event[0]:
        case _Kind.OFFER | _Kind.ACCEPT as kind:
            _, epoch, ephemeral, entity_id, signature = _SHARE.unpack(event)
            made = Offer if kind == _Kind.OFFER else Accept
            return made(epoch=epoch, ephemeral=ephemeral, entity_id=entity_id, signature=signature)
        case _Kind.DONE:
            _, epoch = _DONE.unpack(event)
            return Done(epoch=epoch)
        case kind:
            raise MalformedPacket("secure session", Fault.UNKNOWN_KIND, f"kind {kind}")
