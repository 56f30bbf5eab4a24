"""Route withdrawal (0x0C01) of net-mesh 0.32 and later: the sender no longer reaches a node (dialects.md §2.9)."""

from __future__ import annotations

import msgspec

from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_LAYOUT = Layout("route withdrawal", "<QQ")


class RouteWithdrawal(msgspec.Struct, frozen=True, kw_only=True):
    """One withdrawal."""

    dest: int
    """The node that the sender no longer reaches."""
    seq: int
    """Counts the withdrawals of a sender, from 0; a later one for the same node has a larger number."""


def encode_withdrawal(withdrawal: RouteWithdrawal) -> bytes:
    """Write a withdrawal."""
    return _LAYOUT.pack(withdrawal.dest, withdrawal.seq)


def decode_withdrawal(event: Buffer) -> RouteWithdrawal:
    """Read a withdrawal."""
    dest, seq = _LAYOUT.unpack(event)
    return RouteWithdrawal(dest=dest, seq=seq)
