"""What became of a packet: the words that recorders, records and replays share. Why it was dropped: policy/reason.py."""

from __future__ import annotations

from enum import IntEnum


class Fate(IntEnum):
    """What became of a packet; packet files carry these numbers."""

    FORWARDED = 0
    DELIVERED = 1
    """It was for this node, which took it."""
    DROPPED = 2
