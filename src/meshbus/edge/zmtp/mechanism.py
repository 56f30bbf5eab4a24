"""Security handshakes after the greeting: the interface of all mechanisms, NULL and PLAIN. CURVE is in curve.py.

A handshake is one object per connection. It takes the peer's commands one by one and returns a `Step`: frames to send,
credentials for the application to check, or the peer's properties, which end the handshake. It asks for a verdict at
most once, and takes no further command until `decide` is called.

    NULL          both: READY
    PLAIN         client: HELLO      server: WELCOME     client: INITIATE     server: READY
    CURVE         the same four, in boxes

A refusal is `ERROR`. libzmq's PLAIN server misspells it, with `^` in place of the length byte (pubsub.md §3.4); both
forms are accepted. A temporary refusal closes the connection without ERROR: a libzmq peer then reconnects, after ERROR
it never does (pubsub.md §4).
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
    """Result of checking credentials; the values are ZAP status codes."""

    ALLOW = 200
    LATER = 300
    """Temporary failure: the connection is closed, and a libzmq peer tries again."""
    DENY = 400
    FAILED = 500
    """The check itself failed."""


class Credentials(msgspec.Struct, frozen=True):
    """Credentials of a peer, for the authenticate callback."""

    mechanism: str
    username: str = ""
    """PLAIN; bytes that are not UTF-8 become surrogate escapes."""
    password: str = msgspec.field(default="")
    """PLAIN."""
    public_key: bytes = b""
    """CURVE: the client's long-term public key; the handshake has verified that the client has its secret key."""
    address: str = ""
    """Address of the peer; set by the endpoint."""

    def __repr__(self) -> str:
        """Describe it without the password, because reprs end up in logs."""
        shown = self.username or self.public_key.hex()
        return f"Credentials({self.mechanism}, {shown!r}, address={self.address!r})"


class Step(msgspec.Struct, frozen=True):
    """Result of one step of a handshake."""

    send: bytes = b""
    ask: Credentials | None = None
    denied: Verdict | None = None
    """The peer was refused; `send` holds the ERROR for it, if any."""
    properties: dict[str, bytes] | None = None
    """The peer's properties; set when the handshake is done."""


class Cipher(Protocol):
    """Encrypts and decrypts frames after a CURVE handshake."""

    def seal(self, frames: bytes) -> bytes:
        """Encrypt plain frames."""
        ...

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Decrypt the body of one frame; return flags and body of the plain frame. Raises Violation."""
        ...


class Handshake(Protocol):
    """One side of one handshake."""

    mechanism: bytes
    as_server: bool
    awaits: str
    """Name of the command that the peer must send next, for messages."""
    cipher: Cipher | None
    """Set when the handshake is done, if the mechanism encrypts."""

    def begin(self) -> Step:
        """Start, after the greetings have agreed on the mechanism."""
        ...

    def receive(self, body: bytes) -> Step:
        """Handle one command. Raises Violation."""
        ...

    def decide(self, verdict: Verdict) -> Step:
        """Continue with the application's verdict on the credentials."""
        ...


def refuse(verdict: Verdict) -> Step:
    """Return the step that refuses the peer."""
    # pubsub.md §4: after ERROR a libzmq peer never reconnects, after a plain close it does.
    if verdict is Verdict.LATER:
        return Step(denied=verdict)
    return Step(encode_command(b"ERROR", b"\x03%d" % verdict), denied=verdict)


def expect(body: bytes, name: bytes) -> bytes:
    """Return the data of the expected command. Raises Violation for another command, and for ERROR."""
    # pubsub.md §3.4: in libzmq's misspelling `^` stands where the length byte 5 belongs.
    if body.startswith(_MISSPELT_ERROR):
        found, data = b"ERROR", body[len(_MISSPELT_ERROR) :]
    else:
        found, data = split_command(body)
    if found == b"ERROR":
        told = data[1:].decode("utf-8", "replace") or "no reason given"
        raise Violation(CloseReason.REFUSED, f"the peer sent ERROR: {told}")
    if found != name:
        raise Violation(CloseReason.UNEXPECTED, f"expected {name.decode()}, got {found[:16]!r}")
    return data


