"""Identities: derived ids and signatures as observed, and as the reference binding computes them right now."""

import os
from typing import Any

import net
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbus.errors import AuthError, AuthFault, LocalProtocolError
from meshbus.names.identity import (
    KEY_BYTES,
    Identity,
    OwnIdentity,
    derive_node_id,
    derive_origin_hash,
    noise_public_key,
    routing_id,
    verify_signature,
)
from meshbus.wire.noise import derive_public_key
from tests.vectors import load

ROWS = load("policy")["identities"]["rows"]
TRANSPORT_ROWS = load("transport")["identity"]
TOKENS = {row["case"]: row for row in load("policy")["tokens"]["rows"]}

seeds = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["seed"][:8])
def test_ids_and_signatures_as_observed(row: dict[str, Any]) -> None:
    identity = Identity.from_seed(bytes.fromhex(row["seed"]))
    message, signature = row["sign_message_utf8"].encode(), bytes.fromhex(row["signature"])
    assert identity.entity_id.hex() == row["entity_id"]
    assert identity.node_id == derive_node_id(identity.entity_id) == int(row["node_id"], 16)
    assert identity.origin_hash == derive_origin_hash(identity.entity_id) == int(row["origin_hash"], 16)
    assert routing_id(identity.node_id) == int(row["routing_id_u32"], 16)
    assert identity.sign(message) == signature
    assert verify_signature(identity.entity_id, message, signature)


@pytest.mark.parametrize("row", TRANSPORT_ROWS, ids=lambda row: row["ed25519_seed"][:8])
def test_ids_of_the_transport_vectors(row: dict[str, Any]) -> None:
    identity = Identity.from_seed(bytes.fromhex(row["ed25519_seed"]))
    assert identity.entity_id.hex() == row["entity_id"]
    assert identity.node_id == int(row["node_id"], 16)
    assert identity.origin_hash == int(row["origin_hash"], 16)


@given(seeds, st.binary(max_size=64))
@settings(max_examples=50)
def test_the_reference_derives_and_signs_alike(seed: bytes, message: bytes) -> None:
    ours, theirs = Identity.from_seed(seed), net.Identity.from_seed(seed)
    assert ours.entity_id == theirs.entity_id
    assert ours.node_id == theirs.node_id
    assert ours.origin_hash == theirs.origin_hash
    assert ours.sign(message) == theirs.sign(message)
    assert ours.seed == theirs.to_bytes() == seed


@given(seeds, st.binary(max_size=64), st.integers(0), st.integers(0, 7))
@settings(max_examples=50)
def test_a_flipped_bit_spoils_a_signature(seed: bytes, message: bytes, place: int, bit: int) -> None:
    identity = Identity.from_seed(seed)
    signature = bytearray(identity.sign(message))
    signature[place % len(signature)] ^= 1 << bit
    assert not verify_signature(identity.entity_id, message, bytes(signature))
    assert not verify_signature(identity.entity_id, message + b"!", identity.sign(message))


def test_a_forgery_for_a_small_order_key_is_refused_where_openssl_accepts_it() -> None:
    token = bytes.fromhex(TOKENS["forged_small_order_issuer"]["hex"])
    key, message, signature = token[:32], token[:105], token[105:]
    Ed25519PublicKey.from_public_bytes(key).verify(signature, message)  # the reason for libsodium: this does not raise
    assert not verify_signature(key, message, signature)


def test_a_malleated_signature_is_refused() -> None:
    token = bytes.fromhex(TOKENS["malleated_S_plus_L"]["hex"])
    assert not verify_signature(token[:32], token[:105], token[105:])


@pytest.mark.parametrize(("key_size", "signature_size"), [(31, 64), (33, 64), (32, 63), (32, 65), (0, 0)])
def test_wrong_sizes_are_bad_signatures_not_crashes(key_size: int, signature_size: int) -> None:
    assert not verify_signature(bytes(key_size), b"message", bytes(signature_size))


def test_the_public_half_answers_but_does_not_sign() -> None:
    whole = Identity.from_seed(bytes(32))
    public = Identity.from_public(whole.entity_id)
    assert whole.can_sign
    assert not public.can_sign
    assert (public.node_id, public.origin_hash) == (whole.node_id, whole.origin_hash)
    assert public == whole
    assert hash(public) == hash(whole)
    with pytest.raises(AuthError) as caught:
        public.sign(b"x")
    assert caught.value.fault is AuthFault.READ_ONLY
    with pytest.raises(AuthError) as caught:
        public.seed  # noqa: B018
    assert caught.value.fault is AuthFault.READ_ONLY


def test_a_secret_does_not_show_in_the_repr() -> None:
    seed = bytes(range(32))
    assert seed.hex() not in repr(Identity.from_seed(seed))
    assert "without secret" in repr(Identity.from_public(bytes(32)))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_have_32_bytes(size: int) -> None:
    with pytest.raises(LocalProtocolError, match="32 bytes"):
        Identity.from_seed(bytes(size))
    with pytest.raises(LocalProtocolError, match="32 bytes"):
        Identity.from_public(bytes(size))


def test_an_identity_differs_from_another_and_from_anything_else() -> None:
    assert Identity.from_seed(bytes(32)) != Identity.from_seed(bytes([1]) * 32)
    assert Identity.from_seed(bytes(32)) != "identity"


def test_generating_draws_again_for_ids_that_peers_cannot_hear() -> None:
    unlucky, lucky = (1791).to_bytes(32, "little"), bytes(32)
    assert Identity.from_seed(unlucky).node_id & 0xFFFF == 0x4E45
    drawn = iter([unlucky, lucky])
    assert Identity.generate(lambda _size: next(drawn)).seed == lucky


def test_generating_uses_the_entropy_it_is_given() -> None:
    assert Identity.generate(bytes) == Identity.from_seed(bytes(32))
    assert Identity.generate(os.urandom) != Identity.generate(os.urandom)


def test_one_public_key_gives_the_noise_key_too() -> None:
    identity = Identity.from_seed(bytes(range(32)))
    assert derive_public_key(identity.noise_private_key) == noise_public_key(identity.entity_id)
    with pytest.raises(AuthError):
        _ = Identity.from_public(identity.entity_id).noise_private_key


@pytest.mark.parametrize("key", [bytes(32), b"short", b"\xff" * 32])
def test_what_is_no_public_key_is_refused(key: bytes) -> None:
    with pytest.raises(LocalProtocolError, match=r"is not the public key of a meshbus node; .* or pass node_id too"):
        noise_public_key(key)


def test_the_identity_of_a_running_node_changes_for_all_who_hold_it() -> None:
    first, second = Identity.from_seed(bytes(32)), Identity.from_seed(bytes(range(32)))
    own = OwnIdentity(first)
    assert own == first
    assert own.can_sign
    own.become(second)
    assert (own, own.node_id, own.origin_hash) == (second, second.node_id, second.origin_hash)
    assert own.sign(b"x") == second.sign(b"x")
    assert own.noise_private_key == second.noise_private_key
