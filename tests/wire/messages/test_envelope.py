from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import AuthError, BadTag, LocalProtocolError, MalformedPacket, RemoteProtocolError
from meshbus.names.identity import Identity
from meshbus.wire.messages.causal import CausalLink, unpack_link
from meshbus.wire.messages.envelope import (
    ENVELOPE_BYTES,
    IdentityEnvelope,
    decode_envelope,
    encode_envelope,
    open_identity,
    seal_identity,
)
from meshbus.wire.noise import derive_public_key
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import keys

VECTORS: dict[str, Any] = load("mesh")["identity_envelope"]
GOLDEN = {name: bytes.fromhex(value) for name, value in VECTORS["computed"].items() if name != "source"}
DAEMON = Identity.from_seed(GOLDEN["daemon_seed"])
LINK = unpack_link(GOLDEN["chain_link"])
TARGET = derive_public_key(GOLDEN["target_static_priv"])


def sealed() -> IdentityEnvelope:
    return seal_identity(DAEMON, LINK, TARGET, lambda size: GOLDEN["ephemeral_priv"][:size])


def test_an_envelope_has_the_golden_bytes_and_opens() -> None:
    assert encode_envelope(sealed()) == GOLDEN["hex"]
    opened = open_identity(decode_envelope(GOLDEN["hex"]), DAEMON.entity_id, LINK, GOLDEN["target_static_priv"])
    assert opened.seed == DAEMON.seed


def test_the_envelope_of_a_real_node_is_signed_by_its_daemon_and_for_another_node() -> None:
    observed = VECTORS["observed"]
    raw = bytes.fromhex(observed["hex"])
    envelope = decode_envelope(raw)
    assert encode_envelope(envelope) == raw
    assert envelope.signer == DAEMON.entity_id
    # The signature is checked before the target: the error shows that it is right.
    with pytest.raises(MalformedPacket, match="another node"):
        open_identity(envelope, DAEMON.entity_id, unpack_link(bytes.fromhex(observed["chain_link"])), bytes(31) + b"\1")


@given(
    st.builds(
        IdentityEnvelope, keys, keys, st.binary(min_size=48, max_size=48), keys, st.binary(min_size=64, max_size=64)
    )
)
def test_envelopes_round_trip(envelope: IdentityEnvelope) -> None:
    raw = encode_envelope(envelope)
    assert len(raw) == ENVELOPE_BYTES
    assert decode_envelope(raw) == envelope


def test_every_flipped_byte_is_refused() -> None:
    for index in range(ENVELOPE_BYTES):
        raw = bytearray(GOLDEN["hex"])
        raw[index] ^= 0x40
        with pytest.raises(RemoteProtocolError):
            open_identity(decode_envelope(raw), DAEMON.entity_id, LINK, GOLDEN["target_static_priv"])


def test_an_envelope_is_for_one_daemon_one_link_and_one_node() -> None:
    envelope, other = sealed(), Identity.from_seed(bytes(32))
    with pytest.raises(MalformedPacket, match="another entity"):
        open_identity(envelope, other.entity_id, LINK, GOLDEN["target_static_priv"])
    with pytest.raises(BadTag):
        open_identity(envelope, DAEMON.entity_id, CausalLink(DAEMON.origin_hash), GOLDEN["target_static_priv"])
    with pytest.raises(MalformedPacket, match="another node"):
        open_identity(envelope, DAEMON.entity_id, LINK, bytes(31) + b"\1")


def test_a_seed_of_another_entity_is_refused() -> None:
    other = Identity.from_seed(bytes(32))
    foreign = seal_identity(other, LINK, TARGET, lambda size: bytes(size - 1) + b"\7")
    signed = msgspec.structs.replace(foreign, signer=DAEMON.entity_id, signature=sealed().signature)
    with pytest.raises(BadTag, match="seed"):
        open_identity(signed, DAEMON.entity_id, LINK, GOLDEN["target_static_priv"])


def test_only_a_secret_can_be_sealed_and_only_to_a_real_key() -> None:
    with pytest.raises(AuthError):
        seal_identity(Identity.from_public(DAEMON.entity_id), LINK, TARGET, bytes)
    with pytest.raises(LocalProtocolError, match="Noise public key"):
        seal_identity(DAEMON, LINK, bytes(32), lambda size: bytes([1]) * size)


def test_damaged_envelopes_never_escape_as_another_error() -> None:
    assert_survives(decode_envelope, [GOLDEN["hex"]], randoms=2_000)
