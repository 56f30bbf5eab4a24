from __future__ import annotations

import random
from typing import Any

import pytest

from meshbus.compute.causal import ChainFault, ChainHead
from meshbus.compute.reconcile import Catchup, Conflict, Converged, Side, reconcile
from meshbus.wire.messages.causal import CausalEvent, CausalLink
from meshbus.wire.messages.continuity import fork_sentinel
from tests.seeds import for_each_seed
from tests.vectors import load

VECTORS: dict[str, Any] = load("subprotocols")["reconcile"]
ORIGIN: int = VECTORS["origin_hash"]


def after(shared: list[bytes], own: list[bytes]) -> list[CausalEvent]:
    """Return what one side wrote after a shared history."""
    head = ChainHead(CausalLink(ORIGIN))
    return [head.emit(payload, 0) for payload in [*shared, *own]][len(shared) :]


def payloads(vector: dict[str, Any], name: str) -> list[bytes]:
    return [bytes.fromhex(payload) for payload in vector[name]]


@pytest.mark.parametrize("vector", VECTORS["cases"], ids=lambda vector: vector["case"])
def test_the_outcome_is_that_of_the_reference(vector: dict[str, Any]) -> None:
    shared = payloads(vector, "shared_prefix_payloads")
    ours = after(shared, payloads(vector, "our_payloads"))
    theirs = after(shared, payloads(vector, "their_payloads"))
    outcome = reconcile(ours, theirs, ORIGIN, len(shared))
    match vector["outcome"]:
        case "converged":
            assert outcome == Converged()
        case "catchup":
            assert isinstance(outcome, Catchup)
            assert outcome.behind == vector["behind"].lower()
            assert [event.link.sequence for event in outcome.missing] == vector["missing_seqs"]
        case _:
            assert isinstance(outcome, Conflict)
            assert (outcome.sequence, outcome.winner) == (vector["diverge_seq"], vector["winner"].lower())
            assert fork_sentinel(ORIGIN, outcome.sequence) == vector["fork_sentinel"]
            losing = theirs if outcome.winner == Side.OURS else ours
            assert outcome.losing == tuple(losing[outcome.sequence - len(shared) - 1 :])
            record = outcome.fork(ORIGIN, 7)
            assert record.genesis.parent_hash == vector["fork_sentinel"]


@for_each_seed(range(200))
def test_both_sides_come_to_the_same_outcome_and_nothing_is_thrown_away(seed: int) -> None:
    rng = random.Random(seed)
    shared = [rng.randbytes(3) for _ in range(rng.randrange(3))]
    common = [rng.randbytes(rng.randrange(3)) for _ in range(rng.randrange(4))]
    first = after(shared, common + [rng.randbytes(rng.randrange(2)) for _ in range(rng.randrange(4))])
    second = after(shared, common + [rng.randbytes(rng.randrange(2)) for _ in range(rng.randrange(4))])
    here = reconcile(first, second, ORIGIN, len(shared))
    there = reconcile(second, first, ORIGIN, len(shared))
    match here, there:
        case Converged(), Converged():
            assert first == second
        case Catchup(), Catchup():
            assert here.behind != there.behind
            assert here.missing == there.missing
        case Conflict(), Conflict():
            assert here.winner != there.winner
            assert (here.sequence, here.losing) == (there.sequence, there.losing)
            loser = first if here.winner == Side.THEIRS else second
            assert tuple(loser[-len(here.losing) :]) == here.losing
        case _:
            raise AssertionError(f"{here} and {there}")


def test_what_is_no_history_after_the_split_is_refused() -> None:
    ours = after([b"a"], [b"b"])
    assert reconcile(ours, after([b"a"], [b"x", b"y"]), ORIGIN, 2) == ChainFault.SEQUENCE_GAP
    assert reconcile(ours, after([b"a"], [b"x"]), 5, 1) == ChainFault.ORIGIN_MISMATCH
    broken = after([b"a"], [b"x", b"y"])
    broken[0] = CausalEvent(broken[0].link, b"z")
    assert reconcile(ours, broken, ORIGIN, 1) == ChainFault.PARENT_HASH_MISMATCH
