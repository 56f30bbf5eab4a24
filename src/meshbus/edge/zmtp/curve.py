"""CURVE: the handshake that authenticates keys, and the encryption of every later frame (pubsub.md §3.5).

Each side has a long-term key pair and makes a transient one per connection. The client knows the server's long-term
key in advance. After four commands both have a shared key, derived from the transient keys only, and the server knows
the client's long-term key, which the application checks. The primitives are libsodium's.

    HELLO     client → server   its transient key, and a box that only the owner of the server key can open
    WELCOME   server → client   the server's transient key, and a cookie to return
    INITIATE  client → server   the cookie, the client's long-term key, and a vouch that ties it to the transient key
    READY     server → client   the server's properties

Counters start at 1 in each direction and must increase. A MESSAGE carries one frame: its flags (here MORE is 1 and
COMMAND is 2) and its body. libzmq sends MESSAGE as a data frame, other implementations as a command; both are accepted.
"""

from __future__ import annotations

from collections.abc import Callable

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.framing import COMMAND, MORE, FrameReader, encode_command, encode_frame
from meshbus.edge.zmtp.mechanism import Cipher, Credentials, Step, Verdict, expect, refuse
from meshbus.edge.zmtp.metadata import SocketType, describe_socket, read_counterpart

KEY_BYTES = 32
BOX_BYTES = 16
"""Bytes that a box adds: the Poly1305 tag."""

_COOKIE_BYTES = 96
_VOUCH_BYTES = 16 + 2 * KEY_BYTES + BOX_BYTES
_MESSAGE = b"\x07MESSAGE"
_MESSAGE_HEAD = len(_MESSAGE) + 8
_INNER_MORE, _INNER_COMMAND = 1, 2

Entropy = Callable[[int], bytes]


def public_key_of(secret_key: bytes) -> bytes:
    """Return the public key of a secret key."""
    return sodium.crypto_scalarmult_base(secret_key)


class _Counter:
    """Counts sent boxes, and checks that the peer's counter increases."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0

    def next(self) -> bytes:
        self.sent += 1
        return self.sent.to_bytes(8, "big")

    def check(self, told: bytes) -> None:
        number = int.from_bytes(told, "big")
        if number <= self.received:
            raise Violation(CloseReason.REPLAYED, f"counter {number} follows {self.received}; it must increase")
        self.received = number


class CurveCipher:
    """Encrypts and decrypts frames with the key of one connection."""

    __slots__ = ("_counter", "_key", "_open_prefix", "_seal_prefix")

    def __init__(self, key: bytes, counter: _Counter, *, as_server: bool) -> None:
        self._key = key
        self._counter = counter
        # pubsub.md §3.5: a prefix per direction, because both directions share a key and count from 1.
        prefixes = b"CurveZMQMESSAGES", b"CurveZMQMESSAGEC"
        self._seal_prefix, self._open_prefix = prefixes if as_server else prefixes[::-1]

    def seal(self, frames: bytes) -> bytes:
        """Encrypt complete plain frames that were encoded here."""
        reader = FrameReader()
        reader.feed(frames)
        sealed = []
        for flags, body in reader.frames(len(frames)):
            number = self._counter.next()
            inner = bytes(((flags & MORE) | (_INNER_COMMAND if flags & COMMAND else 0),)) + body
            box = sodium.crypto_box_easy_afternm(inner, self._seal_prefix + number, self._key)
            sealed.append(encode_frame(_MESSAGE + number + box))
        return b"".join(sealed)

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Decrypt the body of one frame; return flags and body of the plain frame. Raises Violation."""
        if not body.startswith(_MESSAGE) or len(body) < _MESSAGE_HEAD + BOX_BYTES + 1:
            raise Violation(CloseReason.UNEXPECTED, "expected a CURVE MESSAGE, got another frame")
        # Decrypt before the counter is checked: only an authenticated counter may advance the state.
        number = body[len(_MESSAGE) : _MESSAGE_HEAD]
        inner = _unbox(body[_MESSAGE_HEAD:], self._open_prefix + number, self._key, "MESSAGE")
        self._counter.check(number)
        flags = inner[0]
        if flags & ~(_INNER_MORE | _INNER_COMMAND) or flags == _INNER_MORE | _INNER_COMMAND:
            raise Violation(CloseReason.BAD_FLAGS, f"invalid CURVE flags {flags:#04x}")
        return (COMMAND if flags & _INNER_COMMAND else flags), inner[1:]


