"""Two histories of one origin after a partition: who is behind, and which branch wins where both wrote (state.md §6).

The outcome depends only on the events, so that both sides come to the same one without asking each other. The losing
branch is never thrown away: it is part of the outcome, with a record under which it can go on as a chain of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import xxhash

from meshbus.compute.causal import ChainFault, check_chain
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.continuity import ForkRecord


class Side(StrEnum):
    """Whose history."""

    OURS = "ours"
    THEIRS = "theirs"


class Converged(NamedTuple):
    """Both histories are the same."""


class Catchup(NamedTuple):
    """One side has only a part of the other's history."""

    behind: Side
    missing: tuple[CausalEvent, ...]


class Conflict(NamedTuple):
    """Both sides wrote different events at the same place."""

    sequence: int
    """Number of the first event that differs."""
    winner: Side
    losing: tuple[CausalEvent, ...]
    """The branch that lost, to be kept and reported."""

    def fork(self, original_origin: int, forked_origin: int) -> ForkRecord:
        """Return the record under which the losing branch goes on with an origin of its own."""
        return ForkRecord(original_origin=original_origin, forked_origin=forked_origin, fork_seq=self.sequence)


Outcome: TypeAlias = Converged | Catchup | Conflict


def reconcile(
    ours: Sequence[CausalEvent], theirs: Sequence[CausalEvent], origin_hash: int, split_seq: int
) -> Outcome | ChainFault:
    """Compare what two sides wrote after `split_seq`, the last event that they shared.

    Returns a fault if the other side's events are no history of this origin after the split. The link from the split
    event itself is not checked: neither side can know what the other's partition saw.
    """
    if (fault := _check(theirs, origin_hash, split_seq)) is not None:
        return fault
    at = next((place for place, pair in enumerate(zip(ours, theirs, strict=False)) if _differ(*pair)), None)
    if at is None:
        return _prefix(ours, theirs)
    winner = Side.OURS if _rank(ours, at) <= _rank(theirs, at) else Side.THEIRS
    losing = theirs if winner == Side.OURS else ours
    return Conflict(split_seq + 1 + at, winner, tuple(losing[at:]))


def _check(events: Sequence[CausalEvent], origin_hash: int, split_seq: int) -> ChainFault | None:
    if not events:
        return None
    if any(event.link.origin_hash != origin_hash for event in events):
        return ChainFault.ORIGIN_MISMATCH
    if events[0].link.sequence != split_seq + 1:
        return ChainFault.SEQUENCE_GAP
    return check_chain(events)


def _differ(ours: CausalEvent, theirs: CausalEvent) -> bool:
    # The horizon is left out: two sides may have seen different events and still written the same.
    return (ours.link.parent_hash, ours.link.sequence, ours.payload) != (
        theirs.link.parent_hash,
        theirs.link.sequence,
        theirs.payload,
    )


def _prefix(ours: Sequence[CausalEvent], theirs: Sequence[CausalEvent]) -> Outcome:
    if len(ours) == len(theirs):
        return Converged()
    behind = Side.OURS if len(ours) < len(theirs) else Side.THEIRS
    longer, shared = max(ours, theirs, key=len), min(len(ours), len(theirs))
    return Catchup(behind, tuple(longer[shared:]))


def _rank(events: Sequence[CausalEvent], at: int) -> tuple[int, int, bytes, int, int]:
    """Return what decides between two branches, lower first: the longer one, and then a hash that nobody chooses."""
    event = events[at]
    digest = xxhash.xxh3_64_intdigest(event.payload)
    return at - len(events), digest, event.payload, event.link.parent_hash, event.link.sequence
