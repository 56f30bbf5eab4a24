"""Election: choose the leader of a replica set from what this node knows; no message is exchanged for it.

The choice is a pure function of round-trip times, health and node ids (redex.md §6). The own round-trip time is 0, so a
healthy member nearly always chooses itself, and two members may choose differently. What that means is settled
elsewhere: by heartbeats between 0.23 members (belief.py), by promises between meshbus members (leadership.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Standing(msgspec.Struct, frozen=True):
    """What this node knows of one member of a replica set."""

    node: int
    rtt_us: int | None
    """None if it was not measured, which ranks last."""
    healthy: bool


def elect(own: int, members: Iterable[Standing]) -> int | None:
    """Return the healthy member with the shortest round trip, ties by node id; None if no member is healthy."""
    ranks = (_rank(own, member) for member in members if member.healthy)
    best = min(ranks, default=None)
    return None if best is None else best[-1]


def _rank(own: int, member: Standing) -> tuple[bool, int, int]:
    if member.node == own:
        return False, 0, own
    return member.rtt_us is None, member.rtt_us or 0, member.node
