"""Columns of routing headers and the hop count: equal to the scalar form, and to what net-mesh does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.wire import routebatch
from meshbus.wire.constants import ROUTE_BYTES
from meshbus.wire.header import Header, pack_header
from meshbus.wire.route import RouteHeader, forwarded, pack_route, unpack_route
from meshbus.wire.routebatch import ROUTE_DTYPE, alike_run, count_hop, read_routes, routed_stretch, signature
from tests.vectors import load

CASES: list[dict[str, Any]] = load("mesh")["forwarding_cases"]
HEADERS: dict[str, Any] = load("mesh")["routing_header"]

routes = st.builds(
    RouteHeader,
    ttl=st.integers(1, 255),
    hop_count=st.integers(0, 255),
    flags=st.integers(0, 255),
    reserved=st.integers(0, 255),
    src_id=st.integers(0, 2**32 - 1),
    dest_id=st.integers(0, 2**64 - 1),
)


def laid_out(packets: list[bytes]) -> tuple[Any, Any]:
    lengths = np.array([len(packet) for packet in packets], np.int64)
    return np.frombuffer(bytearray(b"".join(packets)), np.uint8), np.cumsum(lengths) - lengths


def pass_on(packet: bytes) -> bytes:
    data, starts = laid_out([packet])
    count_hop(data, starts, 0, 1)
    return bytes(data.tobytes())


def test_the_columns_have_the_size_of_the_header() -> None:
    assert ROUTE_DTYPE.itemsize == ROUTE_BYTES == HEADERS["size"]


@given(st.lists(routes, min_size=1, max_size=8))
def test_columns_equal_the_scalar_form(given_routes: list[RouteHeader]) -> None:
    data, starts = laid_out([pack_route(route) + bytes(68) for route in given_routes])
    columns = read_routes(data, starts)
    for row, route in zip(columns, given_routes, strict=True):
        fields = [route.ttl, route.hop_count, route.flags, route.reserved, route.src_id, route.dest_id]
        assert row.tolist()[1:] == tuple(fields)


@pytest.mark.parametrize("row", HEADERS["computed"])
def test_golden_headers_read(row: dict[str, Any]) -> None:
    packet = bytes.fromhex(row["hex"]) + bytes(68)
    ((_, ttl, hops, flags, _, src, dest),) = read_routes(*laid_out([packet])).tolist()
    assert (ttl, hops, flags, src, dest) == (
        row["ttl"], row["hops"], row["flags"], int(row["src"], 16), int(row["dest"], 16)
    )  # fmt: skip


@given(routes, st.binary(min_size=68, max_size=100))
def test_the_hop_is_counted_as_the_scalar_form_does_it(route: RouteHeader, body: bytes) -> None:
    """Bytes after the routing header that are not a packet stay unchanged."""
    packet = pack_route(route) + body
    expected = forwarded(unpack_route(packet))
    assert expected is not None
    passed = pass_on(packet)
    assert passed[:ROUTE_BYTES] == pack_route(expected)
    if body[:3] != b"\x45\x4e\x01":
        assert passed[ROUTE_BYTES:] == body


@given(st.integers(0, 255), st.integers(0, 255))
def test_the_inner_hop_is_counted_where_the_origin_set_a_limit(hop_ttl: int, hop_count: int) -> None:
    inner = pack_header(Header(hop_ttl=hop_ttl, hop_count=hop_count))
    passed = pass_on(pack_route(RouteHeader(src_id=1, dest_id=2)) + inner)[ROUTE_BYTES:]
    counted = min(hop_count + 1, 255) if hop_ttl else hop_count
    assert passed == inner[:6] + bytes([counted]) + inner[7:]


@pytest.mark.parametrize("case", [case for case in CASES if case.get("ttl_out") is not None])
def test_hops_are_counted_as_observed(case: dict[str, Any]) -> None:
    route = RouteHeader(ttl=case["ttl_in"], hop_count=case["hops_in"], src_id=1, dest_id=2)
    passed = unpack_route(pass_on(pack_route(route) + bytes(68)))
    assert (passed.ttl, passed.hop_count) == (case["ttl_out"], case["hops_out"])


def test_reserved_bits_are_treated_as_observed() -> None:
    case = next(case for case in CASES if "flags_out" in case)
    passed = pass_on(pack_route(RouteHeader(flags=0xF5, reserved=0x7E, src_id=1, dest_id=2)) + bytes(68))
    assert (passed[4], passed[5]) == (case["flags_out"], case["reserved_out"])


@given(st.lists(st.tuples(routes, st.booleans()), min_size=2, max_size=8), st.randoms())
def test_the_loops_that_copy_and_count_equal_their_references(
    rows: list[tuple[RouteHeader, bool]], random: Any
) -> None:
    packets = [
        pack_route(route) + (pack_header(Header(hop_ttl=random.randrange(3))) if packed else random.randbytes(68))
        for route, packed in rows
    ]
    data, starts = laid_out(packets)
    other = data.copy()
    routebatch._count.reference(data, starts, 1, len(starts))
    routebatch._count.run(other, starts, 1, len(starts))
    assert data.tobytes() == other.tobytes()
    assert data[: len(packets[0])].tobytes() == packets[0], "the first one was left out"
    one, two = np.empty(len(starts) * ROUTE_BYTES, np.uint8), np.empty(len(starts) * ROUTE_BYTES, np.uint8)
    routebatch._read.reference(data, starts, one)
    routebatch._read.run(data, starts, two)
    assert one.tobytes() == two.tobytes()


few_routes = st.builds(RouteHeader, ttl=st.integers(7, 8), src_id=st.just(5), dest_id=st.integers(1, 2))
few_headers = st.builds(
    Header,
    flags=st.integers(0, 1),
    hop_ttl=st.integers(0, 1),
    channel_hash=st.integers(0, 1),
    nonce=st.binary(min_size=12, max_size=12),
    session_id=st.integers(0, 9),
    stream_id=st.integers(0, 1),
    sequence=st.integers(0, 9),
    origin_hash=st.integers(0, 1),
    subnet_id=st.integers(0, 1),
)
few_packets = st.one_of(
    st.builds(
        lambda route, header, size: pack_route(route) + pack_header(header) + bytes(size),
        few_routes,
        few_headers,
        st.sampled_from([16, 16, 16, 20]),
    ),
    st.binary(min_size=1, max_size=100),
    few_routes.map(lambda route: pack_route(route) + bytes(68)),
)


@given(st.lists(few_packets, min_size=1, max_size=12), st.integers(0, 3))
def test_the_loops_that_find_runs_equal_their_references(packets: list[bytes], gap: int) -> None:
    data, starts = laid_out([packet + bytes(gap) for packet in packets])
    lengths = np.array([len(packet) for packet in packets], np.int64)
    for first in range(len(packets)):
        asked = (data, starts, lengths, first, len(packets))
        for node_id in (1, 2):
            assert routed_stretch(*asked, node_id) == routebatch._stretch.reference(*asked, np.uint64(node_id))
        found = routed_stretch(*asked, 9)
        if found > 0:
            end = first + found
            alike = alike_run(data, starts, lengths, first, end)
            assert alike == routebatch._alike.reference(data, starts, lengths, first, end)
            assert 1 <= alike <= found
            run = packets[first : first + alike]
            assert len({signature(memoryview(packet)) for packet in run}) == 1
            assert len({len(packet) for packet in run[:-1]}) <= 1
            if alike > 1:
                assert gap == 0
                assert len(run[-1]) <= len(run[0])


def test_a_train_is_one_run_and_its_last_packet_may_be_shorter() -> None:
    route = pack_route(RouteHeader(src_id=1, dest_id=2))
    packets = [route + pack_header(Header(sequence=n, nonce=bytes([n]) * 12)) + bytes(100) for n in range(10)]
    packets.append(packets[0][:-50])
    packets.append(packets[0])
    data, starts = laid_out(packets)
    lengths = np.array([len(packet) for packet in packets], np.int64)
    assert routed_stretch(data, starts, lengths, 0, 12, 9) == 12
    assert routed_stretch(data, starts, lengths, 0, 12, 2) == -12
    assert alike_run(data, starts, lengths, 0, 12) == 11
