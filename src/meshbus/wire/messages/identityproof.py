"""Identity proof (0x0A01) of net-mesh 0.37 and later: a subscriber proves that it has the key of its entity.

    prover → verifier    ProofRequest, 9 bytes
    verifier → prover    ProofChallenge, 73 bytes
    prover → verifier    Proof, 137 bytes
    verifier → prover    ProofVerdict, 11 bytes

Each message is one event with an exact length (dialects.md §2.7). The signature covers both entities, the prover's node
id and the session, so that it is worth nothing elsewhere.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import KEY_BYTES, SIGNATURE_BYTES
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

REQUEST_ID_BYTES = 8
CHALLENGE_BYTES = 32

_DOMAIN = b"net-identity-proof-v1"
_REQUEST = Layout("proof request", "<B8s")
_CHALLENGE = Layout("proof challenge", "<B8s32s32s")
_PROOF = Layout("identity proof", "<B8s32s32s64s")
_VERDICT = Layout("proof verdict", "<B8sBB")
_SIGNED = Layout("identity proof", f"<{len(_DOMAIN)}s32s32sQQ32s")


class _Kind(IntEnum):
    REQUEST = 0
    CHALLENGE = 1
    PROOF = 2
    VERDICT = 3


class ProofRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a verifier for a challenge."""

    request_id: bytes
    """Random; the answer repeats it."""


class ProofChallenge(msgspec.Struct, frozen=True, kw_only=True):
    """Answer a request with what the prover has to sign."""

    request_id: bytes
    verifier: bytes
    """Entity id of the verifier."""
    challenge: bytes


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Answer a challenge."""

    request_id: bytes
    """Random, another one than that of the request."""
    prover: bytes
    """Entity id of the prover."""
    challenge: bytes
    signature: bytes


class ProofVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Report whether a proof was accepted."""

    request_id: bytes
    accepted: bool
    reason: int = 0


ProofMessage: TypeAlias = ProofRequest | ProofChallenge | Proof | ProofVerdict


def signed_bytes(*, verifier: bytes, prover: bytes, node_id: int, session_id: int, challenge: bytes) -> bytes:
    """Return the bytes that the prover, with this node id, signs in a session."""
    return _SIGNED.pack(_DOMAIN, verifier, prover, node_id, session_id, challenge)


def encode_proof(message: ProofMessage) -> bytes:
    """Write a message of an identity proof; raise LocalProtocolError for a field of another size."""
    _check(message.request_id, REQUEST_ID_BYTES)
    match message:
        case ProofRequest():
            return _REQUEST.pack(_Kind.REQUEST, message.request_id)
        case ProofChallenge():
            _check(message.verifier, KEY_BYTES)
            _check(message.challenge, CHALLENGE_BYTES)
            return _CHALLENGE.pack(_Kind.CHALLENGE, message.request_id, message.verifier, message.challenge)
        case Proof():
            _check(message.prover, KEY_BYTES)
            _check(message.challenge, CHALLENGE_BYTES)
            _check(message.signature, SIGNATURE_BYTES)
            return _PROOF.pack(_Kind.PROOF, message.request_id, message.prover, message.challenge, message.signature)
        case ProofVerdict():
            return _VERDICT.pack(_Kind.VERDICT, message.request_id, message.accepted, message.reason)


def decode_proof(event: Buffer) -> ProofMessage:
    """Read a message of an identity proof; the signature is not checked."""
    if not len(event):
        raise MalformedPacket("identity proof", Fault.TRUNCATED, "empty")
    match event[0]:
        case _Kind.REQUEST:
            _, request_id = _REQUEST.unpack(event)
            return ProofRequest(request_id=request_id)
        case _Kind.CHALLENGE:
            _, request_id, verifier, challenge = _CHALLENGE.unpack(event)
            return ProofChallenge(request_id=request_id, verifier=verifier, challenge=challenge)
        case _Kind.PROOF:
            _, request_id, prover, challenge, signature = _PROOF.unpack(event)
            return Proof(request_id=request_id, prover=prover, challenge=challenge, signature=signature)
        case _Kind.VERDICT:
            _, request_id, accepted, reason = _VERDICT.unpack(event)
            if accepted > 1:
                raise MalformedPacket("proof verdict", Fault.BAD_VALUE, f"accepted {accepted}")
            return ProofVerdict(request_id=request_id, accepted=bool(accepted), reason=reason)
        case kind:
            raise MalformedPacket("identity proof", Fault.UNKNOWN_KIND, f"kind {kind}")


def _check(field: bytes, size: int) -> None:
    # `struct` would silently pad or cut it.
    if len(field) != size:
        raise LocalProtocolError(f"a field of an identity proof has {size} bytes, got {len(field)}")
