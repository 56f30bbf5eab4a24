"""Node identities: an Ed25519 key pair and the ids derived from its public key.

The public key is the *entity id*. The node id (addresses peers) and the origin hash (marks what a node published) are
keyed hashes of it. Verification is libsodium's, which refuses the small-order keys that OpenSSL accepts. The Noise
static key of a meshbus node is the same key on the other form of the curve, so that one public key is all a peer must
be given; a plain 0.23 node has a Noise key of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2s

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import (
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
    crypto_sign_open,
)
from nacl.exceptions import BadSignatureError, CryptoError

from meshbus.errors import AuthError, AuthFault, LocalProtocolError

KEY_BYTES = 32
SIGNATURE_BYTES = 64

Entropy = Callable[[int], bytes]
"""Returns n random bytes: `os.urandom` in a live node, a seeded generator in tests."""

_NODE_ID_LABEL = b"net-node-id-v1"
_ORIGIN_LABEL = b"net-origin-v1"
_NET_MAGIC = 0x4E45


def derive_node_id(entity_id: bytes) -> int:
    """Derive the 64-bit node id of an entity."""
    return _derive(entity_id, _NODE_ID_LABEL)


def derive_origin_hash(entity_id: bytes) -> int:
    """Derive the 64-bit origin hash of an entity."""
    return _derive(entity_id, _ORIGIN_LABEL)


def routing_id(node_id: int) -> int:
    """Return the half of a node id that routing headers and handshake prologues carry."""
    return node_id & 0xFFFFFFFF


def verify_signature(entity_id: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether `signature` over `message` is the entity's, strictly."""
    if len(entity_id) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        # policy.md §7.1: strict. OpenSSL would accept a forged signature of a small-order key.
        crypto_sign_open(signature + message, entity_id)
    except BadSignatureError:
        return False
    return True


def noise_public_key(entity_id: bytes) -> bytes:
    """Return the Noise static public key (X25519) of a meshbus node from its entity id.

    Raises LocalProtocolError for bytes that are no point of the curve.
    """
    try:
        return crypto_sign_ed25519_pk_to_curve25519(entity_id)
    except (CryptoError, TypeError, ValueError) as error:
        raise LocalProtocolError(
            f"{entity_id.hex()} is not the public key of a meshbus node; copy it again, in full, or pass node_id too if it is"
            " the Noise key of a net-mesh 0.23 node"
        ) from error


class Identity:
    """A key pair, or only its public key, which cannot sign."""

    __slots__ = ("_key", "_seed", "entity_id", "node_id", "origin_hash")

    def __init__(self, entity_id: bytes, *, seed: bytes | None = None) -> None:
        self._seed = seed
        self._key = None if seed is None else Ed25519PrivateKey.from_private_bytes(seed)
        self.entity_id = entity_id
        self.node_id = derive_node_id(entity_id)
        self.origin_hash = derive_origin_hash(entity_id)

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Rebuild an identity from the 32 secret bytes that a key file holds."""
        if len(seed) != KEY_BYTES:
            raise LocalProtocolError(f"an identity seed is {KEY_BYTES} bytes, got {len(seed)}")
        public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
        return cls(public, seed=seed)

    @classmethod
    def from_public(cls, entity_id: bytes) -> Identity:
        """Create the identity of another node, without its secret."""
        if len(entity_id) != KEY_BYTES:
            raise LocalProtocolError(f"an entity id is {KEY_BYTES} bytes, got {len(entity_id)}")
        return cls(entity_id)

    @classmethod
    def generate(cls, entropy: Entropy) -> Identity:
        """Create an identity with a node id that every peer accepts.

        Id 0 means "unknown peer" to others, and a pingwave whose first two bytes spell the packet magic is dropped,
        so such ids (1 in 65 536) are drawn again.
        """
        while True:
            identity = cls.from_seed(entropy(KEY_BYTES))
            if identity.node_id != 0 and identity.node_id & 0xFFFF != _NET_MAGIC:
                return identity

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes: keep them in a file only you can read."""
        if self._seed is None:
            raise AuthError(AuthFault.READ_ONLY, "this identity has only a public key, so it has no secret seed")
        return self._seed

    @property
    def noise_private_key(self) -> bytes:
        """The Noise static private key (X25519) that belongs to `noise_public_key(entity_id)`."""
        return crypto_sign_ed25519_sk_to_curve25519(self.seed + self.entity_id)

    @property
    def can_sign(self) -> bool:
        """Whether the secret half is here."""
        return self._key is not None

    def sign(self, message: bytes) -> bytes:
        """Sign a message (deterministic Ed25519)."""
        if self._key is None:
            raise AuthError(AuthFault.READ_ONLY, "this identity has only a public key, so it cannot sign")
        return self._key.sign(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.entity_id == other.entity_id

    def __hash__(self) -> int:
        return hash(self.entity_id)

    def __repr__(self) -> str:
        return f"Identity(node_id={self.node_id:016x}, {'with' if self.can_sign else 'without'} secret)"


class OwnIdentity(Identity):
    """The identity of a running node. All its parts hold this object, so that they follow when the node gets another key."""

    __slots__ = ()

    def __init__(self, identity: Identity) -> None:
        self.become(identity)

    def become(self, identity: Identity) -> None:
        """Change to another identity."""
        for name in Identity.__slots__:
            setattr(self, name, getattr(identity, name))


def _derive(entity_id: bytes, label: bytes) -> int:
    # policy.md §7.1: the first eight bytes of a keyed BLAKE2s.
    return int.from_bytes(blake2s(entity_id, key=label, digest_size=32).digest()[:8], "little")