class CurveClientHandshake:
    """CURVE, client: knows the server's key, and authenticates with its own."""

    mechanism = b"CURVE"
    as_server = False

    def __init__(self, socket_type: SocketType, *, server_key: bytes, secret_key: bytes, entropy: Entropy) -> None:
        self._socket_type = socket_type
        self._server_key = server_key
        self._secret_key = secret_key
        self._entropy = entropy
        self._transient = entropy(KEY_BYTES)
        self._counter = _Counter()
        self._session_key = b""
        self.awaits = "WELCOME"
        self.cipher: Cipher | None = None

    def begin(self) -> Step:
        """Send HELLO."""
        # The box of zeros shows that the client knows the server's public key and owns the transient key.
        number = self._counter.next()
        proof = sodium.crypto_box_easy_afternm(
            bytes(64), b"CurveZMQHELLO---" + number, _shared(self._server_key, self._transient)
        )
        # Version 1.0, then 72 zeros: HELLO must be longer than WELCOME, so that it cannot amplify traffic.
        data = b"\x01\x00" + bytes(72) + public_key_of(self._transient) + number + proof
        return Step(encode_command(b"HELLO", data))

    def receive(self, body: bytes) -> Step:
        """Handle WELCOME, then READY."""
        data = expect(body, self.awaits.encode())
        return self._welcome(data) if self.awaits == "WELCOME" else self._ready(data)

    def decide(self, verdict: Verdict) -> Step:
        """Raise AssertionError: a client never asks for a verdict."""
        raise AssertionError(verdict)

    def _welcome(self, data: bytes) -> Step:
        # pubsub.md §3.5: WELCOME has exactly 168 bytes.
        if len(data) != 16 + KEY_BYTES + _COOKIE_BYTES + BOX_BYTES:
            raise Violation(CloseReason.MALFORMED, f"WELCOME has a wrong length: {len(data)} bytes")
        opened = _unbox(data[16:], b"WELCOME-" + data[:16], _shared(self._server_key, self._transient), "WELCOME")
        server_transient, cookie = opened[:KEY_BYTES], opened[KEY_BYTES:]
        self._session_key = _shared(server_transient, self._transient)
        # The vouch ties the long-term key to the transient one and names the server, so that a server cannot present
        # it to another server and pass for the client.
        vouch_nonce = self._entropy(16)
        vouch = sodium.crypto_box_easy_afternm(
            public_key_of(self._transient) + self._server_key,
            b"VOUCH---" + vouch_nonce,
            _shared(server_transient, self._secret_key),
        )
        inner = public_key_of(self._secret_key) + vouch_nonce + vouch + describe_socket(self._socket_type)
        number = self._counter.next()
        box = sodium.crypto_box_easy_afternm(inner, b"CurveZMQINITIATE" + number, self._session_key)
        self.awaits = "READY"
        return Step(encode_command(b"INITIATE", cookie + number + box))

    def _ready(self, data: bytes) -> Step:
        if len(data) < 8 + BOX_BYTES:
            raise Violation(CloseReason.MALFORMED, f"READY is too short: {len(data)} bytes")
        metadata = _unbox(data[8:], b"CurveZMQREADY---" + data[:8], self._session_key, "READY")
        self._counter.check(data[:8])
        self.cipher = CurveCipher(self._session_key, self._counter, as_server=False)
        return Step(properties=read_counterpart(metadata, self._socket_type))


