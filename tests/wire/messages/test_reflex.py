from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from meshbus.errors import MalformedPacket
from meshbus.wire.messages.address import Address, parse_address
from meshbus.wire.messages.reflex import ReflexRequest, ReflexResponse, decode_reflex, encode_reflex
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import addresses

VECTORS: list[dict[str, Any]] = load("transport")["reflex"]


@pytest.mark.parametrize("row", VECTORS)
def test_golden_messages_read_and_write(row: dict[str, Any]) -> None:
    response = ReflexResponse(parse_address(row["addr"]))
    for message, event in ((ReflexRequest(), row["request_event"]), (response, row["response_event"])):
        assert encode_reflex(message).hex() == event
        assert decode_reflex(bytes.fromhex(event)) == message


@given(addresses)
def test_answers_round_trip(address: Address) -> None:
    assert decode_reflex(encode_reflex(ReflexResponse(address))) == ReflexResponse(address)


@pytest.mark.parametrize("event", ["ff", "00" * 18, "00" * 20, "07" + "00" * 18])
def test_anything_else_is_refused(event: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_reflex(bytes.fromhex(event))


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_reflex, [b"", bytes.fromhex(VECTORS[0]["response_event"])])
