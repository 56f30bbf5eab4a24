from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.messages.relay import RelayedHandshake, decode_relay, encode_relay
from tests.fuzz import assert_survives

node_ids = st.integers(0, 2**64 - 1)


@given(node_ids, node_ids, st.binary(max_size=100))
def test_messages_round_trip(dest: int, src: int, message: bytes) -> None:
    relayed = RelayedHandshake(dest, src, message)
    assert decode_relay(encode_relay(relayed)) == relayed


def test_the_layout_is_destination_source_message() -> None:
    assert encode_relay(RelayedHandshake(1, 2, b"noise")).hex() == "01000000000000000200000000000000" + b"noise".hex()


def test_what_is_too_short_is_refused() -> None:
    with pytest.raises(MalformedPacket):
        decode_relay(bytes(15))


def test_what_is_no_node_id_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode_relay(RelayedHandshake(2**64, 1, b""))


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_relay, [encode_relay(RelayedHandshake(1, 2, bytes(48)))])
