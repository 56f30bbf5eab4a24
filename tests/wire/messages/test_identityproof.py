from __future__ import annotations

from typing import Any

import pytest

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.identity import Identity, derive_node_id, verify_signature
from meshbus.wire.messages.identityproof import (
    Proof,
    ProofChallenge,
    ProofMessage,
    ProofRequest,
    ProofVerdict,
    decode_proof,
    encode_proof,
    signed_bytes,
)
from tests.fuzz import assert_survives
from tests.vectors import load

ROWS = [row for row in load("dialects")["messages"] if row["subprotocol"] == "0x0a01"]
PROOFS = [row for row in ROWS if row["fields"]["kind"] == 2]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['version']} {row['name']}")
def test_messages_of_a_real_exchange_read_and_write(row: dict[str, Any]) -> None:
    message, fields = decode_proof(bytes.fromhex(row["hex"])), row["fields"]
    assert encode_proof(message).hex() == row["hex"]
    assert message.request_id.hex() == fields["request_id"]
    match message:
        case ProofChallenge():
            assert (message.verifier.hex(), message.challenge.hex()) == (fields["verifier_entity"], fields["challenge"])
        case Proof():
            assert (message.prover.hex(), message.challenge.hex()) == (fields["prover_entity"], fields["challenge"])
            assert message.signature.hex() == fields["signature"]
        case ProofVerdict():
            assert (message.accepted, message.reason) == (bool(fields["accepted"]), fields["reason"])
        case ProofRequest():
            assert fields["kind"] == 0


@pytest.mark.parametrize("row", PROOFS, ids=lambda row: row["version"])
def test_the_signature_of_a_real_exchange_is_made_and_verified(row: dict[str, Any]) -> None:
    fields = row["fields"]
    challenge = next(
        decode_proof(bytes.fromhex(other["hex"]))
        for other in ROWS
        if other["version"] == row["version"] and other["fields"]["kind"] == 1
    )
    assert isinstance(challenge, ProofChallenge)
    prover = Identity.from_seed(bytes.fromhex(fields["prover_seed"]))
    assert derive_node_id(prover.entity_id) == fields["prover_node_id"]
    signed = signed_bytes(
        verifier=challenge.verifier,
        prover=prover.entity_id,
        node_id=fields["prover_node_id"],
        session_id=fields["session_id"],
        challenge=challenge.challenge,
    )
    assert signed.hex() == fields["signed"]
    assert prover.sign(signed).hex() == fields["signature"]
    assert verify_signature(prover.entity_id, signed, bytes.fromhex(fields["signature"]))


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ("", Fault.TRUNCATED),
        ("00" * 8, Fault.TRUNCATED),
        ("00" * 10, Fault.TRAILING),
        ("04" * 9, Fault.UNKNOWN_KIND),
        ("03" + "00" * 8 + "0200", Fault.BAD_VALUE),
    ],
)
def test_other_bytes_are_refused(event: str, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_proof(bytes.fromhex(event))
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    "message",
    [
        ProofRequest(request_id=b"short"),
        ProofChallenge(request_id=bytes(8), verifier=bytes(31), challenge=bytes(32)),
        ProofChallenge(request_id=bytes(8), verifier=bytes(32), challenge=bytes(33)),
        Proof(request_id=bytes(8), prover=bytes(32), challenge=bytes(32), signature=bytes(63)),
    ],
)
def test_fields_of_another_size_are_our_error(message: ProofMessage) -> None:
    with pytest.raises(LocalProtocolError, match="bytes"):
        encode_proof(message)


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_proof, [bytes.fromhex(row["hex"]) for row in ROWS[:4]], randoms=30_000)
