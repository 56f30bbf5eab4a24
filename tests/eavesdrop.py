"""What a holder of the mesh key computes from a 0.23 handshake that passes by (transport.md §19).

Written without the code of nodes: everything in a handshake is in clear, except for the mesh key.
"""

from __future__ import annotations

import hmac
from hashlib import blake2s
from typing import NamedTuple

_PROTOCOL = b"Noise_NKpsk0_25519_ChaChaPoly_BLAKE2s"


class End(NamedTuple):
    """A node as others know it."""

    node_id: int
    public_key: bytes
    """Its Noise key."""


def handshake_hash(psk: bytes, initiator: End, responder: End, first: bytes, second: bytes) -> bytes:
    """Return the hash of a handshake of two messages, from which all keys of its session follow."""
    name = blake2s(_PROTOCOL).digest()
    routing = [(end.node_id & 0xFFFFFFFF).to_bytes(8, "little") for end in (initiator, responder)]
    secret = hmac.digest(name, psk, blake2s)
    mixed = hmac.digest(secret, hmac.digest(secret, b"\x01", blake2s) + b"\x02", blake2s)
    state = name
    parts = (b"net-handshake-v1" + b"".join(routing), responder.public_key, mixed)
    for part in (*parts, first[:32], first[32:], second[:32], second[32:]):
        state = blake2s(state + part).digest()
    return state
