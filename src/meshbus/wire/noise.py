"""The handshake: Noise_NKpsk0_25519_ChaChaPoly_BLAKE2s as two state machines without I/O (transport.md §10.1).

The initiator knows the responder's static key beforehand and has none itself; both know the 32-byte mesh key (psk).
Two messages are exchanged, and all that is kept of them is the handshake hash, from which wire/keys.py derives a
session. Both machines are used once and only move forward:

    Initiator    write() → message 1 …      … message 2 → read()    → handshake_hash
    Responder    … message 1 → read()       write() → message 2 …   → handshake_hash

Private ephemeral keys are passed in as bytes, new ones for every attempt. A message that does not verify changes
nothing: the machine still waits, so that nobody without the psk can end a handshake by answering first. The packets of
the messages are in wire/handshake.py.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import Enum, auto
from hashlib import blake2s

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from meshbus.errors import BadTag, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import routing_id
from meshbus.wire.constants import NONCE_BYTES, TAG_BYTES
from meshbus.wire.header import Buffer

KEY_BYTES = 32
MIN_MESSAGE_BYTES = KEY_BYTES + TAG_BYTES
"""An ephemeral public key and the tag of an empty payload."""

_PROTOCOL = b"Noise_NKpsk0_25519_ChaChaPoly_BLAKE2s"
_PROLOGUE_LABEL = b"net-handshake-v1"
_ZERO_NONCE = bytes(NONCE_BYTES)
"""Each key of this pattern encrypts exactly one payload, so the cipher's counter is always 0."""


class _Step(Enum):
    START = auto()
    HALFWAY = auto()
    DONE = auto()


def prologue(initiator_node_id: int, responder_node_id: int) -> bytes:
    """Build the 32 bytes that bind a handshake to the routing ids of its two nodes."""
    initiator, responder = routing_id(initiator_node_id), routing_id(responder_node_id)
    # transport.md §10.1: routing ids (32 bits), widened to 64. Both sides must know them before message 1, which is why
    # a direct responder has to be told which node to expect.
    return _PROLOGUE_LABEL + initiator.to_bytes(8, "little") + responder.to_bytes(8, "little")


def derive_public_key(private_key: bytes) -> bytes:
    """Derive the X25519 public key, which peers need, from the 32 private bytes."""
    return load_private(private_key).public_key().public_bytes_raw()


class Initiator:
    """The side that starts: it knows the responder's static public key."""

    __slots__ = ("_ephemeral", "_responder", "_step", "_symmetric")

    def __init__(
        self, *, psk: bytes, prologue: bytes, responder_public_key: bytes, ephemeral_private_key: bytes
    ) -> None:
        self._symmetric = _Symmetric.begin(prologue, responder_public_key)
        self._symmetric.mix_psk(psk)
        self._responder = responder_public_key
        self._ephemeral = load_private(ephemeral_private_key)
        self._step = _Step.START

    def write(self, payload: bytes = b"") -> bytes:
        """Write message 1."""
        _require(self._step is _Step.START, "message 1 was already written")
        # A copy in every step, so that a message that does not verify leaves the state as it was.
        state = self._symmetric.copy()
        public = self._ephemeral.public_key().public_bytes_raw()
        state.mix_ephemeral(public)
        state.mix_key(exchange(self._ephemeral, self._responder))
        message = public + state.encrypt(payload)
        self._symmetric = state
        self._step = _Step.HALFWAY
        return message

    def read(self, message: Buffer) -> bytes:
        """Read message 2 and return its payload. A bad message raises, and the handshake still waits."""
        _require(self._step is _Step.HALFWAY, "message 2 is not awaited")
        public, sealed = _split(message)
        state = self._symmetric.copy()
        state.mix_ephemeral(public)
        state.mix_key(exchange(self._ephemeral, public))
        payload = state.decrypt(sealed)
        self._symmetric = state
        self._step = _Step.DONE
        return payload

    @property
    def handshake_hash(self) -> bytes:
        """The hash of the whole transcript, once message 2 was read."""
        _require(self._step is _Step.DONE, "the handshake is not finished")
        return self._symmetric.hash


