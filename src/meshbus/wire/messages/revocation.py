"""Revocation (0x4D0C): signed records of what must not be trusted any more, and how neighbors find out which ones they lack.

A record names a public key, which never changes, and what is taken from it: everything, publishing, subscribing, or one
token. A token is named by the bytes that its issuer signed, so that no other form of the same token escapes. A *succession*
takes everything from a key and names its heir: the same node under a new key. Both keys sign it, and an issuer of the fleet
if there is one; otherwise the old key stands in its place. Nothing takes a record back: a set of records only grows, in any
order and however often they come.

Neighbors compare their sets in four steps. HAVE has a digest for each of 16 parts of the set; the node that finds a difference
sends SHOW with the parts, is told the ids of their records in LISTs, and asks with WANT for those that it lacks. Each comes in
a RECORD, as does a new one. Messages use the reliable stream 0x4D0C; engine/directory/revoking.py handles them, and
docs/wire/profile.md has the bytes.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, derive_node_id, verify_signature
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, take_field
from meshbus.wire.messages.token import SIGNED_BYTES, PermissionToken, decode_token

ID_BYTES = 16
"""Bytes of a record's id: nobody finds two records with the same one."""
PARTS = 16
"""Parts of a set with a digest of their own. Our choice: of thousands of records, a sixteenth is listed for one that lacks."""
DIGEST_BYTES = 16
MAX_IDS = 64
"""Ids in one LIST or WANT: 1 KiB, which fits a packet on every common path."""
MAX_REASON_BYTES = 200
"""Bytes of the text of a record. Our choice: a sentence."""
MAX_RECORD = 512
"""A record is shorter."""
VERSION = 2
"""Of the subprotocol. Nodes with version 1 knew no successions."""

_LABEL = b"meshbus-revocation-v1\0"
"""Begins what is signed, so that a signature for another purpose is never one of a revocation."""
_HEAD = Layout("revocation", f"<BQ{KEY_BYTES}s")
_PARTS = Layout("revocation show", "<BH")
_NO_RECORDS = bytes(DIGEST_BYTES)


class Revoked(IntEnum):
    """What a record takes from a key."""

    NODE = 1
    """Everything: no session, and nothing that it published or is sent is forwarded."""
    PUBLISH = 2
    SUBSCRIBE = 3
    TOKEN = 4
    """One token with all of its line (PermissionToken.line), and what was delegated by it."""
    SUCCESSION = 5
    """Everything, in favor of another key of the same node."""

    @property
    def word(self) -> str:
        """The word for it in tables and messages."""
        return self.name.lower()


class _Kind(IntEnum):
    HAVE = 1
    SHOW = 2
    LIST = 3
    WANT = 4
    RECORD = 5


