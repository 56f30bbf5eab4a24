"""Messages about revocations: bytes, what an issuer signs, and what is refused."""

import msgspec
import pytest

from meshbus.errors import LocalProtocolError, MalformedPacket, RemoteProtocolError
from meshbus.names.identity import Identity
from meshbus.wire.messages.revocation import (
    DIGEST_BYTES,
    ID_BYTES,
    MAX_IDS,
    MAX_REASON_BYTES,
    MAX_RECORD,
    PARTS,
    Have,
    Listing,
    Record,
    Revocation,
    RevocationMessage,
    Revoked,
    Show,
    Want,
    decode_record,
    decode_revocation,
    digest_of,
    encode_record,
    encode_revocation,
    part_of,
)
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.fuzz import assert_survives

ISSUER, ROVER = Identity.from_seed(bytes(range(32))), Identity.from_seed(bytes(32))
RECORD = Revocation.sign(ISSUER, Revoked.NODE, ROVER.entity_id, at=1_700_000_000, reason="stolen")
TOKEN = PermissionToken.issue(
    ISSUER, ROVER.entity_id, Scope.PUBLISH, "sensors/lidar", ttl_s=60, now=1_700_000_000, entropy=bytes
)
OF_TOKEN = Revocation.sign(ISSUER, Revoked.TOKEN, TOKEN.signed_bytes, at=1_700_000_000, reason="leaked ✓")
HEIR = Identity.from_seed(bytes((7,)) * 32)
SUCCESSION = Revocation.succeed(ROVER, HEIR, at=1_700_000_000, reason="new disk")
ENDORSED = Revocation.succeed(ROVER, HEIR, at=1, reason="new disk", issuer=ISSUER.entity_id).endorse(ISSUER)
MESSAGES: list[RevocationMessage] = [
    Have(tuple(bytes((part,)) * DIGEST_BYTES for part in range(PARTS))),
    Show(0x8001),
    Listing((bytes(ID_BYTES), RECORD.id)),
    Want((RECORD.id,)),
    Record(RECORD),
    Record(OF_TOKEN),
    Record(SUCCESSION),
    Record(ENDORSED),
]


def test_golden_bytes() -> None:
    """docs/wire/profile.md has this layout."""
    raw = encode_record(RECORD)
    assert raw[:9].hex() == "0100f1536500000000"
    assert raw[9:41] == ISSUER.entity_id
    assert raw[41:73] == ROVER.entity_id
    assert raw[73:80] == b"\x06stolen"
    assert raw[80:] == RECORD.signature
    assert RECORD.signed_bytes == b"meshbus-revocation-v1\0" + raw[:80]
    assert encode_revocation(Record(RECORD)) == b"\x05" + raw
    assert encode_revocation(Show(0x8001)).hex() == "020180"
    assert encode_revocation(Want((RECORD.id,))) == b"\x04" + RECORD.id
    assert RECORD.id.hex() == "4654a09c3796d409448689fd1926cddf"


def test_messages_round_trip_and_the_longest_record_fits_its_bound() -> None:
    for message in MESSAGES:
        assert decode_revocation(encode_revocation(message)) == message
    longest = Revocation.sign(ISSUER, Revoked.TOKEN, TOKEN.signed_bytes, at=1, reason="x" * MAX_REASON_BYTES)
    assert len(encode_record(longest)) < MAX_RECORD
    reason = "x" * MAX_REASON_BYTES
    longest = Revocation.succeed(ROVER, HEIR, at=1, reason=reason, issuer=ISSUER.entity_id).endorse(ISSUER)
    assert len(encode_record(longest)) < MAX_RECORD


def test_a_record_names_a_key_and_a_token_its_signed_bytes() -> None:
    assert (RECORD.subject, RECORD.node_id, RECORD.token) == (ROVER.entity_id, ROVER.node_id, None)
    assert (OF_TOKEN.subject, OF_TOKEN.node_id) == (ROVER.entity_id, ROVER.node_id)
    token = OF_TOKEN.token
    assert token is not None
    assert token.signed_bytes == TOKEN.signed_bytes
    again = Revocation.sign(ROVER, Revoked.NODE, ROVER.entity_id, at=5, reason="another reason")
    assert again.id == RECORD.id  # by what is revoked, not by who said it
    assert len({RECORD.id, OF_TOKEN.id, msgspec.structs.replace(RECORD, what=Revoked.PUBLISH).id}) == 3


def test_a_succession_has_the_signatures_of_both_keys_and_of_an_issuer_if_it_names_one() -> None:
    """docs/wire/profile.md has this layout."""
    raw = encode_record(SUCCESSION)
    assert raw[:9].hex() == "0500f1536500000000"
    assert raw[9:41] == raw[41:73] == ROVER.entity_id
    assert raw[73:105] == HEIR.entity_id
    assert raw[105:114] == b"\x08new disk"
    assert raw[114:] == ROVER.sign(SUCCESSION.signed_bytes) + HEIR.sign(SUCCESSION.signed_bytes)
    assert (SUCCESSION.subject, SUCCESSION.heir, SUCCESSION.node_id) == (ROVER.entity_id, HEIR.entity_id, ROVER.node_id)
    assert SUCCESSION.verify()
    assert not SUCCESSION.is_endorsed
    assert ENDORSED.is_endorsed
    assert ENDORSED.signature[128:] == ISSUER.sign(ENDORSED.signed_bytes)
    assert ENDORSED.verify()
    assert ENDORSED.id != SUCCESSION.id  # a node that takes only one of them must find it
    assert (RECORD.heir, RECORD.is_endorsed) == (None, True)


