"""Proof that a node has a mesh key, for one side of one session (docs/wire/profile.md, 0x4D0D).

The proof is a keyed hash over what is different in every session and for each side of it. It says nothing about the key, is
worth nothing in another session, and cannot be sent back to the side that made it.
"""

from __future__ import annotations

from hashlib import blake2s
from hmac import compare_digest

from meshbus.names.identity import KEY_BYTES
from meshbus.wire.layout import Layout

PROOF_BYTES = 32

_PERSON = b"mb-psk-1"
"""The personalization of BLAKE2s, which separates this use of a mesh key from all others."""
_BOUND = Layout("key proof", f"<{KEY_BYTES}sQQ")


def prove_key(mesh_key: bytes, handshake_hash: bytes, prover: int, verifier: int) -> bytes:
    """Return the proof of the node `prover` for the node `verifier`, in the session with this handshake hash."""
    bound = _BOUND.pack(handshake_hash, prover, verifier)
    return blake2s(bound, key=mesh_key, person=_PERSON, digest_size=PROOF_BYTES).digest()


def proves_key(proof: bytes, mesh_key: bytes, handshake_hash: bytes, prover: int, verifier: int) -> bool:
    """Return whether a proof is that of the prover for this session."""
    return compare_digest(proof, prove_key(mesh_key, handshake_hash, prover, verifier))
