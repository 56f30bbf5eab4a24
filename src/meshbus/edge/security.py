"""Security options of an endpoint: the values of its `security` argument.

    Null()                                      no authentication; for one machine, or a network that is protected
    PlainServer(passwords({"admin": "…"}))      name and password, in clear text
    CurveServer(secret_key, known_keys([…]))    encrypted; both sides authenticate with keys

A server decides with an `authenticate` callback, as in ZAP: it gets `Credentials` and returns a `Verdict`, directly or as
an awaitable. `passwords`, `known_keys` and `anyone` make common callbacks. PlainServer and CurveServer have no default
callback, so that accepting everyone is explicit. The handshakes are in edge/zmtp.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import ClassVar, TypeAlias

import msgspec

from meshbus.edge.zmtp.curve import KEY_BYTES, CurveClientHandshake, CurveServerHandshake, public_key_of
from meshbus.edge.zmtp.mechanism import (
    Credentials,
    Handshake,
    NullHandshake,
    PlainClientHandshake,
    PlainServerHandshake,
    Verdict,
)
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.z85 import decode_z85, encode_z85
from meshbus.errors import ConfigError

Z85_KEY_CHARACTERS = KEY_BYTES // 4 * 5

Authenticate: TypeAlias = Callable[[Credentials], Verdict | Awaitable[Verdict]]


class Null(msgspec.Struct, frozen=True):
    """No authentication; with `authenticate`, peers are accepted or refused by their address."""

    authenticate: Authenticate | None = None
    encrypts: ClassVar[bool] = False

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return NullHandshake(socket_type, judged=self.authenticate is not None)


class PlainClient(msgspec.Struct, frozen=True):
    """Authenticate with a name and a password, sent in clear text."""

    username: str
    password: str
    authenticate: ClassVar[None] = None
    encrypts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the lengths: the handshake has one length byte for each."""
        for key, value in (("username", self.username), ("password", self.password)):
            if len(value.encode()) > 255:
                raise ConfigError(key, f"must have at most 255 bytes, got {len(value.encode())}; choose a shorter one")

    def __repr__(self) -> str:
        """Describe it without the password."""
        return f"PlainClient({self.username!r})"

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return PlainClientHandshake(socket_type, self.username.encode(), self.password.encode())


class PlainServer(msgspec.Struct, frozen=True):
    """Require a name and a password."""

    authenticate: Authenticate
    encrypts: ClassVar[bool] = False

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return PlainServerHandshake(socket_type)


class CurveClient(msgspec.Struct, frozen=True):
    """Encrypt, and authenticate both sides by their keys; keys are 32 bytes, or 40 characters of Z85 as text or bytes."""

    server_key: bytes | str
    secret_key: bytes | str
    authenticate: ClassVar[None] = None
    encrypts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the keys."""
        read_key("server_key", self.server_key)
        read_key("secret_key", self.secret_key)

    def __repr__(self) -> str:
        """Describe it without the secret key."""
        return f"CurveClient(server_key={encode_z85(read_key('server_key', self.server_key))!r})"

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return CurveClientHandshake(
            socket_type,
            server_key=read_key("server_key", self.server_key),
            secret_key=read_key("secret_key", self.secret_key),
            entropy=os.urandom,
        )


class CurveServer(msgspec.Struct, frozen=True):
    """Encrypt, and authenticate clients by their keys; the secret key is 32 bytes or 40 characters of Z85."""

    secret_key: bytes | str
    authenticate: Authenticate
    encrypts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the key."""
        read_key("secret_key", self.secret_key)

    def __repr__(self) -> str:
        """Describe it without the secret key."""
        return f"CurveServer(public_key={self.public_key!r})"

    @property
    def public_key(self) -> str:
        """Public key in Z85, which clients need."""
        return encode_z85(public_key_of(read_key("secret_key", self.secret_key)))

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return CurveServerHandshake(socket_type, secret_key=read_key("secret_key", self.secret_key), entropy=os.urandom)


Security: TypeAlias = Null | PlainClient | PlainServer | CurveClient | CurveServer


def passwords(known: Mapping[str, str]) -> Authenticate:
    """Return a callback that accepts known names with the right password."""

    def authenticate(shown: Credentials) -> Verdict:
        expected = known.get(shown.username)
        # Always compare, and in constant time, so that the duration does not reveal which names exist.
        same = hmac.compare_digest(_raw(expected or ""), _raw(shown.password))
        return Verdict.ALLOW if same and expected is not None else Verdict.DENY

    return authenticate


def known_keys(keys: Iterable[bytes | str]) -> Authenticate:
    """Return a callback that accepts clients with one of these public keys."""
    known = frozenset(read_key("known_keys", key) for key in keys)
    # Public keys are not secret, so the comparison need not take constant time.
    return lambda shown: Verdict.ALLOW if shown.public_key in known else Verdict.DENY


def anyone(_: Credentials) -> Verdict:
    """Accept every peer."""
    return Verdict.ALLOW


def curve_keypair() -> tuple[str, str]:
    """Generate a CURVE key pair; return the public and the secret key in Z85."""
    secret = os.urandom(KEY_BYTES)
    return encode_z85(public_key_of(secret)), encode_z85(secret)


def read_key(name: str, key: bytes | str) -> bytes:
    """Return a key as 32 bytes, from 32 bytes or 40 characters of Z85. Raises ConfigError if it is neither.

    Z85 may be text or bytes, as pyzmq returns keys.
    """
    try:
        # 40 bytes can only be Z85: a raw key has 32.
        text = key.decode("ascii") if isinstance(key, bytes) and len(key) == Z85_KEY_CHARACTERS else key
        raw = decode_z85(text) if isinstance(text, str) else text
    except ValueError as error:
        raise ConfigError(name, f"{error}; a key has 32 bytes or 40 characters of Z85") from None
    if len(raw) != KEY_BYTES:
        raise ConfigError(name, f"a key has 32 bytes or 40 characters of Z85, got {len(raw)} bytes")
    return raw


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
