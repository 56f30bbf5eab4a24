"""What became of a packet, and the reasons beside a gateway's own: the words that counters, records and replays share.

A gateway's reasons are DropReason (policy/verdict.py), 1 to 15. The codes of the three sets do not meet, so one number
says why a packet was dropped, whoever dropped it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from meshbus.policy.verdict import DropReason


class Fate(IntEnum):
    """What became of a packet."""

    FORWARDED = 0
    DELIVERED = 1
    """It was for this node, which took it."""
    DROPPED = 2


class TransitReason(IntEnum):
    """Why a packet for another node was not forwarded, beside the gateway's own reasons."""

    NO_ROUTE = 16
    """No neighbor leads to its destination."""
    OWN = 17
    """We sent it: it came back."""
    STRANGER = 18
    """Whoever sent it is no peer of ours."""
    RETURNING = 19
    """Its next hop is where it came from."""
    CROWDED = 20
    """The gateway let it pass, but it had to wait and there was no room."""


class ArrivalReason(IntEnum):
    """Why a packet for this node was not taken."""

    BAD_TAG = 32
    """It is not what its sender sealed."""
    REPLAYED = 33
    """Its counter was seen before, or is too old to tell."""
    MALFORMED = 34
    """Its length does not fit its header."""
    UNKNOWN_SESSION = 35
    UNKNOWN_SUBPROTOCOL = 36
    """Nobody here handles it."""
    NOT_NEGOTIATED = 37
    """It uses what its sender did not agree on with us."""
    NOT_SUBSCRIBED = 38
    """It is a publication that nobody here asked for."""


BEFORE_GATEWAY: Final = frozenset(set(TransitReason) - {TransitReason.CROWDED})
"""Reasons of packets for others that no gateway was asked about."""

REASONS: Final[dict[int, str]] = {
    int(reason): reason.name.lower() for reasons in (DropReason, TransitReason, ArrivalReason) for reason in reasons
}
"""The word for each code."""
