"""Stream credit (0x0B00): how much of a stream the receiver has consumed (transport.md §14).

A grant carries a running total, so grants may be lost, merged or repeated. Accounting is in engine/session/stream.py.
"""

from __future__ import annotations

import msgspec

from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_LAYOUT = Layout("credit grant", "<QQ")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """One credit grant."""

    stream_id: int
    total_consumed: int
    """Bytes accepted on the stream so far: plaintext plus 84 for each packet. The sender limits it to what it sent."""


def encode_grant(grant: Grant) -> bytes:
    """Write a grant."""
    return _LAYOUT.pack(grant.stream_id, grant.total_consumed)


def decode_grant(event: Buffer) -> Grant:
    """Read a grant."""
    stream_id, total_consumed = _LAYOUT.unpack(event)
    return Grant(stream_id=stream_id, total_consumed=total_consumed)
