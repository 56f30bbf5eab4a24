from __future__ import annotations

import pytest

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.messages.secure import Accept, Done, Offer, decode_secure, encode_secure
from tests.fuzz import assert_survives

FIELDS = {"ephemeral": bytes(range(32)), "entity_id": b"e" * 32, "signature": b"s" * 64}
MESSAGES = (Offer(epoch=1, **FIELDS), Accept(epoch=0xFFFFFFFF, **FIELDS), Done(epoch=7))


def test_messages_read_as_they_were_written() -> None:
    for message in MESSAGES:
        assert decode_secure(encode_secure(message)) == message
    assert encode_secure(MESSAGES[0]).hex() == "01" + "01000000" + bytes(range(32)).hex() + "65" * 32 + "73" * 64
    assert encode_secure(MESSAGES[2]).hex() == "0307000000"


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ("", Fault.TRUNCATED),
        ("01" + "00" * 131, Fault.TRUNCATED),
        ("02" + "00" * 133, Fault.TRAILING),
        ("0300000000" + "00", Fault.TRAILING),
        ("04", Fault.UNKNOWN_KIND),
    ],
)
def test_other_bytes_are_refused(event: str, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_secure(bytes.fromhex(event))
    assert caught.value.fault is fault


def test_fields_of_another_size_are_not_written() -> None:
    for name in FIELDS:
        with pytest.raises(LocalProtocolError, match="bytes, got 1"):
            encode_secure(Offer(epoch=1, **{**FIELDS, name: b"x"}))


def test_the_decoder_survives_anything() -> None:
    assert_survives(decode_secure, [encode_secure(message) for message in MESSAGES], randoms=20_000)
