from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.compute.causal import ChainHead, EntityLog
from meshbus.compute.continuity import (
    MAX_SPAN,
    Continuous,
    Forked,
    ProofFault,
    Unverifiable,
    assess,
    check_proof,
    fork_of,
    prove,
)
from meshbus.errors import LocalProtocolError
from meshbus.wire.messages.causal import CausalEvent, CausalLink, hash_event
from meshbus.wire.messages.continuity import ContinuityProof
from tests.compute.test_causal import ORIGIN, chain, log_of
from tests.seeds import for_each_seed
from tests.vectors import load

GENESIS = CausalEvent(CausalLink(ORIGIN), b"")


def test_the_proof_of_the_recorded_chain_is_that_of_the_reference() -> None:
    vector, recorded = load("subprotocols")["continuity_proof"], load("subprotocols")["causal"]["chain"]
    log = EntityLog(recorded["origin_hash"])
    log.extend(chain(*map(bytes.fromhex, recorded["payloads"]), origin=recorded["origin_hash"]))
    assert prove(log) == ContinuityProof(**vector["fields"])
    assert check_proof(prove(log), log) is None
    assert vector["max_span"] == MAX_SPAN


def test_proofs_hold_on_another_node_that_has_the_same_or_more() -> None:
    proof = prove(log_of(b"a", b"b"))
    assert check_proof(proof, log_of(b"a", b"b")) is None
    assert check_proof(proof, log_of(b"a", b"b", b"c")) is None
    assert check_proof(proof, log_of(b"a")) == ProofFault.MISSING_EVENT
    assert check_proof(proof, log_of(b"a", b"x")) == ProofFault.HASH_MISMATCH
    assert check_proof(proof, EntityLog(1)) == ProofFault.ORIGIN_MISMATCH


@pytest.mark.parametrize(
    ("first", "last", "fault"),
    [(2, 1, ProofFault.INVALID_RANGE), (1, MAX_SPAN + 1, ProofFault.SPAN_TOO_LARGE)],
)
def test_ranges_are_checked_before_anything_is_hashed(first: int, last: int, fault: ProofFault) -> None:
    assert check_proof(ContinuityProof(ORIGIN, first, last, 0, 0), log_of(b"a")) == fault


def test_an_empty_log_proves_nothing() -> None:
    with pytest.raises(LocalProtocolError, match="no events"):
        prove(EntityLog(ORIGIN))


@for_each_seed(range(30))
def test_a_tampered_truncated_or_forked_history_is_always_found(seed: int) -> None:
    rng = random.Random(seed)
    events = chain(*(rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(3, 30))))
    whole = assess(events, GENESIS)
    assert whole == Continuous(hash_event(*events[0]), len(events), hash_event(*events[-1]))
    log = EntityLog(ORIGIN)
    log.extend(events)
    proof = prove(log)
    place = rng.randrange(len(events))
    link, payload = events[place]
    changes = {
        "payload": [*events[:place], CausalEvent(link, payload + b"!"), *events[place + 1 :]],
        "removed": [*events[:place], *events[place + 1 :]],
        "horizon": [
            *events[:place],
            CausalEvent(CausalLink(ORIGIN, 5, link.sequence, link.parent_hash), payload),
            *events[place + 1 :],
        ],
        "cut": events[:place],
        "doubled": [*events[: place + 1], *events[place:]],
    }
    for what, changed in changes.items():
        found = assess(changed, GENESIS)
        copy = EntityLog(ORIGIN)
        copy.events = changed
        # A change of the last event, and a shorter history, look whole by themselves; the proof of another node tells.
        assert found != whole, what
        assert not isinstance(found, Continuous) or check_proof(proof, copy) is not None, what


