"""How an endpoint proves itself and judges others: the values a user passes as `security`.

    Null()                                      no proof at all: for this machine, or behind something that protects
    PlainServer(passwords({"admin": "…"}))      name and password, in clear text
    CurveServer(secret_key, known_keys([…]))    encrypted; both sides prove their key

A server says who may come in with a callback in the manner of ZAP: it gets `Credentials` and gives a `Verdict`, at
once or as an awaitable. `passwords`, `known_keys` and `anyone` make the usual ones. There is no default: leaving the
door open has to be written down. The handshakes themselves are in edge/zmtp.
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

Authenticate: TypeAlias = Callable[[Credentials], Verdict | Awaitable[Verdict]]


class Null(msgspec.Struct, frozen=True):
    """Prove nothing; with `authenticate`, peers are judged by their address."""

    authenticate: Authenticate | None = None
    encrypts: ClassVar[bool] = False

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return NullHandshake(socket_type, judged=self.authenticate is not None)


class PlainClient(msgspec.Struct, frozen=True):
    """Show a name and a password, in clear text."""

    username: str
    password: str
    authenticate: ClassVar[None] = None
    encrypts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what the wire cannot carry."""
        for key, value in (("username", self.username), ("password", self.password)):
            if len(value.encode()) > 255:
                raise ConfigError(key, "PLAIN carries at most 255 bytes: choose a shorter one")

    def __repr__(self) -> str:
        """Leave the password out."""
        return f"PlainClient({self.username!r})"

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return PlainClientHandshake(socket_type, self.username.encode(), self.password.encode())


class PlainServer(msgspec.Struct, frozen=True):
    """Ask for a name and a password."""

    authenticate: Authenticate
    encrypts: ClassVar[bool] = False

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return PlainServerHandshake(socket_type)


class CurveClient(msgspec.Struct, frozen=True):
    """Encrypt, know the server by its key, and prove our own; keys are 32 bytes or 40 characters of Z85."""

    server_key: bytes | str
    secret_key: bytes | str
    authenticate: ClassVar[None] = None
    encrypts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what is no key."""
        read_key("server_key", self.server_key)
        read_key("secret_key", self.secret_key)

    def __repr__(self) -> str:
        """Leave the secret out."""
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
    """Encrypt, prove our key, and judge the client's."""

    secret_key: bytes | str
    authenticate: Authenticate
    encrypts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what is no key."""
        read_key("secret_key", self.secret_key)

    def __repr__(self) -> str:
        """Leave the secret out."""
        return f"CurveServer(public_key={self.public_key!r})"

    @property
    def public_key(self) -> str:
        """What clients must be given, in Z85."""
        return encode_z85(public_key_of(read_key("secret_key", self.secret_key)))

    def handshake(self, socket_type: SocketType) -> Handshake:
        """Begin one handshake."""
        return CurveServerHandshake(socket_type, secret_key=read_key("secret_key", self.secret_key), entropy=os.urandom)


Security: TypeAlias = Null | PlainClient | PlainServer | CurveClient | CurveServer


def passwords(known: Mapping[str, str]) -> Authenticate:
    """Let in who knows the password of a name."""

    def authenticate(shown: Credentials) -> Verdict:
        expected = known.get(shown.username)
        # Compared in any case, and in constant time: the answer takes as long for a name that does not exist.
        same = hmac.compare_digest(_raw(expected or ""), _raw(shown.password))
        return Verdict.ALLOW if same and expected is not None else Verdict.DENY

    return authenticate


def known_keys(keys: Iterable[bytes | str]) -> Authenticate:
    """Let in who proves to hold one of these keys."""
    known = frozenset(read_key("known_keys", key) for key in keys)
    return lambda shown: Verdict.ALLOW if shown.public_key in known else Verdict.DENY


def anyone(_: Credentials) -> Verdict:
    """Let everybody in."""
    return Verdict.ALLOW


def curve_keypair() -> tuple[str, str]:
    """Make a new CURVE key: public and secret, in Z85."""
    secret = os.urandom(KEY_BYTES)
    return encode_z85(public_key_of(secret)), encode_z85(secret)


def read_key(name: str, key: bytes | str) -> bytes:
    """Read a key: 32 bytes, or 40 characters of Z85."""
    try:
        raw = decode_z85(key) if isinstance(key, str) else key
    except ValueError as error:
        raise ConfigError(name, f"{error}; a key is 32 bytes or 40 characters of Z85") from None
    if len(raw) != KEY_BYTES:
        raise ConfigError(name, f"{len(raw)} bytes are no key: pass 32 bytes or 40 characters of Z85")
    return raw


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
