"""Reflex (0x0D00): a peer asks for the address that we see it at, and gets it.

The question is an empty event. What follows from the answers (the kind of NAT) is decided in the engine.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from meshbus.wire.header import Buffer
from meshbus.wire.messages.address import Address, pack_address, unpack_address


class ReflexRequest(msgspec.Struct, frozen=True):
    """Ask the peer for the address it sees."""


class ReflexResponse(msgspec.Struct, frozen=True):
    """Answer with the address that the peer's session was set up from."""

    address: Address


ReflexMessage: TypeAlias = ReflexRequest | ReflexResponse


def encode_reflex(message: ReflexMessage) -> bytes:
    """Write a reflex message."""
    return b"" if isinstance(message, ReflexRequest) else pack_address(message.address)


def decode_reflex(event: Buffer) -> ReflexMessage:
    """Read a reflex message."""
    return ReflexResponse(unpack_address(event)) if len(event) else ReflexRequest()