class NullHandshake:
    """NULL: both sides send their properties; no authentication."""

    mechanism = b"NULL"
    as_server = False
    awaits = "READY"
    cipher: Cipher | None = None

    def __init__(self, socket_type: SocketType, *, judged: bool = False) -> None:
        self._socket_type = socket_type
        self._judged = judged
        """Whether the application accepts or refuses the peer by its address."""

    def begin(self) -> Step:
        """Send READY, or first ask for a verdict on the peer's address."""
        return Step(ask=Credentials("NULL")) if self._judged else self._ready()

    def decide(self, verdict: Verdict) -> Step:
        """Send READY, or refuse the peer."""
        return self._ready() if verdict is Verdict.ALLOW else refuse(verdict)

    def receive(self, body: bytes) -> Step:
        """Handle READY."""
        return Step(properties=read_counterpart(expect(body, b"READY"), self._socket_type))

    def _ready(self) -> Step:
        return Step(encode_command(b"READY", describe_socket(self._socket_type)))


class PlainClientHandshake:
    """PLAIN, client: sends a name and a password in clear text."""

    mechanism = b"PLAIN"
    as_server = False
    cipher: Cipher | None = None

    def __init__(self, socket_type: SocketType, username: bytes, password: bytes) -> None:
        self._socket_type = socket_type
        self._hello = bytes((len(username),)) + username + bytes((len(password),)) + password
        self.awaits = "WELCOME"

    def begin(self) -> Step:
        """Send HELLO."""
        return Step(encode_command(b"HELLO", self._hello))

    def receive(self, body: bytes) -> Step:
        """Handle WELCOME, then READY."""
        data = expect(body, self.awaits.encode())
        if self.awaits == "READY":
            return Step(properties=read_counterpart(data, self._socket_type))
        if data:  # pubsub.md §3.4: exactly 8 bytes, the name alone
            raise Violation(CloseReason.MALFORMED, f"WELCOME must have no data, got {len(data)} bytes")
        self.awaits = "READY"
        return Step(encode_command(b"INITIATE", describe_socket(self._socket_type)))

    def decide(self, verdict: Verdict) -> Step:
        """Raise AssertionError: a client never asks for a verdict."""
        raise AssertionError(verdict)


class PlainServerHandshake:
    """PLAIN, server: asks the application to check a name and a password."""

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
        """Handle HELLO, then INITIATE."""
        data = expect(body, self.awaits.encode())
        if self.awaits == "HELLO":
            return Step(ask=_read_hello(data))
        properties = read_counterpart(data, self._socket_type)
        return Step(encode_command(b"READY", describe_socket(self._socket_type)), properties=properties)

    def decide(self, verdict: Verdict) -> Step:
        """Send WELCOME, or refuse the client."""
        if verdict is not Verdict.ALLOW:
            return refuse(verdict)
        self.awaits = "INITIATE"  # a client cannot skip the verdict: INITIATE is refused until here
        return Step(encode_command(b"WELCOME"))


def _read_hello(data: bytes) -> Credentials:
    password_at = 1 + data[0] if data else 0
    # pubsub.md §3.4: exactly a name and a password, without trailing bytes.
    if password_at >= len(data) or password_at + 1 + data[password_at] != len(data):
        raise Violation(CloseReason.MALFORMED, "HELLO does not hold exactly a name and a password")
    username, password = data[1:password_at], data[password_at + 1 :]
    return Credentials("PLAIN", _text(username), _text(password))


def _text(raw: bytes) -> str:
    # Any byte survives, so that a password that is not UTF-8 can still be compared.
    return raw.decode("utf-8", "surrogateescape")
