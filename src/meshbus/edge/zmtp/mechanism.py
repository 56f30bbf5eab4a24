"""The handshakes behind the greeting: NULL and PLAIN, and what every mechanism has in common. CURVE is in curve.py.

A handshake is one object per connection that takes the peer's commands, one by one, and answers with a `Step`: frames
to send, credentials for the application to judge, or the peer's properties, which end the handshake. It asks for a
verdict at most once, and takes no further command until `decide` was called.

    NULL          both: READY
    PLAIN         client: HELLO      server: WELCOME     client: INITIATE     server: READY
    CURVE         the same four, in boxes

A refusal is `ERROR`; libzmq's PLAIN server misspells it (a first byte `^` where the length belongs), and both forms
are understood. A temporary refusal closes without a word: a libzmq peer then comes back, after ERROR it never does.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import msgspec

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.framing import encode_command, split_command
from meshbus.edge.zmtp.metadata import SocketType, describe_socket, read_counterpart

_MISSPELT_ERROR = b"^RROR"


class Verdict(IntEnum):
    """What the application says to credentials: the status codes of ZAP."""

    ALLOW = 200
    LATER = 300
    """Not now: the connection closes, and a libzmq peer tries again."""
    DENY = 400
    FAILED = 500
    """The check itself did not work."""


class Credentials(msgspec.Struct, frozen=True):
    """What a peer shows to be let in."""

    mechanism: str
    username: str = ""
    """PLAIN; bytes that are not UTF-8 come as surrogate escapes."""
    password: str = msgspec.field(default="")
    """PLAIN."""
    public_key: bytes = b""
    """CURVE: the client's long-term key, which it has proved to hold."""
    address: str = ""
    """Where the peer comes from; filled in by the endpoint."""

    def __repr__(self) -> str:
        """Leave the password out: what is printed ends up in logs."""
        shown = self.username or self.public_key.hex()
        return f"Credentials({self.mechanism}, {shown!r}, address={self.address!r})"


class Step(msgspec.Struct, frozen=True):
    """What a handshake wants next."""

    send: bytes = b""
    ask: Credentials | None = None
    denied: Verdict | None = None
    """We turned the peer away; `send` tells it so."""
    properties: dict[str, bytes] | None = None
    """The peer's properties: the handshake is done."""


class Cipher(Protocol):
    """What seals and opens frames once a CURVE handshake is done."""

    def seal(self, frames: bytes) -> bytes:
        """Turn plain frames into sealed ones."""
        ...

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Open the body of one frame: flags as of a plain frame, and body. Raises Violation."""
        ...


class Handshake(Protocol):
    """One side of one handshake."""

    mechanism: bytes
    as_server: bool
    awaits: str
    """The command that is due from the peer, for people."""
    cipher: Cipher | None
    """Set when the handshake is done, where the mechanism encrypts."""

    def begin(self) -> Step:
        """Start, once both greetings are known to agree."""
        ...

    def receive(self, body: bytes) -> Step:
        """Take one command. Raises Violation."""
        ...

    def decide(self, verdict: Verdict) -> Step:
        """Go on with what the application said to the credentials."""
        ...


def refuse(verdict: Verdict) -> Step:
    """Turn the peer away."""
    if verdict is Verdict.LATER:
        return Step(denied=verdict)
    return Step(encode_command(b"ERROR", b"\x03%d" % verdict), denied=verdict)


def expect(body: bytes, name: bytes) -> bytes:
    """Give the data of the one command that may come now; an ERROR of the peer says that it refuses us."""
    if body.startswith(_MISSPELT_ERROR):
        found, data = b"ERROR", body[len(_MISSPELT_ERROR) :]
    else:
        found, data = split_command(body)
    if found == b"ERROR":
        told = data[1:].decode("utf-8", "replace") or "no reason given"
        raise Violation(CloseReason.REFUSED, f"the peer says: {told}")
    if found != name:
        raise Violation(CloseReason.UNEXPECTED, f"{found[:16]!r} where {name.decode()} is due")
    return data


class NullHandshake:
    """Both sides tell what they are; nobody proves anything."""

    mechanism = b"NULL"
    as_server = False
    awaits = "READY"
    cipher: Cipher | None = None

    def __init__(self, socket_type: SocketType, *, judged: bool = False) -> None:
        self._socket_type = socket_type
        self._judged = judged
        """The application decides by the peer's address."""

    def begin(self) -> Step:
        """Tell what we are, or ask first whether the peer may know."""
        return Step(ask=Credentials("NULL")) if self._judged else self._ready()

    def decide(self, verdict: Verdict) -> Step:
        """Tell what we are, or turn the peer away."""
        return self._ready() if verdict is Verdict.ALLOW else refuse(verdict)

    def receive(self, body: bytes) -> Step:
        """Read READY."""
        return Step(properties=read_counterpart(expect(body, b"READY"), self._socket_type))

    def _ready(self) -> Step:
        return Step(encode_command(b"READY", describe_socket(self._socket_type)))


class PlainClientHandshake:
    """Shows a name and a password, in clear text."""

    mechanism = b"PLAIN"
    as_server = False
    cipher: Cipher | None = None

    def __init__(self, socket_type: SocketType, username: bytes, password: bytes) -> None:
        self._socket_type = socket_type
        self._hello = bytes((len(username),)) + username + bytes((len(password),)) + password
        self.awaits = "WELCOME"

    def begin(self) -> Step:
        """Say HELLO."""
        return Step(encode_command(b"HELLO", self._hello))

    def receive(self, body: bytes) -> Step:
        """Read WELCOME, then READY."""
        data = expect(body, self.awaits.encode())
        if self.awaits == "READY":
            return Step(properties=read_counterpart(data, self._socket_type))
        if data:
            raise Violation(CloseReason.MALFORMED, "WELCOME with data")
        self.awaits = "READY"
        return Step(encode_command(b"INITIATE", describe_socket(self._socket_type)))

    def decide(self, verdict: Verdict) -> Step:
        """Fail: a client never asks."""
        raise AssertionError(verdict)


class PlainServerHandshake:
    """Asks the application about a name and a password."""

    mechanism = b"PLAIN"
    as_server = True
    cipher: Cipher | None = None

    def __init__(self, socket_type: SocketType) -> None:
        self._socket_type = socket_type
        self.awaits = "HELLO"

    def begin(self) -> Step:
        """Wait for the client."""
        return Step()

    def receive(self, body: bytes) -> Step:
        """Read HELLO, then INITIATE."""
        data = expect(body, self.awaits.encode())
        if self.awaits == "HELLO":
            return Step(ask=_read_hello(data))
        properties = read_counterpart(data, self._socket_type)
        return Step(encode_command(b"READY", describe_socket(self._socket_type)), properties=properties)

    def decide(self, verdict: Verdict) -> Step:
        """Welcome the client, or turn it away."""
        if verdict is not Verdict.ALLOW:
            return refuse(verdict)
        self.awaits = "INITIATE"
        return Step(encode_command(b"WELCOME"))


def _read_hello(data: bytes) -> Credentials:
    password_at = 1 + data[0] if data else 0
    if password_at >= len(data) or password_at + 1 + data[password_at] != len(data):
        raise Violation(CloseReason.MALFORMED, "HELLO is not a name and a password")
    username, password = data[1:password_at], data[password_at + 1 :]
    return Credentials("PLAIN", _text(username), _text(password))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
