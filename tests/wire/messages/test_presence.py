"""Presence messages: fixed bytes, round trips, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.messages.presence import Echo, Goodbye, PresenceMessage, Probe, decode_presence, encode_presence
from tests.fuzz import assert_survives

FIXED: list[tuple[PresenceMessage, str]] = [
    (Probe(1_700_000_000_000_000_001), "01" + "01002a36fe9c9717"),
    (Echo(-2, 256), "02" + "feffffffffffffff" + "0001000000000000"),
    (Goodbye(), "03"),
]
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(("message", "event"), FIXED)
def test_the_bytes_are_fixed(message: PresenceMessage, event: str) -> None:
    assert encode_presence(message).hex() == event
    assert decode_presence(bytes.fromhex(event)) == message


@given(st.one_of(st.builds(Probe, NUMBERS), st.builds(Echo, NUMBERS, NUMBERS), st.just(Goodbye())))
def test_messages_round_trip(message: PresenceMessage) -> None:
    assert decode_presence(encode_presence(message)) == message


@pytest.mark.parametrize("event", ["", "00", "04", "0300", "01" + "00" * 7, "01" + "00" * 9, "02" + "00" * 15])
def test_anything_else_is_refused(event: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_presence(bytes.fromhex(event))


def test_a_time_beyond_64_bits_cannot_be_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode_presence(Probe(1 << 63))


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_presence, [bytes.fromhex(event) for _, event in FIXED])
