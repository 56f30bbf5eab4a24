"""Keys of a secure session: signed Diffie-Hellman on top of a session, as pure state (docs/wire/secure.md).

One exchange leads from one epoch to the next. Epoch 0 is the 0.23 session, whose keys everyone can compute who has the
mesh key and saw the handshake. Each side draws a new X25519 key and signs it with its entity key:

    Offering (initiator)    offer → …           … accept → take()    → Agreement
    answer() (responder)    … offer →           → accept …           → Agreement

A signature covers the transcript of all that came before, from the 0.23 handshake on, so that it is worth nothing in
another session or epoch. The keys follow from the shared secret, from the chain of earlier secrets and from the
transcript. A message that does not verify raises and changes nothing. The messages are in wire/messages/secure.py; who
may be at the other end, when keys are used and for how long, is decided in engine/session/secure.py.
"""

from __future__ import annotations

from hashlib import blake2s

import msgspec
from cryptography.hazmat.primitives.hashes import BLAKE2s
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from meshbus.errors import BadTag
from meshbus.names.identity import KEY_BYTES, Identity, verify_signature
from meshbus.wire.keys import Role, SessionKeys, nonce_prefix
from meshbus.wire.layout import Layout
from meshbus.wire.messages.secure import Accept, Offer, encode_secure
from meshbus.wire.noise import exchange, load_private

LABEL = b"meshbus-secure-v1"
SESSION_ID_BYTES = 8

_NOTHING = bytes(KEY_BYTES)
"""In a signature, what its side does not know yet: an offer is signed before the answer exists."""
_SIGNED = Layout("secure signature", f"<{len(LABEL)}s32sIBQQ32s32s32s32s")
_IDS = Layout("secure transcript", "<QQ")
_ROLE_CODES = {Role.INITIATOR: 0, Role.RESPONDER: 1}


class Ends(msgspec.Struct, frozen=True):
    """The node ids of the two sides of a session."""

    initiator: int
    responder: int


class Chain(msgspec.Struct, frozen=True):
    """What the next exchange of a session builds on. Its repr shows no secrets."""

    epoch: int
    transcript: bytes
    """Hash of everything that led to this epoch; public."""
    secret: bytes
    """Enters the keys of the next epoch."""

    @classmethod
    def begin(cls, handshake_hash: bytes) -> Chain:
        """Start at the 0.23 session with this handshake hash, which is no secret to holders of the mesh key."""
        return cls(0, handshake_hash, handshake_hash)

    # Both forms, as for SessionKeys.
    def __repr__(self) -> str:
        return f"Chain(epoch={self.epoch})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("epoch", self.epoch)]


class Agreement(msgspec.Struct, frozen=True):
    """The outcome of an exchange at one side."""

    keys: SessionKeys
    chain: Chain


class Offering:
    """The initiator's side of one exchange."""

    __slots__ = ("_chain", "_ends", "_ephemeral", "_identity", "message", "offer")

    def __init__(self, identity: Identity, ends: Ends, chain: Chain, ephemeral_private_key: bytes) -> None:
        self._identity = identity
        self._ends = ends
        self._chain = chain
        self._ephemeral = load_private(ephemeral_private_key)
        public = self._ephemeral.public_key().public_bytes_raw()
        signed = _signed_bytes(chain, Role.INITIATOR, ends, (public, _NOTHING), (identity.entity_id, _NOTHING))
        self.offer = Offer(
            epoch=chain.epoch + 1,
            ephemeral=public,
            entity_id=identity.entity_id,
            signature=identity.sign(signed),
        )
        self.message = encode_secure(self.offer)

    def take(self, accept: Accept) -> Agreement:
        """Return the keys for an answer. Raises BadTag if its signature is not the entity's over this exchange."""
        offer = self.offer
        signed = _signed_bytes(
            self._chain,
            Role.RESPONDER,
            self._ends,
            (offer.ephemeral, accept.ephemeral),
            (offer.entity_id, accept.entity_id),
        )
        if accept.epoch != offer.epoch or not verify_signature(accept.entity_id, signed, accept.signature):
            raise BadTag("secure accept")
        shared = exchange(self._ephemeral, accept.ephemeral)
        return _agree(self._chain, Role.INITIATOR, self._ends, shared, self.message + encode_secure(accept))


def answer(
    identity: Identity, ends: Ends, chain: Chain, offer: Offer, ephemeral_private_key: bytes
) -> tuple[bytes, Agreement]:
    """Answer an offer as the responder: return the message to send, and the keys.

    Raises BadTag if the signature is not the entity's over the next epoch of this chain.
    """
    signed = _signed_bytes(chain, Role.INITIATOR, ends, (offer.ephemeral, _NOTHING), (offer.entity_id, _NOTHING))
    if offer.epoch != chain.epoch + 1 or not verify_signature(offer.entity_id, signed, offer.signature):
        raise BadTag("secure offer")
    ephemeral = load_private(ephemeral_private_key)
    # Before the signature of our own, which costs as much: a key of low order raises here.
    shared = exchange(ephemeral, offer.ephemeral)
    public = ephemeral.public_key().public_bytes_raw()
    signed = _signed_bytes(
        chain, Role.RESPONDER, ends, (offer.ephemeral, public), (offer.entity_id, identity.entity_id)
    )
    message = encode_secure(
        Accept(epoch=offer.epoch, ephemeral=public, entity_id=identity.entity_id, signature=identity.sign(signed))
    )
    return message, _agree(chain, Role.RESPONDER, ends, shared, encode_secure(offer) + message)


def _signed_bytes(
    chain: Chain, role: Role, ends: Ends, ephemerals: tuple[bytes, bytes], entities: tuple[bytes, bytes]
) -> bytes:
    """Return what a side signs; of both pairs, the initiator's part comes first."""
    return _SIGNED.pack(
        LABEL,
        chain.transcript,
        chain.epoch + 1,
        _ROLE_CODES[role],
        ends.initiator,
        ends.responder,
        *ephemerals,
        *entities,
    )


def _agree(chain: Chain, role: Role, ends: Ends, shared: bytes, messages: bytes) -> Agreement:
    """Derive the keys of the next epoch from the shared secret and both messages."""
    ids = _IDS.pack(ends.initiator, ends.responder)
    transcript = blake2s(LABEL + chain.transcript + ids + messages).digest()
    length = 3 * KEY_BYTES + SESSION_ID_BYTES
    kdf = HKDF(algorithm=BLAKE2s(KEY_BYTES), length=length, salt=chain.secret, info=LABEL + transcript)
    derived = kdf.derive(shared)
    to_responder, to_initiator, secret = (derived[at : at + KEY_BYTES] for at in range(0, 3 * KEY_BYTES, KEY_BYTES))
    session_id = int.from_bytes(derived[3 * KEY_BYTES :], "little")
    initiates = role is Role.INITIATOR
    keys = SessionKeys(
        session_id=session_id,
        nonce_prefix=nonce_prefix(session_id),
        tx_key=to_responder if initiates else to_initiator,
        rx_key=to_initiator if initiates else to_responder,
    )
    return Agreement(keys, Chain(chain.epoch + 1, transcript, secret))