def test_no_signature_of_a_succession_can_be_missing_or_of_another_key() -> None:
    old, new, issuer = (ENDORSED.signature[start : start + 64] for start in (0, 64, 128))
    for signature in (old + new, new + old + issuer, old + old + issuer, old + new + old, bytes(64) + new + issuer):
        assert not msgspec.structs.replace(ENDORSED, signature=signature).verify()
    unendorsed = Revocation.succeed(ROVER, HEIR, at=1, reason="new disk", issuer=ISSUER.entity_id)
    assert not unendorsed.verify()
    assert not msgspec.structs.replace(SUCCESSION, target=ROVER.entity_id + ISSUER.entity_id).verify()


def test_what_cannot_succeed() -> None:
    with pytest.raises(LocalProtocolError, match="succeed itself"):
        Revocation.succeed(ROVER, ROVER, at=1, reason="new disk")
    with pytest.raises(LocalProtocolError, match="got 0"):
        Revocation.succeed(ROVER, HEIR, at=1, reason="")
    with pytest.raises(LocalProtocolError, match=r"Revocation\.succeed"):
        Revocation.sign(ISSUER, Revoked.SUCCESSION, SUCCESSION.target, at=1, reason="new disk")
    for record, issuer in ((SUCCESSION, ISSUER), (ENDORSED, HEIR), (SUCCESSION, ROVER), (RECORD, ISSUER)):
        with pytest.raises(LocalProtocolError, match="got the key"):
            record.endorse(issuer)


def test_only_the_issuer_can_have_signed_a_record() -> None:
    assert RECORD.verify()
    assert OF_TOKEN.verify()
    other = msgspec.structs.replace
    changed = [
        other(RECORD, what=Revoked.PUBLISH),
        other(RECORD, at=RECORD.at + 1),
        other(RECORD, issuer=ROVER.entity_id),
        other(RECORD, target=ISSUER.entity_id),
        other(RECORD, reason="lost"),
        other(RECORD, signature=bytes(64)),
        # A signature over the same bytes for another purpose does not begin with the label.
        other(RECORD, signature=ISSUER.sign(encode_record(RECORD)[:-64])),
    ]
    assert not any(record.verify() for record in changed)


@pytest.mark.parametrize(
    ("what", "target", "reason"),
    [
        (Revoked.NODE, b"short", "stolen"),
        (Revoked.TOKEN, ROVER.entity_id, "stolen"),
        (Revoked.NODE, ROVER.entity_id, ""),
        (Revoked.NODE, ROVER.entity_id, "two\nlines"),
        (Revoked.NODE, ROVER.entity_id, "ü" * MAX_REASON_BYTES),
    ],
)
def test_what_cannot_be_signed(what: Revoked, target: bytes, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match="got"):
        Revocation.sign(ISSUER, what, target, at=1, reason=reason)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00",
        b"\x06" + bytes(12),
        b"\x01" + bytes(PARTS * DIGEST_BYTES - 1),
        b"\x01" + bytes(PARTS * DIGEST_BYTES + 1),
        b"\x02" + bytes(3),
        b"\x03",
        b"\x03" + bytes(ID_BYTES + 1),
        b"\x04" + bytes(ID_BYTES * (MAX_IDS + 1)),
        b"\x05" + bytes(300),
        b"\x05" + encode_record(RECORD)[:60],
        b"\x05" + encode_record(RECORD)[:-1],
        b"\x05" + encode_record(RECORD) + b"x",
        b"\x05" + encode_record(RECORD).replace(b"stolen", b"\x1b[2J x"),
        b"\x05" + encode_record(RECORD).replace(b"stolen", b"\xff" * 6),
        b"\x05" + encode_record(RECORD).replace(b"\x06stolen", b"\x00"),
        b"\x05" + encode_record(SUCCESSION)[:-64],
        b"\x05" + encode_record(SUCCESSION) + bytes(64),
        b"\x05" + encode_record(ENDORSED)[:-64],
        b"\x05" + encode_record(SUCCESSION).replace(HEIR.entity_id, ROVER.entity_id),
    ],
)
def test_malformed_messages(message: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode_revocation(message)


def test_any_bytes_are_read_or_refused() -> None:
    assert_survives(decode_revocation, [encode_revocation(message) for message in MESSAGES], randoms=20_000)
    assert_survives(decode_record, [encode_record(RECORD), encode_record(ENDORSED)], randoms=20_000)


def test_no_changed_byte_of_a_record_is_genuine() -> None:
    for raw in map(encode_record, (RECORD, OF_TOKEN, SUCCESSION, ENDORSED)):
        for place in range(len(raw)):
            changed = bytearray(raw)
            changed[place] ^= 1
            try:
                assert not decode_record(changed).verify()
            except RemoteProtocolError:
                continue


def test_parts_and_digests_of_a_set() -> None:
    assert [part_of(bytes((first,))) for first in (0, 15, 16, 255)] == [0, 0, 1, PARTS - 1]
    assert digest_of(()) == bytes(DIGEST_BYTES)
    assert len({digest_of(()), digest_of((RECORD.id,)), digest_of((OF_TOKEN.id,))}) == 3
