"""Handshake relay (0x0601): a handshake message inside sessions, from its sender to a relay, and on to its receiver.

What a routing header does in the clear, this does between meshbus nodes that agreed on it: only the relay learns who
begins a session with whom. The message has no kind byte and no hop count, because it makes exactly one stop.
"""

from __future__ import annotations

import msgspec

from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_ENDS = Layout("handshake relay", "<QQ")


class RelayedHandshake(msgspec.Struct, frozen=True):
    """A handshake message on its way through a relay."""

    dest_id: int
    src_id: int
    """Full node ids, both."""
    message: bytes
    """As the Noise handshake wrote it."""


def encode_relay(relayed: RelayedHandshake) -> bytes:
    """Write a relayed handshake message."""
    return _ENDS.pack(relayed.dest_id, relayed.src_id) + relayed.message


def decode_relay(event: Buffer) -> RelayedHandshake:
    """Read a relayed handshake message; what is in it is not looked at."""
    dest_id, src_id = _ENDS.unpack_prefix(event)
    return RelayedHandshake(dest_id, src_id, bytes(event[_ENDS.size :]))
