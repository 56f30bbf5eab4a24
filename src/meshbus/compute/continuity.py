"""Continuity: whether a log is the whole and unchanged history of its origin, and the same as that of another node.

A proof names two events of a chain by their hashes; whoever has the events computes the same hashes or finds where the
histories part (state.md §5). compute/reconcile.py decides what to do when two histories of one origin differ.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from meshbus.compute.causal import EntityLog
from meshbus.errors import LocalProtocolError
from meshbus.wire.messages.causal import MAX_SEQUENCE, CausalEvent, hash_event
from meshbus.wire.messages.continuity import ContinuityProof, ForkRecord

MAX_SPAN = 100_000
"""Events in the range of one proof: each is hashed when a peer asks (state.md §5)."""


class ProofFault(StrEnum):
    """Why a proof does not hold, in the order of the checks."""

    ORIGIN_MISMATCH = "origin_mismatch"
    INVALID_RANGE = "invalid_range"
    SPAN_TOO_LARGE = "span_too_large"
    MISSING_EVENT = "missing_event"
    HASH_MISMATCH = "hash_mismatch"


class Continuous(NamedTuple):
    """The history is complete and unchanged."""

    first_hash: int
    head_seq: int
    head_hash: int


class Forked(NamedTuple):
    """An event names another parent than the one before it."""

    sequence: int
    expected: int
    found: int


class Unverifiable(NamedTuple):
    """Events are missing, so nothing is known about what lies between."""

    last: int
    next: int


def prove(log: EntityLog, first_seq: int = 0, last_seq: int = MAX_SEQUENCE) -> ContinuityProof:
    """Return the proof over a log, or over what it has of a range; raise LocalProtocolError if that is nothing."""
    events = log.range(first_seq, last_seq)
    if not events:
        raise LocalProtocolError(f"the log of {log.origin_hash:016x} has no events to prove")
    first, last = events[0], events[-1]
    ends = first.link.sequence, last.link.sequence
    return ContinuityProof(log.origin_hash, *ends, hash_event(*first), hash_event(*last))


def check_proof(proof: ContinuityProof, log: EntityLog) -> ProofFault | None:
    """Return why a peer's proof does not hold for one's own log, or None if it does."""
    if proof.origin_hash != log.origin_hash:
        return ProofFault.ORIGIN_MISMATCH
    if proof.from_seq > proof.to_seq:
        return ProofFault.INVALID_RANGE
    if proof.to_seq - proof.from_seq >= MAX_SPAN:
        return ProofFault.SPAN_TOO_LARGE
    events = log.range(proof.from_seq, proof.to_seq)
    if len(events) != proof.to_seq - proof.from_seq + 1:
        return ProofFault.MISSING_EVENT
    # Every event, and not only the ends: a change between them shows in the next parent hash.
    hashes = [hash_event(*event) for event in events]
    linked = all(event.link.parent_hash == parent for event, parent in zip(events[1:], hashes, strict=False))
    ends = hashes[0] == proof.from_hash and hashes[-1] == proof.to_hash
    return None if linked and ends else ProofFault.HASH_MISMATCH


def assess(events: list[CausalEvent], anchor: CausalEvent) -> Continuous | Forked | Unverifiable:
    """Judge a history, which must follow `anchor`: the genesis event of its origin, or the last one of a snapshot."""
    if anchor.link.sequence == 0 and anchor.payload:
        return Unverifiable(0, 0)
    if not events:
        return Continuous(0, anchor.link.sequence, 0)
    before = anchor
    for event in events:
        if event.link.sequence != before.link.sequence + 1:
            # Without the event before the first one nothing is known at all (state.md §5).
            return (
                Unverifiable(0, 0) if before is anchor else Unverifiable(before.link.sequence, before.link.sequence + 1)
            )
        expected = hash_event(*before)
        if event.link.parent_hash != expected:
            return Forked(event.link.sequence, expected, event.link.parent_hash)
        before = event
    return Continuous(hash_event(*events[0]), before.link.sequence, hash_event(*before))


def fork_of(log: EntityLog, fork_seq: int, forked_origin: int) -> ForkRecord:
    """Return the record of a chain that continues from `fork_seq` under an origin of its own."""
    if forked_origin == log.origin_hash:
        raise LocalProtocolError("a fork needs an origin of its own")
    return ForkRecord(original_origin=log.origin_hash, forked_origin=forked_origin, fork_seq=fork_seq)
