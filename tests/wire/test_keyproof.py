"""A proof of a mesh key is worth something in one session, for one side of it."""

from meshbus.wire.keyproof import PROOF_BYTES, prove_key, proves_key

KEY, HASH, PROVER, VERIFIER = bytes(range(32)), bytes([7]) * 32, 0x0102030405060708, 0x1112131415161718


def test_golden_bytes() -> None:
    """docs/wire/profile.md has the rule."""
    proof = prove_key(KEY, HASH, PROVER, VERIFIER)
    assert len(proof) == PROOF_BYTES
    assert proof.hex() == "0ab83fdf5791dd872fe85d2e3162c4544d740785e487c7c516bcc240f02ed8fb"


def test_a_proof_counts_for_its_key_session_and_direction_only() -> None:
    proof = prove_key(KEY, HASH, PROVER, VERIFIER)
    assert proves_key(proof, KEY, HASH, PROVER, VERIFIER)
    others = [
        (proof, bytes(32), HASH, PROVER, VERIFIER),
        (proof, KEY, bytes(32), PROVER, VERIFIER),
        (proof, KEY, HASH, VERIFIER, PROVER),
        (proof, KEY, HASH, PROVER, VERIFIER + 1),
        (bytes(32), KEY, HASH, PROVER, VERIFIER),
        (b"", KEY, HASH, PROVER, VERIFIER),
    ]
    assert not any(proves_key(*other) for other in others)