class Revocation(msgspec.Struct, frozen=True):
    """One record, signed by an issuer of the fleet; a succession by both of its keys, and perhaps by an issuer."""

    what: Revoked
    at: int
    """When it was signed, in unix seconds; nothing is decided by it."""
    issuer: bytes
    """Entity id of who signed it; for a succession that no issuer signed, the key that retires."""
    target: bytes
    """The entity id that is revoked; for a token, the bytes of it that are signed; for a succession, both keys."""
    reason: str
    """Why, in the issuer's words."""
    signature: bytes
    """Of the issuer; for a succession, those of the old key, of the new one, and of the issuer unless it is the old key."""

    @classmethod
    def sign(cls, identity: Identity, what: Revoked, target: bytes, *, at: int, reason: str) -> Revocation:
        """Sign a record. Raises LocalProtocolError if the target or the reason has a wrong length."""
        if what is Revoked.SUCCESSION:
            raise LocalProtocolError(
                "a succession is signed by its keys; got one to sign alone, use Revocation.succeed"
            )
        if len(target) != _target_bytes(what):
            raise LocalProtocolError(f"a {what.word} to revoke has {_target_bytes(what)} bytes, got {len(target)}")
        _check_reason(reason)
        unsigned = cls(what, at, identity.entity_id, target, reason, bytes(SIGNATURE_BYTES))
        return msgspec.structs.replace(unsigned, signature=identity.sign(unsigned.signed_bytes))

    @classmethod
    def succeed(cls, old: Identity, new: Identity, *, at: int, reason: str, issuer: bytes | None = None) -> Revocation:
        """Sign that a new key takes the place of an old one; with an issuer, it is complete once that has endorsed it.

        Raises LocalProtocolError if both keys are the same, or the reason has a wrong length.
        """
        if old == new:
            raise LocalProtocolError(f"a key cannot succeed itself, got {old.entity_id.hex()} twice; make a new one")
        _check_reason(reason)
        names = old.entity_id if issuer is None else issuer
        unsigned = cls(Revoked.SUCCESSION, at, names, old.entity_id + new.entity_id, reason, b"")
        signed = unsigned.signed_bytes
        blank = b"" if names == old.entity_id else bytes(SIGNATURE_BYTES)
        return msgspec.structs.replace(unsigned, signature=old.sign(signed) + new.sign(signed) + blank)

    def endorse(self, issuer: Identity) -> Revocation:
        """Sign a succession that names this issuer. Raises LocalProtocolError if it names another one."""
        if self.what is not Revoked.SUCCESSION or issuer.entity_id != self.issuer or not self.is_endorsed:
            raise LocalProtocolError(
                f"the record names {self.issuer.hex()} as its issuer, got the key {issuer.entity_id.hex()}; prepare it for"
                " this issuer"
            )
        of_keys = self.signature[: 2 * SIGNATURE_BYTES]
        return msgspec.structs.replace(self, signature=of_keys + issuer.sign(self.signed_bytes))

    @property
    def signed_bytes(self) -> bytes:
        """What the signature covers."""
        text = self.reason.encode()
        return b"".join((_LABEL, _HEAD.pack(self.what, self.at, self.issuer), self.target, bytes((len(text),)), text))

    @property
    def subject(self) -> bytes:
        """Entity id of the node that loses something."""
        return self.target[:KEY_BYTES] if self.token is None else self.token.subject

    @property
    def heir(self) -> bytes | None:
        """Entity id that takes the place of the subject; None if it is no succession."""
        return self.target[KEY_BYTES:] if self.what is Revoked.SUCCESSION else None

    @property
    def is_endorsed(self) -> bool:
        """Whether it names an issuer beside the keys of a succession; always true for other records."""
        return self.what is not Revoked.SUCCESSION or self.issuer != self.subject

    @property
    def node_id(self) -> int:
        """Node id of the subject."""
        return derive_node_id(self.subject)

    @property
    def token(self) -> PermissionToken | None:
        """The token that is revoked, without its signature; None if something else is."""
        return decode_token(self.target + bytes(SIGNATURE_BYTES)) if self.what is Revoked.TOKEN else None

    @property
    def id(self) -> bytes:
        """Names what is revoked; records of several issuers about the same have the same one, unless they name an heir."""
        # Nodes with different issuers take different successions: the one that is of no use must not hide the other one.
        signer = self.issuer if self.what is Revoked.SUCCESSION else b""
        return sha256(bytes((self.what,)) + self.target + signer).digest()[:ID_BYTES]

    @property
    def signers(self) -> tuple[bytes, ...]:
        """The entity ids whose signatures a record needs, in their order."""
        if self.what is not Revoked.SUCCESSION:
            return (self.issuer,)
        keys = self.subject, self.target[KEY_BYTES:]
        return (*keys, self.issuer) if self.is_endorsed else keys

    def verify(self) -> bool:
        """Return whether everybody signed the record who has to; who the issuer is, is not checked."""
        signed, signers = self.signed_bytes, self.signers
        return len(self.signature) == SIGNATURE_BYTES * len(signers) and all(
            verify_signature(signer, signed, self.signature[place * SIGNATURE_BYTES : (place + 1) * SIGNATURE_BYTES])
            for place, signer in enumerate(signers)
        )


class Have(msgspec.Struct, frozen=True):
    """The records that the sender holds, as digests of their parts."""

    digests: tuple[bytes, ...]


class Show(msgspec.Struct, frozen=True):
    """Ask for the ids in some parts: bit `n` stands for part `n`."""

    parts: int


class Listing(msgspec.Struct, frozen=True):
    """Ids of records that the sender holds (LIST)."""

    ids: tuple[bytes, ...]


class Want(msgspec.Struct, frozen=True):
    """Ask for records by their ids."""

    ids: tuple[bytes, ...]


class Record(msgspec.Struct, frozen=True):
    """One record."""

    revocation: Revocation


RevocationMessage: TypeAlias = Have | Show | Listing | Want | Record


def part_of(record_id: bytes) -> int:
    """Return the part of a set that a record belongs to."""
    return record_id[0] * PARTS >> 8


