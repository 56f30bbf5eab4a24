"""Handshake relay (0x0601): a handshake message inside two sessions, from its sender to a relay and on to its receiver.

Between meshbus nodes that negotiated it, this replaces a routing header, which is not encrypted: only the relay learns
who begins a session with whom. The message has no kind byte and no hop count, because it passes exactly one relay.
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
    """Both are full node ids."""
    message: bytes
    """The Noise message (wire/noise.py)."""


def encode_relay(relayed: RelayedHandshake) -> bytes:
    """Write a relayed handshake message."""
    return _ENDS.pack(relayed.dest_id, relayed.src_id) + relayed.message


def decode_relay(event: Buffer) -> RelayedHandshake:
    """Read a relayed handshake message; the Noise message in it is not parsed."""
    # The rest is the Noise message, whose length the handshake checks.
    dest_id, src_id = _ENDS.unpack_prefix(event)
    return RelayedHandshake(dest_id, src_id, bytes(event[_ENDS.size :]))
