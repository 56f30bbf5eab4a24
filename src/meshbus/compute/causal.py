"""Causal chains: emitting events whose links follow each other, checking links, and a log of one origin.

Each link names the hash of the event before it, so a chain can only be continued by someone who has its last event, and
a change anywhere breaks it at the next link (state.md §1 and §3). compute/continuity.py judges whole logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.messages.causal import MAX_SEQUENCE, CausalEvent, CausalLink, hash_event


class ChainFault(StrEnum):
    """Why an event does not continue a chain, in the order of the checks."""

    ORIGIN_MISMATCH = "origin_mismatch"
    DUPLICATE = "duplicate"
    SEQUENCE_GAP = "sequence_gap"
    PARENT_HASH_MISMATCH = "parent_hash_mismatch"
    GENESIS_PAYLOAD = "genesis_payload"


class ChainHead:
    """The end of a chain that is being emitted."""

    __slots__ = ("end",)

    def __init__(self, link: CausalLink, parent_hash: int | None = None) -> None:
        self.end = link, hash_event(link, b"") if parent_hash is None else parent_hash
        """`link` and `parent_hash`, which belong together also for a thread that only looks."""

    @property
    def link(self) -> CausalLink:
        """The link of the last event."""
        return self.end[0]

    @property
    def parent_hash(self) -> int:
        """What the next link names as its parent."""
        return self.end[1]

    def next_link(self, horizon: int) -> CausalLink:
        """Return the link that the next event will have; it covers every event so far, payloads included."""
        if self.link.sequence >= MAX_SEQUENCE:
            raise LocalProtocolError(f"the chain of {self.link.origin_hash:016x} has no further sequence numbers")
        return CausalLink(self.link.origin_hash, horizon, self.link.sequence + 1, self.parent_hash)

    def emit(self, payload: bytes, horizon: int) -> CausalEvent:
        """Return the next event of the chain, and make it the head."""
        link = self.next_link(horizon)
        self.end = link, hash_event(link, payload)
        return CausalEvent(link, payload)


def check_link(before: CausalEvent, link: CausalLink) -> ChainFault | None:
    """Return why a link does not follow an event, or None if it does."""
    return _check(before.link, hash_event(*before), link)


def _check(before: CausalLink, before_hash: int, link: CausalLink) -> ChainFault | None:
    if link.origin_hash != before.origin_hash:
        return ChainFault.ORIGIN_MISMATCH
    if link.sequence != before.sequence + 1:
        return ChainFault.SEQUENCE_GAP
    return None if link.parent_hash == before_hash else ChainFault.PARENT_HASH_MISMATCH


def check_chain(events: Sequence[CausalEvent]) -> ChainFault | None:
    """Return the first fault between neighbors of a sequence of events."""
    faults = (check_link(before, event.link) for before, event in pairwise(events))
    return next((fault for fault in faults if fault is not None), None)


class EntityLog:
    """The events of one origin, each checked against the one before it."""

    def __init__(self, origin_hash: int, *, anchor: CausalEvent | None = None, anchor_hash: int | None = None) -> None:
        """Start an empty log after `anchor`; `anchor_hash` is its hash, if its payload is not known."""
        self.anchor = CausalEvent(CausalLink(origin_hash), b"") if anchor is None else anchor
        """The event before the first one that is kept: genesis, or the last one that was pruned."""
        self.anchor_hash = hash_event(*self.anchor) if anchor_hash is None else anchor_hash
        self.events: list[CausalEvent] = []

    @property
    def origin_hash(self) -> int:
        """Whose events these are."""
        return self.anchor.link.origin_hash

    @property
    def head(self) -> CausalEvent:
        """The last event, or what the first one must follow."""
        return self.events[-1] if self.events else self.anchor

    @property
    def head_hash(self) -> int:
        """The parent hash of the next event."""
        return hash_event(*self.events[-1]) if self.events else self.anchor_hash

    def hash_at(self, sequence: int) -> int | None:
        """Return the hash of the event of a number, the anchor included, or None if it is not known."""
        if sequence == self.anchor.link.sequence:
            return self.anchor_hash
        event = self.get(sequence)
        return None if event is None else hash_event(*event)

    def append(self, event: CausalEvent) -> ChainFault | None:
        """Take the next event, or return why it is not the next one."""
        link, head = event.link, self.head.link
        if link.origin_hash != self.origin_hash:
            return ChainFault.ORIGIN_MISMATCH
        if not self.events and link == self.anchor.link and link.sequence == 0:
            # state.md §3: a genesis event is taken by an empty log, and is the anchor already.
            return ChainFault.GENESIS_PAYLOAD if event.payload else None
        if self.events and link.sequence <= head.sequence:
            return ChainFault.DUPLICATE
        fault = _check(head, self.head_hash, link)
        if fault is None:
            self.events.append(event)
        return fault

    def get(self, sequence: int) -> CausalEvent | None:
        """Return the event of a number, or None if it is not kept."""
        index = sequence - self.anchor.link.sequence - 1
        return self.events[index] if 0 <= index < len(self.events) else None

    def range(self, first: int, last: int) -> list[CausalEvent]:
        """Return the events from `first` to `last`, both included."""
        start = self.anchor.link.sequence + 1
        return self.events[max(first - start, 0) : max(last - start + 1, 0)]

    def after(self, sequence: int) -> list[CausalEvent]:
        """Return the events after a number."""
        return self.range(sequence + 1, self.head.link.sequence)

    def prune_through(self, sequence: int) -> None:
        """Remove the events up to a number; the last of them becomes the anchor."""
        pruned = self.range(0, sequence)
        if pruned:
            self.anchor, self.anchor_hash = pruned[-1], hash_event(*pruned[-1])
            del self.events[: len(pruned)]

    def replace_after(self, sequence: int, events: Sequence[CausalEvent]) -> None:
        """Put other events in the place of those after a number that is kept; they must follow it."""
        del self.events[max(sequence - self.anchor.link.sequence, 0) :]
        self.extend(events)

    def extend(self, events: Sequence[CausalEvent]) -> None:
        """Take several events.

        Raises MalformedPacket at the first one that is not the next; those before it are kept.
        """
        for event in events:
            if (fault := self.append(event)) is not None:
                raise MalformedPacket("causal event", Fault.BAD_VALUE, f"{event.link.sequence}: {fault}")
