"""What a node keeps on disk about daemons, as a seam: the node implements it with files, tests with memory.

A daemon belongs to exactly one node at a time, and these records decide to which: it runs where its record is ACTIVE. A
move goes from ACTIVE at the source and STAGED at the target, over MOVED and STAGED, to MOVED and ACTIVE. Everything is
durable when a call returns, and a call takes effect as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from meshbus.wire.messages.migration import BufferedEvent


class Status(StrEnum):
    """What a node is to a daemon."""

    ACTIVE = "active"
    """The daemon runs here."""
    STAGED = "staged"
    """The daemon is restored here, and runs elsewhere until its source has stopped."""
    MOVED = "moved"
    """The daemon was handed over, and never runs here again from this record."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """To whom a daemon belongs, as far as one node knows."""

    status: Status
    attempt: int | None = None
    """Number of the move that this is about; of an active daemon, the one that brought it."""
    orchestrator: int = 0
    """Who drives that move."""
    target: int = 0
    """The node that a daemon was handed over to."""
    moves: int = 0
    """How often it has moved, this move included where it is active."""
    begun: tuple[int, ...] = ()
    """Numbers of the last attempts to move it away from here: an attempt has one snapshot, so it begins only once."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What one node keeps of one daemon."""

    mark: Mark
    snapshot: bytes
    """The encoded snapshot; after a move, the one before it was handed over."""
    seed: bytes | None = None
    """The daemon's secret; None if its factory has it."""
    replayed: tuple[BufferedEvent, ...] = ()
    """Events that it has processed since the snapshot, on its way here."""


class Outcome(StrEnum):
    """How a move is to end."""

    HAND_OVER = "hand_over"
    """The source is to stop."""
    BEGIN = "begin"
    """The source has stopped, and the target is to begin."""
    TAKE_BACK = "take_back"
    """The daemon is to go on at the source; the target never begins."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What an orchestrator has decided about a move, kept until everyone concerned knows."""

    origin: int
    source: int
    target: int
    attempt: int | None
    outcome: Outcome


MAX_BEGUN = 64
"""Attempts that a record remembers: more than messages of old ones can be under way."""


def begin(mark: Mark, attempt: int) -> Mark:
    """Return a mark that remembers one more attempt."""
    return msgspec.structs.replace(mark, begun=(*mark.begun, attempt)[-MAX_BEGUN:])


class DaemonStore(Protocol):
    """The disk of a node, as far as daemons are concerned."""

    def save(self, origin: int, stored: Stored) -> None:
        """Replace the record of a daemon."""
        ...

    def append(self, origin: int, events: Sequence[BufferedEvent]) -> None:
        """Add to `replayed`, without writing the snapshot again."""
        ...

    def mark(self, origin: int, mark: Mark) -> None:
        """Replace the mark of a record, without writing the snapshot again."""
        ...

    def marked(self, origin: int) -> Mark | None:
        """Return the mark of a daemon's record, or None if there is no record."""
        ...

    def load(self, origin: int) -> Stored | None:
        """Return the record of a daemon, or None."""
        ...

    def remove(self, origin: int) -> None:
        """Delete the record of a daemon; nothing happens if there is none."""
        ...

    def origins(self) -> list[int]:
        """Return the daemons that have a record."""
        ...

    def decide(self, decision: Decision) -> None:
        """Keep a decision; there is at most one for each daemon."""
        ...

    def settle(self, origin: int) -> None:
        """Delete the decision about a daemon; nothing happens if there is none."""
        ...

    def decisions(self) -> list[Decision]:
        """Return all decisions that are kept."""
        ...
