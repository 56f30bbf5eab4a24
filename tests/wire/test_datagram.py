from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import RemoteProtocolError
from meshbus.wire.datagram import DatagramKind, classify
from meshbus.wire.pingwave import HEALTH_OFFSET, unpack_pingwave
from tests.fuzz import assert_survives
from tests.vectors import load

VECTORS: list[dict[str, Any]] = load("transport")["classify"]

magics = st.sampled_from([b"\x45\x4e", b"\x52\x54", b"\x50\x48", b"\0\0", b"\xff\xff", b"NE", b"TR"])


@pytest.mark.parametrize("row", VECTORS)
def test_golden_datagrams_are_classified(row: dict[str, Any]) -> None:
    datagram = bytes.fromhex(row["first2"]).ljust(row["len"], b"\0")
    assert classify(datagram) is DatagramKind[row["kind"].upper()]


def test_a_pingwave_that_does_not_parse_falls_through() -> None:
    datagram = bytearray(72)
    datagram[HEALTH_OFFSET] = 4
    assert classify(datagram) is DatagramKind.DROP
    datagram[:2] = b"\x45\x4e"
    assert classify(datagram) is DatagramKind.NET


def test_a_pingwave_may_start_like_a_routed_packet_or_a_keepalive() -> None:
    assert classify(b"\x52\x54" + bytes(70)) is DatagramKind.PINGWAVE
    assert classify(b"\x50\x48" + bytes(70)) is DatagramKind.PINGWAVE


def test_only_14_bytes_are_a_keepalive() -> None:
    assert classify(b"\x50\x48" + bytes(12)) is DatagramKind.KEEPALIVE
    assert classify(b"\x50\x48" + bytes(13)) is DatagramKind.DROP


@pytest.mark.parametrize("datagram", [b"", b"\x45", b"\x52\x54"])
def test_fragments_of_a_magic_are_dropped(datagram: bytes) -> None:
    assert classify(datagram) is DatagramKind.DROP


@given(magics, st.sampled_from([2, 13, 14, 15, 68, 71, 72, 73, 85, 86, 87, 200]), st.binary(min_size=198, max_size=198))
def test_the_rules_hold_in_their_order(magic: bytes, length: int, noise: bytes) -> None:
    datagram = (magic + noise)[:length]
    assert classify(datagram) is by_the_table(datagram)


def by_the_table(datagram: bytes) -> DatagramKind:
    magic = int.from_bytes(datagram[:2], "little")
    if len(datagram) == 14 and magic == 0x4850:
        return DatagramKind.KEEPALIVE
    if len(datagram) == 72 and magic != 0x4E45 and parses_as_pingwave(datagram):
        return DatagramKind.PINGWAVE
    if magic == 0x5452 and len(datagram) >= 86:
        return DatagramKind.ROUTED
    return DatagramKind.NET if magic == 0x4E45 else DatagramKind.DROP


def parses_as_pingwave(datagram: bytes) -> bool:
    try:
        unpack_pingwave(datagram)
    except RemoteProtocolError:
        return False
    return True


def test_no_datagram_crashes_the_classifier() -> None:
    assert_survives(classify, [b"\x45\x4e" + bytes(66), b"\x52\x54" + bytes(84), bytes(72), b"\x50\x48" + bytes(12)])
