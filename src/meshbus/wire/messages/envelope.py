"""The identity envelope of a snapshot: a daemon's secret seed, sealed for the node that it moves to (compute.md §3).

The seed is encrypted to the target's Noise static key and bound to one link of the daemon's chain. The daemon's own
signature shows that the seed's owner chose this target at this link, so an envelope cannot be used for another one.
"""

from __future__ import annotations

from hashlib import blake2s

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt, crypto_aead_xchacha20poly1305_ietf_encrypt
from nacl.exceptions import CryptoError

from meshbus.errors import BadTag, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import Entropy, Identity, verify_signature
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout
from meshbus.wire.messages.causal import CausalLink, pack_link
from meshbus.wire.noise import KEY_BYTES, derive_public_key

ENVELOPE_BYTES = 209
_VERSION = 1
_ENVELOPE = Layout("identity envelope", "<B32s32s48s32s64s")
_KEY_LABEL = b"net-identity-envelope"
_NONCE_LABEL = b"net-identity-nonce"
_NONCE_BYTES = 24


class IdentityEnvelope(msgspec.Struct, frozen=True):
    """A sealed seed, fields in wire order. Nothing in it is verified before it is opened."""

    target_public_key: bytes
    """The Noise static public key of the node that may open it."""
    ephemeral_public_key: bytes
    ciphertext: bytes
    signer: bytes
    """The daemon's entity id."""
    signature: bytes


def encode_envelope(envelope: IdentityEnvelope) -> bytes:
    """Write the 209 bytes of an envelope."""
    return _ENVELOPE.pack(_VERSION, *msgspec.structs.astuple(envelope))


def decode_envelope(buffer: Buffer) -> IdentityEnvelope:
    """Read an envelope from exactly 209 bytes."""
    version, *fields = _ENVELOPE.unpack(buffer)
    if version != _VERSION:
        raise MalformedPacket("identity envelope", Fault.BAD_VALUE, f"version {version}, expected {_VERSION}")
    return IdentityEnvelope(*fields)


def seal_identity(daemon: Identity, link: CausalLink, target_public_key: bytes, entropy: Entropy) -> IdentityEnvelope:
    """Seal the seed of a daemon for one node, at one link of the daemon's chain.

    Raises AuthError for a daemon without its secret, LocalProtocolError for a key that is no point of the curve.
    """
    ephemeral = X25519PrivateKey.from_private_bytes(entropy(KEY_BYTES))
    ephemeral_public_key = ephemeral.public_key().public_bytes_raw()
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(target_public_key))
    except ValueError as error:
        raise LocalProtocolError(f"{target_public_key.hex()} is not a Noise public key") from error
    sealed = crypto_aead_xchacha20poly1305_ietf_encrypt(
        daemon.seed, pack_link(link), _nonce(ephemeral_public_key, target_public_key), _key(shared)
    )
    signature = daemon.sign(target_public_key + pack_link(link))
    return IdentityEnvelope(target_public_key, ephemeral_public_key, sealed, daemon.entity_id, signature)


def open_identity(
    envelope: IdentityEnvelope, entity_id: bytes, link: CausalLink, static_private_key: bytes
) -> Identity:
    """Open an envelope that came with a snapshot of `entity_id` at `link`, and return the daemon's identity.

    Raises MalformedPacket for an envelope of another daemon or for another node, BadTag for a wrong signature or seal.
    """
    if envelope.signer != entity_id:
        raise MalformedPacket(
            "identity envelope", Fault.BAD_VALUE, "it is signed by another entity than the snapshot's"
        )
    if not verify_signature(envelope.signer, envelope.target_public_key + pack_link(link), envelope.signature):
        raise BadTag("signature of the identity envelope")
    if derive_public_key(static_private_key) != envelope.target_public_key:
        raise MalformedPacket("identity envelope", Fault.BAD_VALUE, "it is sealed for another node")
    try:
        private = X25519PrivateKey.from_private_bytes(static_private_key)
        shared = private.exchange(X25519PublicKey.from_public_bytes(envelope.ephemeral_public_key))
        nonce = _nonce(envelope.ephemeral_public_key, envelope.target_public_key)
        seed = crypto_aead_xchacha20poly1305_ietf_decrypt(envelope.ciphertext, pack_link(link), nonce, _key(shared))
    except (CryptoError, ValueError) as error:
        raise BadTag("identity envelope") from error
    daemon = Identity.from_seed(seed)
    if daemon.entity_id != entity_id:
        raise BadTag("seed in the identity envelope")
    return daemon


def _key(shared: bytes) -> bytes:
    return blake2s(shared, key=_KEY_LABEL).digest()


def _nonce(ephemeral_public_key: bytes, target_public_key: bytes) -> bytes:
    return blake2s(ephemeral_public_key + target_public_key, key=_NONCE_LABEL).digest()[:_NONCE_BYTES]
