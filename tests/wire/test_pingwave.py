from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import PINGWAVE_BYTES
from meshbus.wire.pingwave import HEALTH_OFFSET, Health, Pingwave, forwarded, pack_pingwave, unpack_pingwave
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u8, u32, u64

VECTORS: list[dict[str, Any]] = load("transport")["pingwave"]

# Every field in use; the layout of the last 22 bytes is not exercised by what 0.23 nodes send.
FULL = (
    "ff00000000000000000000000000000000000000000000000000000000000000"
    "0100000000000000030001000000000000000807060504030201"
    "09000000c8010102030405000000"
)

pingwaves = st.builds(
    Pingwave,
    node_id=u64,
    origin_rest=st.binary(min_size=24, max_size=24),
    seq=u64,
    ttl=u8,
    hop_count=u8,
    timestamp_us=u64,
    capability_hash=u64,
    capability_version=u32,
    load=u8,
    health=st.sampled_from(Health),
    gpu=u8,
    model_slots=u8,
    memory_tier=u8,
    tools=u8,
    capability_flags=u32,
)


@pytest.mark.parametrize("row", VECTORS)
def test_a_golden_pingwave_reads_and_writes(row: dict[str, Any]) -> None:
    pingwave = Pingwave(
        node_id=int(row["origin_node_id"], 16),
        seq=row["seq"],
        ttl=row["ttl"],
        hop_count=row["hop_count"],
        timestamp_us=row["origin_timestamp_us"],
        capability_hash=int(row["capability_hash"], 16),
        capability_version=row["capability_version"],
        load=row["load_level"],
        health=Health(row["health"]),
    )
    packed = pack_pingwave(pingwave)
    assert packed.hex() == row["bytes"]
    assert packed[64:].hex() == row["primary_capabilities"]
    assert unpack_pingwave(packed) == pingwave


def test_every_field_has_its_place() -> None:
    pingwave = Pingwave(
        node_id=0xFF,
        seq=1,
        ttl=3,
        timestamp_us=1,
        capability_hash=0x0102030405060708,
        capability_version=9,
        load=200,
        health=Health.DEGRADED,
        gpu=1,
        model_slots=2,
        memory_tier=3,
        tools=4,
        capability_flags=5,
    )
    assert pack_pingwave(pingwave).hex() == FULL
    assert unpack_pingwave(bytes.fromhex(FULL)) == pingwave


@given(pingwaves)
def test_pingwaves_round_trip(pingwave: Pingwave) -> None:
    packed = pack_pingwave(pingwave)
    assert len(packed) == PINGWAVE_BYTES
    assert unpack_pingwave(packed) == pingwave


@pytest.mark.parametrize("health", [0, 3, 4, 255])
def test_only_known_health_is_readable(health: int) -> None:
    packed = bytearray.fromhex(FULL)
    packed[HEALTH_OFFSET] = health
    if health <= 3:
        assert unpack_pingwave(packed).health is Health(health)
    else:
        with pytest.raises(MalformedPacket) as caught:
            unpack_pingwave(packed)
        assert caught.value.fault is Fault.BAD_VALUE


def test_the_length_is_exact() -> None:
    for buffer, fault in ((bytes(71), Fault.TRUNCATED), (bytes(73), Fault.TRAILING)):
        with pytest.raises(MalformedPacket) as caught:
            unpack_pingwave(buffer)
        assert caught.value.fault is fault


def test_forwarding_counts_the_hop_and_ends_with_the_ttl() -> None:
    pingwave = Pingwave(node_id=1, seq=1, ttl=1, hop_count=15, timestamp_us=9)
    last = forwarded(pingwave)
    assert last == msgspec.structs.replace(pingwave, ttl=0, hop_count=16)
    assert forwarded(last) is None
    saturated = forwarded(Pingwave(node_id=1, seq=1, ttl=2, hop_count=255, timestamp_us=9))
    assert saturated is not None
    assert saturated.hop_count == 255


def test_values_that_do_not_fit_are_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        pack_pingwave(Pingwave(node_id=-1, seq=1, timestamp_us=0))
    with pytest.raises(LocalProtocolError, match="origin_rest"):
        pack_pingwave(Pingwave(node_id=1, origin_rest=b"short", seq=1, timestamp_us=0))


def test_damaged_pingwaves_never_crash() -> None:
    assert_survives(unpack_pingwave, [bytes.fromhex(VECTORS[0]["bytes"]), bytes.fromhex(FULL)])
