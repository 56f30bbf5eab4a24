"""Certificates of membership: an issuer of the fleet states the name, the tags and the subnet of one node (docs/wire/join.md).

A certificate names keys, those of the issuer and of the node, and is valid for some time. It is not secret: only the node that
has the secret of its key can act as its subject. Whether an issuer is trusted is decided by the caller. A node gets its
certificate when it joins (wire/joining.py).

Times are unix seconds. A certificate is valid from `not_before` up to, and not including, `not_after`.
"""

from __future__ import annotations

import msgspec

from meshbus.errors import AuthError, AuthFault, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, verify_signature
from meshbus.names.nodename import is_node_name
from meshbus.names.subnet import SubnetId
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, take_field

VERSION = 1
"""The first byte of a certificate."""
MAX_TAGS = 32
"""Tags of one certificate. Our choice: far more than nodes have."""
MAX_TAG_BYTES = 255
"""Bytes of one tag: its length is one byte."""

MAX_TIME = 253_402_300_799
"""The last second of the year 9999, which every date can show."""

_LABEL = b"meshbus-certificate-v1\0"
"""Begins what is signed, so that a signature for another purpose is never one of a certificate."""
_FIXED = Layout("certificate", "<B32s32sQQQI")
_LENGTH = 1


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What an issuer signs about a node."""

    issuer: bytes
    """Entity id of the issuer."""
    subject: bytes
    """Entity id of the node."""
    serial: int
    """Number of the invite that led to it."""
    not_before: int
    not_after: int
    subnet: SubnetId
    name: str
    tags: tuple[str, ...]
    signature: bytes = bytes(SIGNATURE_BYTES)

    def signed_by(self, issuer: Identity) -> Certificate:
        """Return the certificate with the signature of its issuer. Raises LocalProtocolError for values that do not fit."""
        if issuer.entity_id != self.issuer:
            raise LocalProtocolError(f"the issuer of the certificate is {self.issuer.hex()}, not the one that signs")
        return msgspec.structs.replace(self, signature=issuer.sign(_LABEL + _body(self)))

    def verify(self) -> None:
        """Check the signature; who the issuer is and the time are not checked. Raises AuthError."""
        if not verify_signature(self.issuer, _LABEL + _body(self), self.signature):
            raise AuthError(AuthFault.BAD_SIGNATURE, "the certificate is not signed by its issuer; join again")

    def valid(self, now: float) -> bool:
        """Return whether the certificate is valid at this time; the signature is not checked."""
        return self.not_before <= int(now) < self.not_after


def encode_certificate(certificate: Certificate) -> bytes:
    """Write a certificate."""
    return _body(certificate) + certificate.signature


def decode_certificate(buffer: Buffer) -> Certificate:
    """Read a certificate; its signature and times are not checked."""
    view = memoryview(buffer)
    version, issuer, subject, serial, not_before, not_after, subnet = _FIXED.unpack_prefix(view)
    if version != VERSION:
        raise MalformedPacket("certificate", Fault.UNKNOWN_KIND, f"version {version}")
    if not not_before < not_after <= MAX_TIME:
        raise MalformedPacket("certificate", Fault.BAD_VALUE, f"valid from {not_before} to {not_after}")
    raw_name, rest = take_field("certificate", "name", view[_FIXED.size :], _LENGTH)
    name = _text(raw_name)
    if not is_node_name(name):
        raise MalformedPacket("certificate", Fault.BAD_NAME, repr(name[:64]))
    if not rest or rest[0] > MAX_TAGS:
        raise MalformedPacket("certificate", Fault.BAD_VALUE, "number of tags")
    count, rest = rest[0], rest[1:]
    tags = []
    for _ in range(count):
        raw, rest = take_field("certificate", "tag", rest, _LENGTH)
        if not raw:
            raise MalformedPacket("certificate", Fault.BAD_VALUE, "an empty tag")
        tags.append(_text(raw))
    if len(rest) != SIGNATURE_BYTES:
        raise MalformedPacket("certificate", Fault.BAD_LENGTH, f"{len(rest)} bytes of signature")
    return Certificate(
        issuer=issuer,
        subject=subject,
        serial=serial,
        not_before=not_before,
        not_after=not_after,
        subnet=SubnetId(subnet),
        name=name,
        tags=tuple(tags),
        signature=bytes(rest),
    )


def _body(certificate: Certificate) -> bytes:
    """Return everything but the signature."""
    if len(certificate.issuer) != KEY_BYTES or len(certificate.subject) != KEY_BYTES:
        raise LocalProtocolError(f"the keys of a certificate have {KEY_BYTES} bytes each")
    tags = [tag.encode() for tag in certificate.tags]
    if len(tags) > MAX_TAGS or any(not 1 <= len(tag) <= MAX_TAG_BYTES for tag in tags):
        raise LocalProtocolError(f"a certificate has at most {MAX_TAGS} tags, of 1 to {MAX_TAG_BYTES} bytes")
    if not is_node_name(certificate.name):
        raise LocalProtocolError(f"{certificate.name!r} is not the name of a node")
    fixed = _FIXED.pack(
        VERSION,
        certificate.issuer,
        certificate.subject,
        certificate.serial,
        certificate.not_before,
        certificate.not_after,
        int(certificate.subnet),
    )
    words = [_sized(certificate.name.encode()), bytes((len(tags),)), *map(_sized, tags)]
    return fixed + b"".join(words)


def _sized(raw: bytes) -> bytes:
    return bytes((len(raw),)) + raw


def _text(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise MalformedPacket("certificate", Fault.BAD_TEXT, raw[:32].hex()) from None
