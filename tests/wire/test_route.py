from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import ROUTE_BYTES
from meshbus.wire.route import RouteFlags, RouteHeader, destination_of, forwarded, pack_route, unpack_route
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u8, u32, u64

VECTORS: list[dict[str, Any]] = load("transport")["routing_headers"]
RELAYED: list[dict[str, Any]] = load("subprotocols")["opaque_relay"]["cases"]

headers = st.builds(
    RouteHeader,
    ttl=u8,
    hop_count=u8,
    flags=st.integers(0, 0x0F),
    reserved=u8,
    src_id=u32,
    dest_id=u64,
)


@pytest.mark.parametrize("row", VECTORS)
def test_golden_headers_read_and_write(row: dict[str, Any]) -> None:
    header = RouteHeader(
        ttl=row["ttl"],
        hop_count=row["hop_count"],
        flags=row["flags"],
        src_id=int(row["src_id"], 16),
        dest_id=int(row["dest_id"], 16),
    )
    assert pack_route(header).hex() == row["bytes"]
    assert unpack_route(bytes.fromhex(row["bytes"])) == header


@pytest.mark.parametrize("row", RELAYED)
def test_a_relay_counts_the_hop_and_drops_a_spent_ttl(row: dict[str, Any]) -> None:
    header = forwarded(unpack_route(bytes.fromhex(row["routing_header_in"])))
    assert (header and pack_route(header).hex()) == row["routing_header_out"]


@given(headers)
def test_headers_round_trip(header: RouteHeader) -> None:
    assert unpack_route(pack_route(header)) == header


def test_the_hop_count_saturates() -> None:
    header = forwarded(RouteHeader(ttl=8, hop_count=255, src_id=1, dest_id=2))
    assert header == RouteHeader(ttl=7, hop_count=255, src_id=1, dest_id=2)


def test_a_relay_clears_the_high_nibble_of_the_flags_and_keeps_the_reserved_byte() -> None:
    packed = bytearray(pack_route(RouteHeader(src_id=1, dest_id=2)))
    packed[4:6] = b"\xf5\x7e"
    header = unpack_route(packed)
    assert header.flags == RouteFlags.CONTROL | RouteFlags.PRIORITY
    assert pack_route(header)[4:6] == b"\x05\x7e"


def test_the_packet_behind_the_header_is_not_looked_at() -> None:
    header = RouteHeader(src_id=0x11112222, dest_id=0xDEADBEEFFFFF4E45)
    assert unpack_route(pack_route(header) + b"\xff" * 68) == header


def test_a_short_buffer_and_a_wrong_magic_are_refused() -> None:
    packed = pack_route(RouteHeader(src_id=1, dest_id=2))
    assert len(packed) == ROUTE_BYTES
    with pytest.raises(MalformedPacket) as caught:
        unpack_route(packed[:-1])
    assert caught.value.fault is Fault.TRUNCATED
    with pytest.raises(MalformedPacket) as caught:
        unpack_route(b"\x45\x4e" + packed[2:])
    assert caught.value.fault is Fault.BAD_MAGIC


def test_a_full_node_id_as_source_is_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        pack_route(RouteHeader(src_id=1 << 32, dest_id=2))


def test_damaged_headers_never_crash() -> None:
    assert_survives(unpack_route, [bytes.fromhex(row["bytes"]) for row in VECTORS])


def test_the_destination_can_be_read_alone() -> None:
    assert destination_of(pack_route(RouteHeader(src_id=1, dest_id=0xFEDC_BA98_7654_3210))) == 0xFEDC_BA98_7654_3210
