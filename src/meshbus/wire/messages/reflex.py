"""Reflex (0x0D00): a peer asks for the address at which this node sees it (mesh.md §8.1).

A request is an empty event. engine/nat/watch.py infers the kind of NAT from the answers.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from meshbus.wire.header import Buffer
from meshbus.wire.messages.address import Address, pack_address, unpack_address


class ReflexRequest(msgspec.Struct, frozen=True):
    """Ask the peer for the address that it sees."""


class ReflexResponse(msgspec.Struct, frozen=True):
    """Answer with the address from which the peer established its session."""

    address: Address


ReflexMessage: TypeAlias = ReflexRequest | ReflexResponse


def encode_reflex(message: ReflexMessage) -> bytes:
    """Write a reflex message."""
    return b"" if isinstance(message, ReflexRequest) else pack_address(message.address)


def decode_reflex(event: Buffer) -> ReflexMessage:
    """Read a reflex message."""
    return ReflexResponse(unpack_address(event)) if len(event) else ReflexRequest()
