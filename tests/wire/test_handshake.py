from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import HANDSHAKE_TTL, MAX_PAYLOAD
from meshbus.wire.handshake import (
    decode_handshake,
    decode_routed_handshake,
    encode_handshake,
    encode_routed_handshake,
    pack_initiator_id,
    unpack_initiator_id,
)
from meshbus.wire.header import Header, pack_header
from meshbus.wire.route import RouteHeader
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u64

VECTORS: list[dict[str, Any]] = load("transport")["handshakes"]
ROUTED = [row for row in VECTORS if row["msg1_datagram"].startswith("5254")]
DIRECT = [row for row in VECTORS if row["msg1_datagram"].startswith("454e")]


def test_both_forms_are_among_the_golden_handshakes() -> None:
    assert len(ROUTED) >= 2
    assert len(DIRECT) >= 2
    assert len(ROUTED) + len(DIRECT) == len(VECTORS)


@pytest.mark.parametrize("row", DIRECT)
@pytest.mark.parametrize("name", ["msg1", "msg2"])
def test_golden_direct_datagrams_read_and_write(row: dict[str, Any], name: str) -> None:
    message = bytes.fromhex(row[name])
    assert encode_handshake(message).hex() == row[f"{name}_datagram"]
    assert decode_handshake(bytes.fromhex(row[f"{name}_datagram"])) == message


@pytest.mark.parametrize("row", ROUTED)
def test_golden_routed_datagrams_read_and_write(row: dict[str, Any]) -> None:
    initiator, responder = int(row["initiator_node_id"], 16), int(row["responder_node_id"], 16)
    for name, sender, receiver in (("msg1", initiator, responder), ("msg2", responder, initiator)):
        message = bytes.fromhex(row[name])
        assert encode_routed_handshake(message, sender=sender, receiver=receiver).hex() == row[f"{name}_datagram"]
        route, read = decode_routed_handshake(bytes.fromhex(row[f"{name}_datagram"]))
        assert route == RouteHeader(ttl=HANDSHAKE_TTL, src_id=sender & 0xFFFFFFFF, dest_id=receiver)
        assert read == message


@pytest.mark.parametrize("row", ROUTED)
def test_a_golden_payload_carries_the_node_id(row: dict[str, Any]) -> None:
    node_id = int(row["initiator_node_id"], 16)
    assert pack_initiator_id(node_id).hex() == row["msg1_payload"]
    assert unpack_initiator_id(bytes.fromhex(row["msg1_payload"]), node_id & 0xFFFFFFFF) == node_id


@given(st.binary(max_size=MAX_PAYLOAD), u64, u64)
def test_datagrams_round_trip(message: bytes, sender: int, receiver: int) -> None:
    assert decode_handshake(encode_handshake(message)) == message
    route, read = decode_routed_handshake(encode_routed_handshake(message, sender=sender, receiver=receiver))
    assert (route.src_id, route.dest_id, read) == (sender & 0xFFFFFFFF, receiver, message)


@given(u64, st.binary(max_size=8))
def test_the_node_id_must_belong_to_the_source(node_id: int, rest: bytes) -> None:
    payload = pack_initiator_id(node_id) + rest
    assert unpack_initiator_id(payload, node_id & 0xFFFFFFFF) == node_id
    with pytest.raises(MalformedPacket) as caught:
        unpack_initiator_id(payload, (node_id & 0xFFFFFFFF) ^ 1)
    assert caught.value.fault is Fault.BAD_VALUE
    with pytest.raises(MalformedPacket) as caught:
        unpack_initiator_id(payload[:7], node_id & 0xFFFFFFFF)
    assert caught.value.fault is Fault.TRUNCATED


def test_the_length_in_the_header_is_not_compared() -> None:
    datagram = bytearray(encode_handshake(bytes(48)))
    datagram[64:66] = b"\x01\x00"
    assert decode_handshake(datagram) == bytes(48)


def test_a_packet_without_the_flag_is_no_handshake() -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_handshake(pack_header(Header(payload_len=48)) + bytes(48))
    assert caught.value.fault is Fault.UNKNOWN_KIND


def test_a_message_that_does_not_fit_is_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_handshake(bytes(MAX_PAYLOAD + 1))
    with pytest.raises(LocalProtocolError):
        pack_initiator_id(1 << 64)


def test_damaged_datagrams_never_crash() -> None:
    assert_survives(decode_handshake, [bytes.fromhex(DIRECT[0]["msg1_datagram"])])
    assert_survives(decode_routed_handshake, [bytes.fromhex(ROUTED[0]["msg1_datagram"])])
    assert_survives(lambda payload: unpack_initiator_id(payload, 1), [pack_initiator_id(1)])
