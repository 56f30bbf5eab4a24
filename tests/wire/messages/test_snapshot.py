from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import MalformedPacket
from meshbus.names.identity import derive_origin_hash
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.envelope import IdentityEnvelope
from meshbus.wire.messages.snapshot import (
    MIN_BYTES,
    StateSnapshot,
    check_snapshot_start,
    decode_snapshot,
    encode_snapshot,
)
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import keys, u64

RECORDS: dict[str, Any] = load("subprotocols")["snapshot"]
OBSERVED: dict[str, Any] = load("mesh")["state_snapshot"]

envelopes = st.builds(
    IdentityEnvelope, keys, keys, st.binary(min_size=48, max_size=48), keys, st.binary(min_size=64, max_size=64)
)


@st.composite
def snapshots(draw: st.DrawFn) -> StateSnapshot:
    entity_id = draw(keys)
    return StateSnapshot(
        entity_id=entity_id,
        head=CausalLink(derive_origin_hash(entity_id), draw(u64), draw(u64), draw(u64)),
        created_ns=draw(u64),
        state=draw(st.binary(max_size=100)),
        bindings=draw(st.binary(max_size=30)),
        envelope=draw(st.none() | envelopes),
    )


@pytest.mark.parametrize("vector", RECORDS["records"], ids=lambda vector: vector["case"])
def test_the_reference_agrees_about_what_is_a_snapshot(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    if not vector["valid"]:
        with pytest.raises(MalformedPacket):
            decode_snapshot(raw)
        return
    snapshot = decode_snapshot(raw)
    assert encode_snapshot(snapshot) == raw
    assert snapshot.entity_id.hex() == RECORDS["entity_id"]
    assert snapshot.origin_hash == RECORDS["origin_hash"]
    assert snapshot.through_seq == 5


@pytest.mark.parametrize("name", [name for name in OBSERVED if name != "layout"])
def test_snapshots_of_real_nodes_round_trip(name: str) -> None:
    raw = bytes.fromhex(OBSERVED[name]["hex"])
    snapshot = decode_snapshot(raw)
    assert encode_snapshot(snapshot) == raw
    assert (snapshot.envelope is not None) == name.endswith("with_envelope")
    assert snapshot.state == (5).to_bytes(8, "little")
    check_snapshot_start(raw[:100], snapshot.origin_hash)


@given(snapshots())
def test_snapshots_round_trip(snapshot: StateSnapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_the_smallest_snapshot_has_the_documented_size() -> None:
    assert RECORDS["fixed_overhead"] == MIN_BYTES
    entity_id = bytes(32)
    head = CausalLink(derive_origin_hash(entity_id))
    assert len(encode_snapshot(StateSnapshot(entity_id=entity_id, head=head, created_ns=0, state=b""))) == MIN_BYTES


def test_the_start_of_a_snapshot_names_its_daemon() -> None:
    raw = bytes.fromhex(OBSERVED["computed_minimal"]["hex"])
    with pytest.raises(MalformedPacket, match="of daemon"):
        check_snapshot_start(raw, 1)
    with pytest.raises(MalformedPacket):
        check_snapshot_start(raw[:80], decode_snapshot(raw).origin_hash)


def test_damaged_snapshots_never_escape_as_another_error() -> None:
    samples = [bytes.fromhex(OBSERVED[name]["hex"]) for name in ("computed_minimal", "computed_with_envelope")]
    assert_survives(decode_snapshot, samples, randoms=5_000)
