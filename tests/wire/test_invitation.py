"""Tokens of invites as text: read as written, damaged ones refused without their secret."""

import os

import pytest

from meshbus.errors import ConfigError
from meshbus.names.identity import Identity
from meshbus.wire.invitation import InviteToken, parse_invite

INVITER, ISSUER = Identity.from_seed(b"n" * 32), Identity.from_seed(b"i" * 32)


def token() -> InviteToken:
    return InviteToken.new(INVITER.entity_id, ISSUER.entity_id, os.urandom)


def test_a_token_is_one_word_that_is_read_as_written() -> None:
    for _ in range(20):
        made = token()
        text = made.text()
        assert text.startswith("mbj1_")
        assert text.replace("-", "x").replace("_", "x").isalnum()
        assert parse_invite(f" {text}\n") == made


def test_secrets_and_ids_are_never_the_same() -> None:
    first, second = token(), token()
    assert len({first.psk, second.psk, first.secret, second.secret}) == 4
    assert first.invite_id != second.invite_id
    assert len(first.psk) == 32


def test_the_repr_has_no_secret() -> None:
    made = token()
    assert made.secret.hex() not in repr(made)
    assert made.__rich_repr__() == [("invite_id", made.invite_id.hex())]


def test_damaged_tokens_are_refused_and_not_shown() -> None:
    text = token().text()
    damaged = [
        text[:-1],
        text[5:],
        text + "AA",
        text[:20] + ("A" if text[20] != "A" else "B") + text[21:],
        "",
        "mbj1_é",
    ]
    for one in damaged:
        with pytest.raises(ConfigError, match="copy it again, in full") as caught:
            parse_invite(one)
        assert len(one) < 10 or one not in str(caught.value)
