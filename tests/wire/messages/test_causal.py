from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, MalformedPacket
from meshbus.names.identity import Identity
from meshbus.wire.messages.causal import (
    LINK_BYTES,
    CausalEvent,
    CausalLink,
    decode_causal,
    decode_causal_event,
    encode_causal,
    encode_horizon,
    hash_event,
    might_contain,
    origin_bits,
    pack_link,
    potentially_concurrent,
    unpack_link,
)
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u64

VECTORS: dict[str, Any] = load("subprotocols")["causal"]
CHAIN: dict[str, Any] = VECTORS["chain"]

links = st.builds(CausalLink, u64, u64, u64, u64)
events = st.lists(st.builds(CausalEvent, links, st.binary(max_size=40)), max_size=8)


def test_links_are_those_of_the_reference() -> None:
    assert VECTORS["link_size"] == LINK_BYTES
    for vector in VECTORS["links"]:
        link = CausalLink(vector["origin_hash"], vector["horizon_encoded"], vector["sequence"], vector["parent_hash"])
        assert pack_link(link).hex() == vector["hex"]
        assert unpack_link(bytes.fromhex(vector["hex"])) == link
        assert hash_event(link, bytes.fromhex(vector["payload"])) == vector["next_parent_hash"]


def test_frames_are_those_of_the_reference() -> None:
    frame = bytes.fromhex(CHAIN["frame"])
    found = decode_causal(frame, CHAIN["event_count"])
    assert [pack_link(event.link).hex() for event in found] == CHAIN["links"]
    assert [event.payload.hex() for event in found] == CHAIN["payloads"]
    assert encode_causal(found) == frame


@pytest.mark.parametrize("vector", VECTORS["malformed"])
def test_a_damaged_frame_keeps_what_is_before_the_damage(vector: dict[str, Any]) -> None:
    found = decode_causal(bytes.fromhex(vector["hex"]), vector["count"])
    assert len(found) == vector["events_decoded"]
    assert encode_causal(found) == bytes.fromhex(vector["hex"])[: len(encode_causal(found))]


def test_the_chain_of_a_real_daemon_is_reproduced() -> None:
    chain = load("mesh")["causal_chain"]
    identity = load("mesh")["daemon_identity"]
    daemon = Identity.from_seed(bytes.fromhex(identity["seed"]))
    assert (daemon.entity_id.hex(), daemon.origin_hash) == (identity["entity_id"], identity["origin_hash"])
    horizon = encode_horizon([0x77])
    assert horizon == int(chain["horizon_of_0x77_hex"], 16)
    parent = CausalEvent(CausalLink(daemon.origin_hash), b"")
    assert pack_link(parent.link).hex() == chain["links"][0]["link"]
    for row in chain["links"][1:]:
        link = CausalLink(daemon.origin_hash, horizon, row["seq"], hash_event(*parent))
        assert pack_link(link).hex() == row["link"]
        parent = CausalEvent(link, bytes.fromhex(row["payload"]))


def test_horizons_are_those_of_the_reference() -> None:
    section = load("subprotocols")["horizon"]
    for case in section["cases"]:
        assert encode_horizon(case["origins"]) == case["encoded"]
        assert all(might_contain(case["encoded"], origin) for origin in case["origins"])
    for case in section["per_origin"]:
        assert origin_bits(case["origin"]) == case["bits"]
    for vector in load("mesh")["horizon_bloom"]:
        assert encode_horizon(int(origin, 16) for origin in vector["origins"]) == int(vector["hex"], 16)


def test_two_events_are_concurrent_if_neither_saw_the_other() -> None:
    first, second = CausalLink(0xAAAA), CausalLink(0xBBBB)
    assert potentially_concurrent(first, second)
    assert not potentially_concurrent(first, CausalLink(0xBBBB, encode_horizon([0xAAAA])))
    assert not potentially_concurrent(CausalLink(0xAAAA, encode_horizon([0xBBBB])), second)


@given(events)
def test_events_round_trip(batch: list[CausalEvent]) -> None:
    raw = encode_causal(batch)
    assert decode_causal(raw, len(batch)) == batch
    assert decode_causal(raw, len(batch) + 5) == batch
    if len(batch) == 1:
        assert decode_causal_event(raw) == batch[0]


def test_a_body_of_one_event_is_read_whole_or_not_at_all() -> None:
    raw = encode_causal([CausalEvent(CausalLink(1, 2, 3, 4), b"x")])
    for damaged, fault in ((raw[:-1], Fault.TRUNCATED), (raw + b"\0", Fault.TRAILING), (b"", Fault.TRUNCATED)):
        with pytest.raises(MalformedPacket) as caught:
            decode_causal_event(damaged)
        assert caught.value.fault == fault


def test_damaged_events_never_escape_as_another_error() -> None:
    sample = encode_causal([CausalEvent(CausalLink(1, 2, 3, 4), b"payload")])
    assert_survives(decode_causal_event, [sample], randoms=5_000)
    assert_survives(lambda raw: decode_causal(raw, 1000), [bytes.fromhex(CHAIN["frame"])], randoms=5_000)
    assert_survives(unpack_link, [sample[4:36]], randoms=2_000)