def test_a_history_is_judged_as_the_specification_says() -> None:
    events = chain(b"a", b"b", b"c")
    assert assess([], GENESIS) == Continuous(0, 0, 0)
    assert assess([], CausalEvent(GENESIS.link, b"x")) == Unverifiable(0, 0)
    assert assess(events[1:], GENESIS) == Unverifiable(0, 0)
    assert assess(events[1:], events[0]) == Continuous(hash_event(*events[1]), 3, hash_event(*events[2]))
    assert assess([events[0], events[2]], GENESIS) == Unverifiable(1, 2)
    forked = assess([CausalEvent(events[0].link, b"x"), *events[1:]], GENESIS)
    assert isinstance(forked, Forked)
    assert (forked.sequence, forked.found) == (2, events[1].link.parent_hash)


def test_a_fork_has_an_origin_of_its_own() -> None:
    log = log_of(b"a", b"b")
    record = fork_of(log, 2, 7)
    assert (record.original_origin, record.forked_origin, record.fork_seq) == (ORIGIN, 7, 2)
    with pytest.raises(LocalProtocolError, match="origin of its own"):
        fork_of(log, 2, ORIGIN)


def test_a_part_of_a_log_can_be_proven() -> None:
    log = log_of(b"a", b"b", b"c")
    proof = prove(log, 2, 9)
    assert (proof.from_seq, proof.to_seq) == (2, 3)
    assert check_proof(proof, log_of(b"a", b"b", b"c", b"d")) is None
    with pytest.raises(LocalProtocolError, match="no events"):
        prove(log, 5, 9)


@st.composite
def changed_histories(draw: st.DrawFn) -> tuple[list[CausalEvent], list[CausalEvent]]:
    """Draw a history, and the same with one change."""
    payloads = draw(st.lists(st.binary(max_size=4), min_size=1, max_size=8))
    events = chain(*payloads)
    at = draw(st.integers(0, len(events) - 1))
    link, payload = events[at]
    before, after = events[:at], events[at + 1 :]
    kinds = [
        "payload",
        "origin",
        "horizon",
        "sequence",
        "parent",
        "cut",
        "missing",
        "doubled",
        "swapped",
        "forked",
        "added",
    ]
    match draw(st.sampled_from(kinds)):
        case "payload":
            other = draw(st.binary(max_size=4).filter(lambda other: other != payload))
            return events, [*before, CausalEvent(link, other), *after]
        case "cut":
            return events, before
        case "missing":
            return events, [*before, *after]
        case "doubled":
            return events, [*before, events[at], events[at], *after]
        case "swapped" if after:
            return events, [*before, after[0], events[at], *after[1:]]
        case "forked" | "swapped":
            head = ChainHead(before[-1].link, hash_event(*before[-1])) if before else ChainHead(CausalLink(ORIGIN))
            others = [payload + b"!", *(event.payload for event in after)]
            return events, [*before, *(head.emit(other, 0) for other in others)]
        case "added":
            return events, [*events, CausalEvent(draw(links), draw(st.binary(max_size=4)))]
        case field:
            place = ["origin", "horizon", "sequence", "parent"].index(field)
            fields = [link.origin_hash, link.horizon, link.sequence, link.parent_hash]
            fields[place] ^= 1 << draw(st.integers(0, 63))
            return events, [*before, CausalEvent(CausalLink(*fields), payload), *after]


numbers = st.integers(0, (1 << 64) - 1)
links = st.builds(CausalLink, st.just(ORIGIN) | numbers, numbers, st.integers(0, 12) | numbers, numbers)


@given(changed_histories())
def test_any_single_change_is_found(histories: tuple[list[CausalEvent], list[CausalEvent]]) -> None:
    events, changed = histories
    true, copy = EntityLog(ORIGIN), EntityLog(ORIGIN)
    true.extend(events)
    copy.events = changed
    # A change that leaves a whole chain, such as a shorter one or another end, differs from the proof of another node.
    proof = prove(true)
    assert assess(changed, GENESIS) != assess(events, GENESIS)
    found = not isinstance(assess(changed, GENESIS), Continuous) or check_proof(proof, copy) is not None
    assert found or check_proof(prove(copy), true) is not None
