"""Tokens of invites: the text that an operator copies to a new machine (docs/wire/join.md).

A token holds all that the newcomer must know beforehand: the key of the inviting node, which it authenticates; the key of the
issuer, whose certificate it expects; and a secret that proves that it was invited. It opens one join, for a limited time:
`InviteToken.psk` goes into the handshake (wire/joining.py), the secret itself is never sent.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2s

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.identity import KEY_BYTES, Entropy
from meshbus.wire.layout import Layout

INVITE_ID_BYTES = 8
SECRET_BYTES = 16
"""128 bits: nobody finds it by trying, also not with a recorded handshake."""

_PREFIX = "mbj1_"
"""Begins the text, so that people and programs recognize it."""
_CHECK_BYTES = 4
_PSK_LABEL = b"meshbus-join-psk-v1\0"
_TOKEN = Layout("invite token", f"<{INVITE_ID_BYTES}s{SECRET_BYTES}s{KEY_BYTES}s{KEY_BYTES}s")


class InviteToken(msgspec.Struct, frozen=True):
    """One invite, as the newcomer gets it. Its repr shows no secret."""

    invite_id: bytes
    """Names the invite at the inviting node; not secret."""
    secret: bytes
    inviter: bytes
    """Entity id of the node that admits the newcomer."""
    issuer: bytes
    """Entity id of the issuer that certifies the newcomer."""

    @classmethod
    def new(cls, inviter: bytes, issuer: bytes, entropy: Entropy) -> InviteToken:
        """Draw the token of a new invite."""
        return cls(entropy(INVITE_ID_BYTES), entropy(SECRET_BYTES), inviter, issuer)

    @property
    def psk(self) -> bytes:
        """The key that both sides mix into the handshake; the inviting node keeps this instead of the secret."""
        return blake2s(_PSK_LABEL + self.invite_id + self.secret).digest()

    def text(self) -> str:
        """Return the token as one word."""
        raw = _TOKEN.pack(self.invite_id, self.secret, self.inviter, self.issuer)
        return _PREFIX + base64.urlsafe_b64encode(raw + _check(raw)).decode().rstrip("=")

    # Both forms, as for SessionKeys.
    def __repr__(self) -> str:
        return f"InviteToken({self.invite_id.hex()})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("invite_id", self.invite_id.hex())]


def parse_invite(text: str) -> InviteToken:
    """Read a token. Raises ConfigError, without its text, for anything else."""
    word = text.strip()
    body = word.removeprefix(_PREFIX)
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    content, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    if not word.startswith(_PREFIX) or len(content) != _TOKEN.size or check != _check(content):
        raise ConfigError(
            "token",
            f"is not a token of an invite, which begins with {_PREFIX}, or it is damaged; copy it again, in full, as"
            " `meshbus invite` printed it",
        )
    return InviteToken(*_TOKEN.unpack(content))


def _check(raw: bytes) -> bytes:
    """Return bytes that reveal a slip while copying; they protect against nothing else."""
    return blake2s(raw, digest_size=_CHECK_BYTES).digest()