class Responder:
    """The side that answers, with its static private key."""

    __slots__ = ("_begun", "_initiator", "_static", "_step", "_symmetric", "psk")

    def __init__(self, *, psk: bytes, prologue: bytes, static_private_key: bytes, also: Sequence[bytes] = ()) -> None:
        """Prepare to read message 1 under a mesh key, or else under one of those in `also`, in this order."""
        self._static = load_private(static_private_key)
        self._symmetric = _Symmetric.begin(prologue, self._static.public_key().public_bytes_raw())
        self._begun: list[tuple[bytes, _Symmetric]] = []
        for key in (psk, *also):
            state = self._symmetric.copy()
            state.mix_psk(key)
            self._begun.append((key, state))
        self.psk = psk
        """The mesh key under which message 1 was read."""
        self._initiator = b""
        self._step = _Step.START

    def read(self, message: Buffer) -> bytes:
        """Read message 1 and return its payload. A bad message raises, and the handshake still waits."""
        _require(self._step is _Step.START, "message 1 was already read")
        public, sealed = _split(message)
        # The mesh key has no part in the curve operation, which is what costs time: one serves all keys.
        shared = exchange(self._static, public)
        for psk, begun in self._begun:
            state = begun.copy()
            state.mix_ephemeral(public)
            state.mix_key(shared)
            try:
                payload = state.decrypt(sealed)
            except BadTag:
                continue
            self.psk, self._symmetric, self._initiator = psk, state, public
            self._step = _Step.HALFWAY
            return payload
        raise BadTag("handshake")

    def write(self, ephemeral_private_key: bytes, payload: bytes = b"") -> bytes:
        """Write message 2, with a fresh ephemeral private key."""
        _require(self._step is _Step.HALFWAY, "message 2 follows message 1, once")
        state = self._symmetric.copy()
        ephemeral = load_private(ephemeral_private_key)
        public = ephemeral.public_key().public_bytes_raw()
        state.mix_ephemeral(public)
        state.mix_key(exchange(ephemeral, self._initiator))
        message = public + state.encrypt(payload)
        self._symmetric = state
        self._step = _Step.DONE
        return message

    @property
    def initiator_ephemeral(self) -> bytes:
        """The public key that message 1 began with: the same one again is a replay of that message."""
        _require(self._step is not _Step.START, "message 1 was not read yet")
        return self._initiator

    @property
    def handshake_hash(self) -> bytes:
        """The hash of the whole transcript, once message 2 was written."""
        _require(self._step is _Step.DONE, "the handshake is not finished")
        return self._symmetric.hash


class _Symmetric:
    """The chaining key, the transcript hash and the current cipher key, with the names of the Noise specification."""

    __slots__ = ("_chaining_key", "_key", "hash")

    def __init__(self, chaining_key: bytes, transcript_hash: bytes, key: bytes) -> None:
        self._chaining_key = chaining_key
        self.hash = transcript_hash
        self._key = key

    @classmethod
    def begin(cls, prologue_bytes: bytes, responder_public_key: bytes) -> _Symmetric:
        """Start a transcript with what both sides know before anything is sent."""
        _require_key("a public key", responder_public_key)
        # The name has 37 bytes, which is longer than a hash, so Noise starts with its hash.
        name = blake2s(_PROTOCOL).digest()
        state = cls(name, name, b"")
        state.mix_hash(prologue_bytes)
        state.mix_hash(responder_public_key)
        return state

    def copy(self) -> _Symmetric:
        return _Symmetric(self._chaining_key, self.hash, self._key)

    def mix_hash(self, data: bytes) -> None:
        self.hash = blake2s(self.hash + data).digest()

    def mix_key(self, material: bytes) -> None:
        self._chaining_key, self._key = _hkdf(self._chaining_key, material, 2)

    def mix_psk(self, psk: bytes) -> None:
        """Mix the `psk` token, the first of message 1."""
        _require_key("a mesh key", psk)
        # Noise's MixKeyAndHash: the third output is the cipher key.
        self._chaining_key, hashed, self._key = _hkdf(self._chaining_key, psk, 3)
        self.mix_hash(hashed)

    def mix_ephemeral(self, public_key: bytes) -> None:
        """Mix an `e` token; in patterns with a psk it also enters the key."""
        # transport.md §10.1: the second step is the rule of patterns with a psk, and required.
        self.mix_hash(public_key)
        self.mix_key(public_key)

    def encrypt(self, payload: bytes) -> bytes:
        sealed = ChaCha20Poly1305(self._key).encrypt(_ZERO_NONCE, payload, self.hash)
        self.mix_hash(sealed)
        return sealed

    def decrypt(self, sealed: bytes) -> bytes:
        try:
            payload = ChaCha20Poly1305(self._key).decrypt(_ZERO_NONCE, sealed, self.hash)
        except InvalidTag:
            raise BadTag("handshake") from None
        self.mix_hash(sealed)
        return payload


def _hkdf(chaining_key: bytes, material: bytes, count: int) -> list[bytes]:
    # The HKDF of Noise: HMAC-BLAKE2s, and each output depends on the one before.
    secret = hmac.digest(chaining_key, material, blake2s)
    outputs: list[bytes] = []
    previous = b""
    for number in range(1, count + 1):
        previous = hmac.digest(secret, previous + bytes((number,)), blake2s)
        outputs.append(previous)
    return outputs


def _split(message: Buffer) -> tuple[bytes, bytes]:
    if len(message) < MIN_MESSAGE_BYTES:
        raise MalformedPacket("handshake", Fault.TRUNCATED, f"{len(message)} of {MIN_MESSAGE_BYTES} bytes")
    return bytes(message[:KEY_BYTES]), bytes(message[KEY_BYTES:])


def exchange(private: X25519PrivateKey, public_key: bytes) -> bytes:
    """Return the shared secret of a private key and a public one. Raises MalformedPacket for a key of low order."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError:  # the shared secret is all zero: the key is a point of low order, chosen to know the secret
        raise MalformedPacket("handshake", Fault.BAD_VALUE, "public key of low order") from None


def load_private(private_key: bytes) -> X25519PrivateKey:
    """Return the X25519 key of 32 private bytes."""
    _require_key("a private key", private_key)
    return X25519PrivateKey.from_private_bytes(private_key)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise LocalProtocolError(f"handshake: {problem}")


def _require_key(what: str, key: bytes) -> None:
    _require(len(key) == KEY_BYTES, f"{what} is {KEY_BYTES} bytes, got {len(key)}")
