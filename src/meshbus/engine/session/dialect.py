"""Dialect: which form of the net-mesh wire a peer was seen to use in its current session (dialects.md §3).

No version number travels on the wire, so a level is learned from what the peer sends, and is unknown before:

    A   0.23 to 0.26    credit grants of 16 bytes
    B   0.27 to 0.36    grants of 24 bytes, which acknowledge; NACK and RESET; token chains with a length
    C   0.37 and later  as B; reliable streams are delivered in order; tokens need a proof of identity

A level only rises: what shows a later version is true, and what an earlier one would also send shows nothing more. A
new session starts without a level, because the peer may have been replaced by another version.
"""

from __future__ import annotations

from enum import StrEnum

RANGES_TAG = "net.reliable.stream_ack_ranges@1"
"""The tag in announcements of 0.30 and later; such a peer reads acknowledged ranges (dialects.md §2.4)."""


class Level(StrEnum):
    """A form of the net-mesh wire."""

    A = "A"
    B = "B"
    C = "C"


class Dialect:
    """What is known about the wire of one peer."""

    __slots__ = ("level", "withdraws")

    def __init__(self) -> None:
        self.level: Level | None = None
        """None while nothing has shown it."""
        self.withdraws = False
        """Whether it sent a withdrawal of a route, which only 0.32 and later do."""

    def learn(self, level: Level) -> bool:
        """Record that the peer sent something which this level was the first to have; return whether that is news."""
        # The values are letters in the order of the levels.
        news = self.level is None or level > self.level
        if news:
            self.level = level
        return news

    @property
    def reads_short_grants(self) -> bool:
        """Whether the peer may need credit grants of 16 bytes."""
        return self.level is None or self.level is Level.A

    @property
    def reads_long_grants(self) -> bool:
        """Whether the peer may need credit grants of 24 bytes."""
        return self.level is not Level.A

    @property
    def repairs(self) -> bool:
        """Whether the peer is known to repeat packets that a NACK names."""
        return self.level is Level.B or self.level is Level.C

    @property
    def reads_withdrawals(self) -> bool:
        """Whether the peer is known to be 0.32 or later, and so to read the messages that this version has added."""
        return self.withdraws or self.level is Level.C
