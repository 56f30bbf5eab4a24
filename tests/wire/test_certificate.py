"""Certificates: what is signed is what is read, and nothing else verifies."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import AuthError, LocalProtocolError, MalformedPacket
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.wire.certificate import (
    MAX_TAG_BYTES,
    MAX_TAGS,
    MAX_TIME,
    Certificate,
    decode_certificate,
    encode_certificate,
)

ISSUER, ROBOT = Identity.from_seed(b"i" * 32), Identity.from_seed(b"r" * 32)


def certificate(name: str = "rover-7", tags: tuple[str, ...] = ("lidar", "site:west")) -> Certificate:
    return Certificate(
        issuer=ISSUER.entity_id,
        subject=ROBOT.entity_id,
        serial=7,
        not_before=1000,
        not_after=2000,
        subnet=SubnetId.parse("3.7"),
        name=name,
        tags=tags,
    ).signed_by(ISSUER)


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)


@given(tags=st.lists(TEXTS, max_size=MAX_TAGS), name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True))
def test_a_certificate_is_read_as_it_was_written(tags: list[str], name: str) -> None:
    written = certificate(name, tuple(tags))
    found = decode_certificate(encode_certificate(written))
    assert found == written
    found.verify()


def test_the_layout() -> None:
    raw = encode_certificate(certificate(tags=("ab",)))
    assert raw[:65] == b"\x01" + ISSUER.entity_id + ROBOT.entity_id
    assert raw[65:93] == b"".join(number.to_bytes(8, "little") for number in (7, 1000, 2000)) + bytes((0, 0, 7, 3))
    assert raw[93:-64] == b"\x07rover-7" + b"\x01" + b"\x02ab"


def test_every_changed_byte_is_noticed() -> None:
    raw = encode_certificate(certificate())
    for place in range(len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1
        with pytest.raises((AuthError, MalformedPacket)):
            decode_certificate(changed).verify()


def test_a_certificate_that_is_cut_or_longer_cannot_be_read() -> None:
    raw = encode_certificate(certificate())
    for end in range(len(raw)):
        with pytest.raises(MalformedPacket):
            decode_certificate(raw[:end])
    with pytest.raises(MalformedPacket):
        decode_certificate(raw + b"\0")


@pytest.mark.parametrize(
    "changes",
    [
        {"tags": ("x",) * (MAX_TAGS + 1)},
        {"tags": ("x" * (MAX_TAG_BYTES + 1),)},
        {"tags": ("",)},
        {"name": "two words"},
        {"subject": b"short"},
        {"serial": -1},
    ],
)
def test_values_that_do_not_fit_are_not_signed(changes: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        msgspec.structs.replace(certificate(), **changes).signed_by(ISSUER)


def test_an_empty_tag_cannot_be_read() -> None:
    """Nobody can write one, so it must not reach what checks the signature."""
    raw = encode_certificate(certificate(tags=("x",)))
    assert raw[-66:-64] == b"\x01x"
    with pytest.raises(MalformedPacket, match="an empty tag"):
        decode_certificate(raw[:-66] + b"\0" + raw[-64:])


def test_only_the_issuer_signs() -> None:
    with pytest.raises(LocalProtocolError, match="not the one that signs"):
        certificate().signed_by(ROBOT)
    forged = msgspec.structs.replace(certificate(), issuer=ROBOT.entity_id)
    with pytest.raises(AuthError, match="not signed by its issuer"):
        forged.verify()


@pytest.mark.parametrize(("start", "end"), [(2000, 2000), (1000, MAX_TIME + 1)])
def test_times_that_mean_nothing_cannot_be_read(start: int, end: int) -> None:
    odd = msgspec.structs.replace(certificate(), not_before=start, not_after=end).signed_by(ISSUER)
    with pytest.raises(MalformedPacket):
        decode_certificate(encode_certificate(odd))


def test_it_is_valid_for_its_time() -> None:
    assert [certificate().valid(now) for now in (999, 1000, 1999.9, 2000)] == [False, True, True, False]
