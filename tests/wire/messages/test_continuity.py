from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import MalformedPacket
from meshbus.wire.messages.continuity import (
    FORK_BYTES,
    ContinuityMessage,
    ContinuityProof,
    ForkRecord,
    Judged,
    Prove,
    Verdict,
    decode_continuity,
    decode_fork,
    decode_proof,
    encode_continuity,
    encode_fork,
    encode_proof,
    fork_sentinel,
)
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u64

PROOF: dict[str, Any] = load("subprotocols")["continuity_proof"]
FORK: dict[str, Any] = load("subprotocols")["fork_record"]

forks = st.builds(
    ForkRecord, original_origin=u64, forked_origin=u64, fork_seq=u64, snapshot_seq=st.none() | u64, horizon=u64
).filter(lambda record: record.original_origin != record.forked_origin)


def test_a_proof_has_the_golden_bytes() -> None:
    raw, proof = bytes.fromhex(PROOF["hex"]), ContinuityProof(**PROOF["fields"])
    assert decode_proof(raw) == proof
    assert encode_proof(proof) == raw


@pytest.mark.parametrize("vector", PROOF["rejects"], ids=lambda vector: vector["why"])
def test_a_proof_has_exactly_forty_bytes(vector: dict[str, str]) -> None:
    with pytest.raises(MalformedPacket):
        decode_proof(bytes.fromhex(vector["hex"]))


def test_sentinels_are_those_of_the_reference() -> None:
    for vector in FORK["sentinels"]:
        assert fork_sentinel(vector["original_origin"], vector["fork_seq"]) == vector["sentinel"]
    vector = load("mesh")["groups"]["fork_sentinel"]
    assert fork_sentinel(int(vector["original_origin"], 16), vector["fork_seq"]) == int(vector["sentinel_hex"], 16)


@pytest.mark.parametrize("vector", FORK["records"], ids=lambda vector: vector["case"])
def test_the_reference_agrees_about_fork_records(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    if vector["valid"]:
        assert len(raw) == FORK["size"] == FORK_BYTES
        assert encode_fork(decode_fork(raw)) == raw
    else:
        with pytest.raises(MalformedPacket):
            decode_fork(raw)


@given(st.builds(ContinuityProof, u64, u64, u64, u64, u64))
def test_proofs_round_trip(proof: ContinuityProof) -> None:
    assert decode_proof(encode_proof(proof)) == proof


@given(forks)
def test_fork_records_round_trip(record: ForkRecord) -> None:
    assert decode_fork(encode_fork(record)) == record


QUESTIONS: list[tuple[ContinuityMessage, str]] = [
    (Prove(1, 2, 3), "01" + "01" + "00" * 7 + "02" + "00" * 7 + "03" + "00" * 7),
    (Judged(1, 2, 3, Verdict.HASH_MISMATCH), "02" + "01" + "00" * 7 + "02" + "00" * 7 + "03" + "00" * 7 + "05"),
]


@pytest.mark.parametrize(("message", "event"), QUESTIONS)
def test_questions_and_verdicts_have_fixed_bytes(message: ContinuityMessage, event: str) -> None:
    assert encode_continuity(message).hex() == event
    assert decode_continuity(bytes.fromhex(event)) == message


@pytest.mark.parametrize("event", ["", "00", "03", "01" + "00" * 23, "01" + "00" * 25, "02" + "00" * 24 + "07"])
def test_other_questions_are_refused(event: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_continuity(bytes.fromhex(event))


@given(st.builds(Prove, u64, u64, u64) | st.builds(Judged, u64, u64, u64, st.sampled_from(Verdict)))
def test_questions_and_verdicts_round_trip(message: ContinuityMessage) -> None:
    assert decode_continuity(encode_continuity(message)) == message


def test_damaged_records_never_escape_as_another_error() -> None:
    assert_survives(decode_proof, [bytes.fromhex(PROOF["hex"])], randoms=2_000)
    valid = [bytes.fromhex(vector["hex"]) for vector in FORK["records"] if vector["valid"]]
    assert_survives(decode_fork, valid, randoms=2_000)
    assert_survives(decode_continuity, [bytes.fromhex(event) for _, event in QUESTIONS], randoms=2_000)
