"""Messages about new secrets: bytes, and what is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import MalformedPacket, RemoteProtocolError
from meshbus.names.identity import Identity
from meshbus.wire.messages.rotation import (
    KeyProof,
    NotRenewed,
    Present,
    Refusal,
    Renew,
    Renewed,
    RotationMessage,
    decode_rotation,
    encode_rotation,
)
from meshbus.wire.messages.token import PermissionToken, Scope, encode_token

PROOF = bytes(range(32))
ISSUER = Identity.from_seed(PROOF)
TOKEN = PermissionToken.issue(
    ISSUER, bytes(32), Scope.SUBSCRIBE | Scope.RENEWABLE, "sensors/", ttl_s=9, now=7, entropy=bytes
)


def test_golden_bytes() -> None:
    """docs/wire/profile.md has this layout."""
    assert encode_rotation(KeyProof(PROOF)) == b"\x01" + PROOF
    assert encode_rotation(KeyProof(PROOF, answers=True)) == b"\x02" + PROOF
    assert encode_rotation(Renew(TOKEN)) == b"\x03" + encode_token(TOKEN)
    assert encode_rotation(Renewed(TOKEN)) == b"\x04" + encode_token(TOKEN)
    assert encode_rotation(NotRenewed(0x0102, Refusal.EARLY)) == bytes.fromhex("05020100000000000006")
    assert encode_rotation(Present(TOKEN)) == b"\x06" + encode_token(TOKEN)


@given(st.binary(min_size=32, max_size=32), st.booleans())
def test_messages_round_trip(proof: bytes, answers: bool) -> None:
    assert decode_rotation(encode_rotation(KeyProof(proof, answers))) == KeyProof(proof, answers)


@pytest.mark.parametrize("message", [Renew(TOKEN), Renewed(TOKEN), NotRenewed(5, 200), Present(TOKEN)])
def test_messages_about_tokens_round_trip(message: RotationMessage) -> None:
    encoded = encode_rotation(message)
    assert decode_rotation(encoded) == message
    for wrong in (encoded[:-1], encoded + b"x"):
        with pytest.raises(MalformedPacket):
            decode_rotation(wrong)


@pytest.mark.parametrize("message", [b"", b"\x00", b"\x01" + bytes(31), b"\x02" + bytes(33), b"\xff" + bytes(32)])
def test_malformed_messages(message: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_rotation(message)


@given(st.binary(max_size=64))
def test_no_bytes_crash_it(message: bytes) -> None:
    with suppress(RemoteProtocolError):
        assert encode_rotation(decode_rotation(message)) == message
