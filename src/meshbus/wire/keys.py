"""Derive session keys from the hash of a finished handshake.

The 0.23 derivation has no other input, so everyone who has the mesh key and saw the two handshake messages can compute
these keys (transport.md §19). Compatibility requires it. Between meshbus nodes, wire/secure.py replaces them.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2s

import msgspec

_EXTRACT_LABEL = b"net-kdf-v1"
_INITIATOR_TX_LABEL = b"initiator-tx"
_INITIATOR_RX_LABEL = b"initiator-rx"


class Role(StrEnum):
    """Which side of a handshake a node was on."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


class SessionKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What one side needs to seal and open the packets of a session. Its repr shows no secrets."""

    session_id: int
    nonce_prefix: bytes
    """The first 4 bytes of every nonce, in both directions."""
    tx_key: bytes
    rx_key: bytes
    handshake_hash: bytes = b""
    """The hash of the handshake that they follow from; empty for keys of a secure session (wire/secure.py)."""

    # Both forms: a rich console, such as that of the command line, would otherwise print all fields.
    def __repr__(self) -> str:
        return f"SessionKeys(session_id={self.session_id:016x})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("session_id", f"{self.session_id:016x}")]


def derive_keys(handshake_hash: bytes, role: Role) -> SessionKeys:
    """Derive the keys that `role` uses, from the 32-byte handshake hash."""
    # transport.md §11. The output of Noise's Split() is not used.
    extracted = _keyed_hash(handshake_hash, _EXTRACT_LABEL)
    to_responder = _keyed_hash(extracted, _INITIATOR_TX_LABEL)
    to_initiator = _keyed_hash(extracted, _INITIATOR_RX_LABEL)
    initiates = role is Role.INITIATOR
    session_id = int.from_bytes(handshake_hash[:8], "little")
    return SessionKeys(
        session_id=session_id,
        nonce_prefix=nonce_prefix(session_id),
        tx_key=to_responder if initiates else to_initiator,
        rx_key=to_initiator if initiates else to_responder,
        handshake_hash=handshake_hash,
    )


def nonce_prefix(session_id: int) -> bytes:
    """Fold a session id into the 4 bytes that start every nonce of the session."""
    # transport.md §11. Both directions share the prefix; their keys differ, so that no nonce is used twice with a key.
    return ((session_id ^ session_id >> 32) & 0xFFFFFFFF).to_bytes(4, "little")


def _keyed_hash(key: bytes, data: bytes) -> bytes:
    # transport.md §6: BLAKE2s's own key parameter, not HMAC.
    return blake2s(data, key=key).digest()
