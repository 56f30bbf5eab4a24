"""Rotation of secrets (0x4D0D): proofs of a new mesh key inside a session, and tokens that are renewed.

    PROOF       the sender has the current mesh key of the receiver; answered with the same for the other side
    ANSWER      the answer, which is not answered
    RENEW       please issue a token that follows this one; asked of its issuer by its subject
    RENEWED     the token that follows
    REFUSED     there is none, and why
    PRESENT     a token that follows one which the receiver keeps

Messages use the reliable stream 0x4D0D. What is proved is in wire/keyproof.py; engine/channels/rotation.py handles the
messages, and docs/wire/profile.md has the bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.keyproof import PROOF_BYTES
from meshbus.wire.layout import Layout
from meshbus.wire.messages.token import PermissionToken, decode_token, encode_token

_REFUSED = Layout("renewal refused", "<BQB")
_PROOF = Layout("rotation proof", f"<B{PROOF_BYTES}s")


class _Kind(IntEnum):
    PROOF = 1
    ANSWER = 2
    RENEW = 3
    RENEWED = 4
    REFUSED = 5
    PRESENT = 6


class Refusal(IntEnum):
    """Why a token is not renewed."""

    OFF = 1
    """This node renews no tokens."""
    FOREIGN = 2
    """The receiver is not its issuer, or the sender is not its subject."""
    NOT_RENEWABLE = 3
    """The issuer did not allow it when it signed the token."""
    EXPIRED = 4
    """It is not valid now."""
    REVOKED = 5
    """Its issuer has revoked it."""
    EARLY = 6
    """Less than half of its time is over."""
    BUSY = 7
    """Too many were asked for; ask again later."""


class KeyProof(msgspec.Struct, frozen=True):
    """The sender has a mesh key."""

    proof: bytes
    answers: bool = False
    """Whether it answers a proof of the receiver."""


class Renew(msgspec.Struct, frozen=True):
    """Ask its issuer for a token that follows this one."""

    token: PermissionToken


class Renewed(msgspec.Struct, frozen=True):
    """A token that follows the one that the receiver sent."""

    token: PermissionToken


class NotRenewed(msgspec.Struct, frozen=True):
    """The token with this nonce is not renewed."""

    nonce: int
    why: int
    """One of Refusal, or a number of a later version."""


class Present(msgspec.Struct, frozen=True):
    """A token that follows one which the receiver keeps for the sender."""

    token: PermissionToken


RotationMessage: TypeAlias = KeyProof | Renew | Renewed | NotRenewed | Present


def encode_rotation(message: RotationMessage) -> bytes:
    """Write a message."""
    match message:
        case KeyProof(proof=proof, answers=answers):
            return _PROOF.pack(_Kind.ANSWER if answers else _Kind.PROOF, proof)
        case Renew(token=token):
            return bytes((_Kind.RENEW,)) + encode_token(token)
        case Renewed(token=token):
            return bytes((_Kind.RENEWED,)) + encode_token(token)
        case NotRenewed(nonce=nonce, why=why):
            return _REFUSED.pack(_Kind.REFUSED, nonce, why)
        case Present(token=token):
            return bytes((_Kind.PRESENT,)) + encode_token(token)


def decode_rotation(event: Buffer) -> RotationMessage:
    """Read a message; bytes are copied."""
    view = memoryview(event)
    match view[0] if view else None:
        case _Kind.PROOF | _Kind.ANSWER as kind:
            return KeyProof(_PROOF.unpack(view)[1], answers=kind == _Kind.ANSWER)
        case _Kind.RENEW:
            return Renew(decode_token(view[1:]))
        case _Kind.RENEWED:
            return Renewed(decode_token(view[1:]))
        case _Kind.REFUSED:
            return NotRenewed(*_REFUSED.unpack(view)[1:])
        case _Kind.PRESENT:
            return Present(decode_token(view[1:]))
        case None:
            raise MalformedPacket("rotation", Fault.TRUNCATED, "empty")
        case kind:
            raise MalformedPacket("rotation", Fault.UNKNOWN_KIND, f"kind {kind}")
