"""Fate of a packet: forwarded, delivered or dropped, as recorders, records and replays name it.

The reasons of drops are in policy/reason.py.
"""

from __future__ import annotations

from enum import IntEnum


class Fate(IntEnum):
    """What happened to a packet; the numbers are stored in packet files and must not change."""

    FORWARDED = 0
    DELIVERED = 1
    """It was for this node, and was accepted."""
    DROPPED = 2
