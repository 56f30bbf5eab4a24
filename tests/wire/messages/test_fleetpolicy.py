"""Messages about a signed policy: bytes, what an issuer signs, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket, RemoteProtocolError
from meshbus.names.identity import Identity
from meshbus.wire.messages.fleetpolicy import (
    CHUNK_BYTES,
    MAX_POLICY,
    Chunk,
    Fetch,
    Have,
    PolicyStatement,
    decode_fleet_policy,
    encode_fleet_policy,
)

ISSUER = Identity.from_seed(bytes(range(32)))
POLICY = b'unlisted_channels = "refuse"\n'
STATED = PolicyStatement.sign(ISSUER, 7, POLICY)


def test_golden_bytes() -> None:
    """docs/wire/profile.md has this layout."""
    have = encode_fleet_policy(Have(STATED))
    assert have[:13].hex() == "0107000000000000001d000000"
    assert have[13:45] == STATED.digest
    assert have[45:77] == ISSUER.entity_id
    assert have[77:] == STATED.signature
    assert STATED.digest.hex() == "61b6e452a3b5edc1d2e14b69f7e3791b43823a48c133c308a214fb40d50b2ad3"
    assert encode_fleet_policy(Fetch(7, 1024)).hex() == "02070000000000000000040000"
    assert encode_fleet_policy(Chunk(7, 1024, b"ab")).hex() == "030700000000000000000400006162"


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=CHUNK_BYTES))
def test_messages_round_trip(version: int, offset: int, data: bytes) -> None:
    for message in (Fetch(version, offset), Chunk(version, offset, data)):
        assert decode_fleet_policy(encode_fleet_policy(message)) == message
    assert decode_fleet_policy(encode_fleet_policy(Have(STATED))) == Have(STATED)


def test_a_statement_is_about_one_policy_of_one_issuer() -> None:
    assert STATED.verify()
    assert STATED.describes(POLICY)
    assert not STATED.describes(POLICY + b"\n")
    other = Identity.from_seed(bytes(32))
    changed = [
        PolicyStatement(8, STATED.size, STATED.digest, STATED.issuer, STATED.signature),
        PolicyStatement(7, STATED.size + 1, STATED.digest, STATED.issuer, STATED.signature),
        PolicyStatement(7, STATED.size, bytes(32), STATED.issuer, STATED.signature),
        PolicyStatement(7, STATED.size, STATED.digest, other.entity_id, STATED.signature),
        PolicyStatement(7, STATED.size, STATED.digest, STATED.issuer, bytes(64)),
    ]
    assert not any(statement.verify() for statement in changed)


@pytest.mark.parametrize(("version", "policy"), [(0, POLICY), (2**64, POLICY), (1, b""), (1, b"#" * (MAX_POLICY + 1))])
def test_what_cannot_be_signed(version: int, policy: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="got"):
        PolicyStatement.sign(ISSUER, version, policy)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00",
        b"\x04" + bytes(12),
        b"\x02" + bytes(11),
        b"\x02" + bytes(13),
        b"\x03" + bytes(12),
        b"\x03" + bytes(13 + CHUNK_BYTES),
        b"\x01" + bytes(140),
        encode_fleet_policy(Have(STATED)) + b"x",
        encode_fleet_policy(Have(STATED))[:-1],
    ],
)
def test_malformed_messages(message: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_fleet_policy(message)


def test_any_changed_byte_is_read_or_refused() -> None:
    have = encode_fleet_policy(Have(STATED))
    for place in range(len(have)):
        changed = bytearray(have)
        changed[place] ^= 0xFF
        try:
            found = decode_fleet_policy(changed)
        except RemoteProtocolError:
            continue
        assert not isinstance(found, Have) or not found.statement.verify()
