"""Policy of a fleet (0x4D0B): nodes say which signed policy they hold, and fetch a newer one from a neighbor in pieces.

An issuer signs a *statement*: the version, the size and the hash of the policy. The statement travels in every HAVE, so a node
knows before the first byte whether the policy is genuine and newer; any neighbor may then send the bytes. A FETCH is answered
with a number of CHUNKs from its offset on. Messages use the reliable stream 0x4D0B; engine/directory/fleetpolicy.py handles
them, and docs/wire/profile.md has the bytes.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import Identity, verify_signature
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

MAX_POLICY = 256 * 1024
"""Bytes of a policy. Our choice: some thousand channels, and less than a second on a slow link."""
CHUNK_BYTES = 1024
"""Bytes of a policy in one CHUNK: fits a packet on every common path."""

_LABEL = b"meshbus-policy-v1\0"
"""Begins what is signed, so that a signature for another purpose is never one of a policy."""
_STATED = Layout("policy statement", "<QI32s")
_HAVE = Layout("policy have", "<BQI32s32s64s")
_FETCH = Layout("policy fetch", "<BQI")


class _Kind(IntEnum):
    HAVE = 1
    FETCH = 2
    CHUNK = 3


class PolicyStatement(msgspec.Struct, frozen=True):
    """What an issuer signs about a policy."""

    version: int
    """Grows with every policy of a fleet; a node never goes back."""
    size: int
    digest: bytes
    """SHA-256 of the policy."""
    issuer: bytes
    """Entity id of the issuer."""
    signature: bytes

    @classmethod
    def sign(cls, identity: Identity, version: int, policy: bytes) -> PolicyStatement:
        """Sign a policy. Raises LocalProtocolError if it is empty or too large, or the version is not from 1 to 2^64−1."""
        if not 1 <= len(policy) <= MAX_POLICY:
            raise LocalProtocolError(f"a policy has 1 to {MAX_POLICY} bytes, got {len(policy)}; use fewer entries")
        if not 1 <= version < 1 << 64:
            raise LocalProtocolError(f"the version of a policy must be from 1 to {(1 << 64) - 1}, got {version}")
        digest = sha256(policy).digest()
        stated = _LABEL + _STATED.pack(version, len(policy), digest)
        return cls(version, len(policy), digest, identity.entity_id, identity.sign(stated))

    def verify(self) -> bool:
        """Return whether the issuer signed the statement; who it is, is not checked."""
        stated = _LABEL + _STATED.pack(self.version, self.size, self.digest)
        return verify_signature(self.issuer, stated, self.signature)

    def describes(self, policy: bytes) -> bool:
        """Return whether these are the bytes of the policy."""
        return len(policy) == self.size and sha256(policy).digest() == self.digest


class Have(msgspec.Struct, frozen=True):
    """The sender holds this policy."""

    statement: PolicyStatement


class Fetch(msgspec.Struct, frozen=True):
    """Ask for the bytes of a policy from an offset on."""

    version: int
    offset: int


class Chunk(msgspec.Struct, frozen=True):
    """Some bytes of a policy."""

    version: int
    offset: int
    data: bytes


FleetPolicyMessage: TypeAlias = Have | Fetch | Chunk


def encode_fleet_policy(message: FleetPolicyMessage) -> bytes:
    """Write a message."""
    match message:
        case Have(statement=stated):
            return _HAVE.pack(_Kind.HAVE, stated.version, stated.size, stated.digest, stated.issuer, stated.signature)
        case Fetch(version=version, offset=offset):
            return _FETCH.pack(_Kind.FETCH, version, offset)
        case Chunk(version=version, offset=offset, data=data):
            return _FETCH.pack(_Kind.CHUNK, version, offset) + data


def decode_fleet_policy(event: Buffer) -> FleetPolicyMessage:
    """Read a message; bytes are copied."""
    view = memoryview(event)
    match view[0] if view else None:
        case _Kind.HAVE:
            statement = PolicyStatement(*_HAVE.unpack(view)[1:])
            if not (statement.version and statement.size):
                raise MalformedPacket("policy have", Fault.BAD_VALUE, "a version or size of 0")
            return Have(statement)
        case _Kind.FETCH:
            return Fetch(*_FETCH.unpack(view)[1:])
        case _Kind.CHUNK:
            _, version, offset = _FETCH.unpack_prefix(view)
            data = bytes(view[_FETCH.size :])
            if not 1 <= len(data) <= CHUNK_BYTES:
                raise MalformedPacket("policy chunk", Fault.BAD_VALUE, f"{len(data)} bytes of policy")
            return Chunk(version, offset, data)
        case None:
            raise MalformedPacket("policy", Fault.TRUNCATED, "empty")
        case kind:
            raise MalformedPacket("policy", Fault.UNKNOWN_KIND, f"kind {kind}")
