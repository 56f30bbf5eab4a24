"""Stream credit (0x0B00): how much of a stream the receiver has consumed (transport.md §14, dialects.md §2.1).

A grant carries a running total, so grants may be lost, merged or repeated. It has 16 bytes up to net-mesh 0.26 and 24
from 0.27 on, where it also acknowledges packets; each version drops the other length. Accounting is in
engine/session/stream.py, and which length a peer reads in engine/session/dialect.py.
"""

from __future__ import annotations

import msgspec

from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_SHORT = Layout("credit grant", "<QQ")
_LONG = Layout("credit grant", "<QQQ")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """One credit grant."""

    stream_id: int
    total_consumed: int
    """Bytes accepted on the stream so far: plaintext plus 84 for each packet. The sender limits it to what it sent."""
    ack_seq: int | None = None
    """The lowest sequence that did not arrive yet; 0 on a stream that is not reliable. None in the form of 16 bytes."""


def encode_grant(grant: Grant) -> bytes:
    """Write a grant: in 24 bytes if it acknowledges, otherwise in 16."""
    if grant.ack_seq is None:
        return _SHORT.pack(grant.stream_id, grant.total_consumed)
    return _LONG.pack(grant.stream_id, grant.total_consumed, grant.ack_seq)


def decode_grant(event: Buffer) -> Grant:
    """Read a grant of either length."""
    if len(event) <= _SHORT.size:
        stream_id, total_consumed = _SHORT.unpack(event)
        return Grant(stream_id=stream_id, total_consumed=total_consumed)
    stream_id, total_consumed, ack_seq = _LONG.unpack(event)
    return Grant(stream_id=stream_id, total_consumed=total_consumed, ack_seq=ack_seq)