class CurveServerHandshake:
    """CURVE, server: authenticates with its key, and asks the application to check the client's."""

    mechanism = b"CURVE"
    as_server = True

    def __init__(self, socket_type: SocketType, *, secret_key: bytes, entropy: Entropy) -> None:
        self._socket_type = socket_type
        self._secret_key = secret_key
        self._entropy = entropy
        self._transient = entropy(KEY_BYTES)
        self._cookie = entropy(_COOKIE_BYTES)
        """Opaque to the client. It carries nothing, because the server keeps the state of the connection here."""
        self._counter = _Counter()
        self._client_transient = b""
        self._properties: dict[str, bytes] = {}
        self.awaits = "HELLO"
        self.cipher: Cipher | None = None

    def begin(self) -> Step:
        """Wait for the client."""
        return Step()

    def receive(self, body: bytes) -> Step:
        """Handle HELLO, then INITIATE."""
        data = expect(body, self.awaits.encode())
        return self._hello(data) if self.awaits == "HELLO" else self._initiate(data)

    def decide(self, verdict: Verdict) -> Step:
        """Send READY, or refuse the client."""
        if verdict is not Verdict.ALLOW:
            return refuse(verdict)
        key = _shared(self._client_transient, self._transient)
        number = self._counter.next()
        box = sodium.crypto_box_easy_afternm(describe_socket(self._socket_type), b"CurveZMQREADY---" + number, key)
        self.cipher = CurveCipher(key, self._counter, as_server=True)
        return Step(encode_command(b"READY", number + box), properties=self._properties)

    def _hello(self, data: bytes) -> Step:
        # pubsub.md §3.5: HELLO has 200 bytes, 6 of which are its name.
        if len(data) != 194:
            raise Violation(CloseReason.MALFORMED, f"HELLO must have 194 bytes of data, got {len(data)}")
        if data[0] != 1:
            raise Violation(CloseReason.OLD_VERSION, f"the peer uses CurveZMQ {data[0]}.{data[1]}; 1.0 is required")
        self._client_transient, number = data[74:106], data[106:114]
        key = _shared(self._client_transient, self._secret_key)
        _unbox(data[114:], b"CurveZMQHELLO---" + number, key, "HELLO")
        self._counter.check(number)
        nonce = self._entropy(16)
        inner = public_key_of(self._transient) + self._cookie
        self.awaits = "INITIATE"
        return Step(encode_command(b"WELCOME", nonce + sodium.crypto_box_easy_afternm(inner, b"WELCOME-" + nonce, key)))

    def _initiate(self, data: bytes) -> Step:
        number, box = data[_COOKIE_BYTES : _COOKIE_BYTES + 8], data[_COOKIE_BYTES + 8 :]
        if len(box) < KEY_BYTES + _VOUCH_BYTES + BOX_BYTES:
            raise Violation(CloseReason.MALFORMED, f"INITIATE is too short: {len(data)} bytes")
        # The cookie is not a secret of this comparison: it was sent to the client, so no constant time is needed.
        if data[:_COOKIE_BYTES] != self._cookie:
            raise Violation(CloseReason.BAD_BOX, "the cookie in INITIATE is not the one of WELCOME")
        key = _shared(self._client_transient, self._transient)
        inner = _unbox(box, b"CurveZMQINITIATE" + number, key, "INITIATE")
        self._counter.check(number)
        client_key, vouch = inner[:KEY_BYTES], inner[KEY_BYTES : KEY_BYTES + _VOUCH_BYTES]
        vouched = _unbox(vouch[16:], b"VOUCH---" + vouch[:16], _shared(client_key, self._transient), "vouch")
        # pubsub.md §3.5: libzmq checks only the client's half; both halves are checked here.
        if vouched != self._client_transient + public_key_of(self._secret_key):
            raise Violation(CloseReason.BAD_BOX, "the vouch in INITIATE is for other keys")
        self._properties = read_counterpart(inner[KEY_BYTES + _VOUCH_BYTES :], self._socket_type)
        return Step(ask=Credentials("CURVE", public_key=client_key))


def _shared(public_key: bytes, secret_key: bytes) -> bytes:
    # libsodium raises for a public key of low order, which would give a shared key that anyone knows.
    try:
        return sodium.crypto_box_beforenm(public_key, secret_key)
    except CryptoError:
        raise Violation(CloseReason.BAD_BOX, "the public key is invalid: it gives no shared secret") from None


def _unbox(box: bytes, nonce: bytes, key: bytes, what: str) -> bytes:
    try:
        return sodium.crypto_box_open_easy_afternm(box, nonce, key)
    except CryptoError:
        raise Violation(CloseReason.BAD_BOX, f"cannot decrypt {what}: wrong key or tampering") from None
