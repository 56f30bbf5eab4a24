"""The exchange by which an invited node joins: Noise NKpsk0 and two signatures, as pure state (docs/wire/join.md).

    newcomer                                        inviting node
    Newcomer.hello   invite id, message 1 ─────►    read_hello, Admission(…).newcomer
                                                    … is it allowed? (policy/invites.py)
    Newcomer.take    ◄───────── message 2, sealed   Admission.answer
    Newcomer.done    signature ────────────────►    Admission.confirmed

Message 1 contains the entity of the newcomer and its signature, message 2 what the inviting node answers: Granted, Waiting or
Refused. The psk of the handshake follows from the token. So only somebody with the token can write message 1, only the
inviting node named in the token can read it and write message 2, and only the newcomer that drew the ephemeral key of
message 1 can read what is granted, also for somebody who recorded all and learns the token later. The last signature shows
that the newcomer stored it.

The machines are used once. A message that does not verify raises MalformedPacket or BadTag.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from meshbus.errors import UNDECODABLE, BadTag, Fault, MalformedPacket
from meshbus.names.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, noise_public_key, verify_signature
from meshbus.wire.constants import TAG_BYTES
from meshbus.wire.header import Buffer
from meshbus.wire.invitation import INVITE_ID_BYTES, InviteToken
from meshbus.wire.layout import Layout
from meshbus.wire.noise import Initiator, Responder, derive_public_key

MAGIC = b"MBJ1"
HELLO_BYTES = len(MAGIC) + INVITE_ID_BYTES + KEY_BYTES + KEY_BYTES + SIGNATURE_BYTES + TAG_BYTES
"""A hello always has this length, so that nothing that a stranger sends decides how much is read."""
DONE_BYTES = SIGNATURE_BYTES

LENGTH_BYTES = 2
"""Before a sealed answer, little-endian; 0 means that an unsealed reason follows."""

_PROLOGUE = b"meshbus-join-v1\0"
_HELLO_LABEL = b"meshbus-join-hello-v1\0"
_DONE_LABEL = b"meshbus-join-done-v1\0"
_REQUEST = Layout("join request", f"<{KEY_BYTES}s{SIGNATURE_BYTES}s")


class GrantedPeer(msgspec.Struct, frozen=True):
    """A node that the newcomer connects to, besides the one that invited it."""

    address: str
    public_key: bytes


class Granted(msgspec.Struct, frozen=True, kw_only=True, tag="granted"):
    """Everything that the newcomer needs. Its repr shows no secret."""

    certificate: bytes
    """Its encoded certificate (wire/certificate.py)."""
    psk: bytes
    """The mesh key."""
    psk_root: bytes = b""
    """The first key of the mesh, from which names follow (keyfile.py); empty if that is the mesh key itself."""
    address: str
    """Where the inviting node listens for the mesh; the host may be empty, and is then the one that the newcomer joined at."""
    peers: tuple[GrantedPeer, ...] = ()
    trusted_issuers: tuple[bytes, ...] = ()
    """Whose permission tokens the nodes of this fleet accept."""
    policy_issuers: tuple[bytes, ...] = ()
    """Who signs the policy of the fleet; if there are any, the policy follows from a neighbor."""
    secure: str = "auto"
    """The setting `secure` of the inviting node."""

    # Both forms, as for SessionKeys.
    def __repr__(self) -> str:
        return f"Granted({self.address!r}, {len(self.peers)} peers)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("address", self.address)]


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """An operator has to approve the newcomer first: ask again later."""

    invite: str
    """The id of the invite in hex, by which the operator approves it."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The newcomer is not admitted."""

    reason: str
    """The short word of a reason (policy/reason.py)."""
    problem: str
    """The same as a sentence, with what to do."""


JoinAnswer: TypeAlias = Granted | Waiting | Refused

_ANSWER: msgspec.json.Decoder[JoinAnswer] = msgspec.json.Decoder(JoinAnswer)


class Newcomer:
    """The side that joins."""

    __slots__ = ("_hello", "_identity", "_noise")

    def __init__(self, token: InviteToken, identity: Identity, ephemeral_private_key: bytes) -> None:
        self._identity = identity
        self._noise = Initiator(
            psk=token.psk,
            prologue=_prologue(token.invite_id, token.issuer),
            responder_public_key=noise_public_key(token.inviter),
            ephemeral_private_key=ephemeral_private_key,
        )
        signed = _hello_bytes(token.invite_id, token.issuer, derive_public_key(ephemeral_private_key))
        request = _REQUEST.pack(identity.entity_id, identity.sign(signed))
        self._hello = MAGIC + token.invite_id + self._noise.write(request)

    @property
    def hello(self) -> bytes:
        """What is sent first."""
        return self._hello

    def take(self, sealed: Buffer) -> JoinAnswer:
        """Open the answer. Raises BadTag if it is not from the inviting node, MalformedPacket if it cannot be read."""
        try:
            return _ANSWER.decode(self._noise.read(sealed))
        except UNDECODABLE as error:
            raise MalformedPacket("join answer", Fault.BAD_VALUE, str(error)) from None

    def done(self) -> bytes:
        """Return the confirmation that everything granted is stored."""
        return self._identity.sign(_DONE_LABEL + self._noise.handshake_hash)


def read_hello(hello: Buffer) -> tuple[bytes, bytes]:
    """Return the invite id of a hello, and message 1; nothing is verified. Raises MalformedPacket."""
    if len(hello) != HELLO_BYTES or bytes(hello[: len(MAGIC)]) != MAGIC:
        raise MalformedPacket("join hello", Fault.BAD_MAGIC, f"{len(hello)} bytes")
    body = bytes(hello[len(MAGIC) :])
    return body[:INVITE_ID_BYTES], body[INVITE_ID_BYTES:]


class Admission:
    """The side that admits: one exchange about one invite."""

    __slots__ = ("_noise", "newcomer")

    def __init__(self, inviter: Identity, invite_id: bytes, issuer: bytes, psk: bytes, message: bytes) -> None:
        """Open message 1. Raises BadTag or MalformedPacket if it was not made with the token, or not by its entity."""
        self._noise = Responder(
            psk=psk, prologue=_prologue(invite_id, issuer), static_private_key=inviter.noise_private_key
        )
        self.newcomer, signature = _REQUEST.unpack(self._noise.read(message))
        """Entity id of the newcomer."""
        signed = _hello_bytes(invite_id, issuer, self._noise.initiator_ephemeral)
        if not verify_signature(self.newcomer, signed, signature):
            raise BadTag("join hello")

    def answer(self, answer: JoinAnswer, ephemeral_private_key: bytes) -> bytes:
        """Seal an answer for the newcomer of message 1, and for nobody else; once."""
        return self._noise.write(ephemeral_private_key, msgspec.json.encode(answer))

    def confirmed(self, signature: bytes) -> bool:
        """Return whether the newcomer confirms, by this signature, that it stored what was granted in this exchange."""
        return verify_signature(self.newcomer, _DONE_LABEL + self._noise.handshake_hash, signature)


def _prologue(invite_id: bytes, issuer: bytes) -> bytes:
    return _PROLOGUE + invite_id + issuer


def _hello_bytes(invite_id: bytes, issuer: bytes, ephemeral: bytes) -> bytes:
    """Return what the newcomer signs: it wants to join by this invite, with this key of the handshake."""
    return _HELLO_LABEL + invite_id + issuer + ephemeral