def digest_of(ids: tuple[bytes, ...]) -> bytes:
    """Return the digest of a part with these ids, in ascending order."""
    return sha256(b"".join(ids)).digest()[:DIGEST_BYTES] if ids else _NO_RECORDS


def encode_record(record: Revocation) -> bytes:
    """Write a record, as messages and files hold it."""
    return record.signed_bytes[len(_LABEL) :] + record.signature


def decode_record(buffer: Buffer) -> Revocation:
    """Read a record; its signature is not checked."""
    view = memoryview(buffer)
    kind, at, issuer = _HEAD.unpack_prefix(view)
    try:
        what = Revoked(kind)
    except ValueError:
        raise MalformedPacket("revocation", Fault.UNKNOWN_KIND, f"revokes {kind}") from None
    end = _HEAD.size + _target_bytes(what)
    if len(view) < end:
        raise MalformedPacket("revocation", Fault.TRUNCATED, f"{len(view)} bytes")
    text, signature = take_field("revocation", "reason", view[end:], 1)
    record = Revocation(what, at, issuer, bytes(view[_HEAD.size : end]), _reason(text), bytes(signature))
    if len(signature) != SIGNATURE_BYTES * len(record.signers):
        raise MalformedPacket("revocation", Fault.BAD_LENGTH, f"signatures of {len(signature)} bytes")
    if record.heir == record.subject:
        raise MalformedPacket("revocation", Fault.BAD_VALUE, "a key that succeeds itself")
    return record


def encode_revocation(message: RevocationMessage) -> bytes:
    """Write a message."""
    match message:
        case Have(digests=digests):
            return bytes((_Kind.HAVE,)) + b"".join(digests)
        case Show(parts=parts):
            return _PARTS.pack(_Kind.SHOW, parts)
        case Listing(ids=ids):
            return bytes((_Kind.LIST,)) + b"".join(ids)
        case Want(ids=ids):
            return bytes((_Kind.WANT,)) + b"".join(ids)
        case Record(revocation=revocation):
            return bytes((_Kind.RECORD,)) + encode_record(revocation)


def decode_revocation(event: Buffer) -> RevocationMessage:
    """Read a message; bytes are copied, and no signature is checked."""
    view = memoryview(event)
    match view[0] if view else None:
        case _Kind.HAVE:
            if len(view) != 1 + PARTS * DIGEST_BYTES:
                raise MalformedPacket("revocation have", Fault.BAD_LENGTH, f"{len(view)} bytes")
            return Have(_split(view[1:], DIGEST_BYTES))
        case _Kind.SHOW:
            return Show(_PARTS.unpack(view)[1])
        case _Kind.LIST:
            return Listing(_ids(view[1:]))
        case _Kind.WANT:
            return Want(_ids(view[1:]))
        case _Kind.RECORD:
            return Record(decode_record(view[1:]))
        case None:
            raise MalformedPacket("revocation", Fault.TRUNCATED, "empty")
        case kind:
            raise MalformedPacket("revocation", Fault.UNKNOWN_KIND, f"kind {kind}")


def _target_bytes(what: Revoked) -> int:
    return {Revoked.TOKEN: SIGNED_BYTES, Revoked.SUCCESSION: 2 * KEY_BYTES}.get(what, KEY_BYTES)


def _check_reason(reason: str) -> None:
    if not 1 <= len(reason.encode()) <= MAX_REASON_BYTES or not reason.isprintable():
        raise LocalProtocolError(
            f"the reason must be a printable line of 1 to {MAX_REASON_BYTES} bytes, got {len(reason.encode())}"
        )


def _reason(text: memoryview) -> str:
    try:
        reason = str(text, "utf-8")
    except UnicodeDecodeError:
        reason = ""
    # It is shown on terminals and written to logs of lines.
    if not (reason and reason.isprintable() and len(text) <= MAX_REASON_BYTES):
        raise MalformedPacket(
            "revocation", Fault.BAD_VALUE, f"a reason of {len(text)} bytes, expected a printable line"
        )
    return reason


def _ids(view: memoryview) -> tuple[bytes, ...]:
    if not view or len(view) % ID_BYTES or len(view) > MAX_IDS * ID_BYTES:
        raise MalformedPacket("revocation ids", Fault.BAD_LENGTH, f"{len(view)} bytes")
    return _split(view, ID_BYTES)


def _split(view: memoryview, size: int) -> tuple[bytes, ...]:
    return tuple(bytes(view[start : start + size]) for start in range(0, len(view), size))
