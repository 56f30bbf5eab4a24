"""ZMTP sessions: whatever the other side of a connection sends, and however it is split into reads.

A session never raises. What it delivers must not depend on the split: every input is fed as it is cut, and again as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from fuzz.pieces import cut
from fuzz.target import Run, Target
from meshbus.edge.hub import PubSubHub
from meshbus.edge.zmtp.closereason import Violation
from meshbus.edge.zmtp.curve import CurveClientHandshake, CurveServerHandshake, public_key_of
from meshbus.edge.zmtp.framing import encode_frame, message_buffers
from meshbus.edge.zmtp.greeting import decode_greeting
from meshbus.edge.zmtp.mechanism import Handshake, NullHandshake, PlainClientHandshake, PlainServerHandshake, Verdict
from meshbus.edge.zmtp.metadata import SocketType, decode_metadata
from meshbus.edge.zmtp.protocol import Heartbeat, Interest, Limits, Output, Session

_SERVER_KEY, _CLIENT_KEY = bytes(range(1, 33)), bytes(range(2, 34))
_LIMITS = Limits(max_message_bytes=4096)
_HEARTBEAT = Heartbeat(interval_s=1.0, ttl_s=3.0)
_VERDICTS = (Verdict.ALLOW, Verdict.ALLOW, Verdict.LATER, Verdict.DENY, Verdict.FAILED)
_TYPES = (SocketType.PUB, SocketType.SUB, SocketType.XPUB, SocketType.XSUB)

Make = Callable[[SocketType], Handshake]


def _entropy() -> Callable[[int], bytes]:
    return Random(0).randbytes


_MECHANISMS: Sequence[Make] = (
    NullHandshake,
    lambda kind: NullHandshake(kind, judged=True),
    lambda kind: PlainClientHandshake(kind, b"name", b"password"),
    PlainServerHandshake,
    lambda kind: CurveServerHandshake(kind, secret_key=_SERVER_KEY, entropy=_entropy()),
    lambda kind: CurveClientHandshake(
        kind, server_key=public_key_of(_SERVER_KEY), secret_key=_CLIENT_KEY, entropy=_entropy()
    ),
)


class _Heard:
    """Everything that a session delivered."""

    def __init__(self, session: Session, verdict: Verdict) -> None:
        self._session = session
        self._verdict = verdict
        self.messages: list[tuple[bytes, ...]] = []
        self.requests: list[object] = []
        self.reason: object = None

    def feed(self, data: bytes, now: float) -> None:
        self._take(self._session.receive(data, now), now)

    def finish(self, now: float) -> None:
        for _ in range(4):
            at = self._session.next_timer()
            if at is None:
                break
            now = max(now, at)
            self._take(self._session.tick(now), now)
        self._take(self._session.end(), now)
        assert self._session.next_timer() is None

    def _take(self, out: Output, now: float) -> None:
        self.messages += out.messages
        self.requests += out.requests
        if out.closed is not None:
            assert self.reason is None, "a session closes once"
            self.reason = out.closed.reason
        if out.ask is not None:
            self._take(self._session.decide(self._verdict, now), now)


def _session(data: bytes) -> None:
    """Feed a session; the first byte chooses socket type, mechanism and verdict."""
    if not data:
        return
    choice, rest = data[0], list(cut(data[1:]))
    heard = []
    for reads in (rest, [b"".join(rest)]):
        kind = _TYPES[choice % 4]
        made = _MECHANISMS[choice // 4 % len(_MECHANISMS)](kind)
        session = Session(kind, made, now=0.0, limits=_LIMITS, heartbeat=_HEARTBEAT)
        session.greet()
        found = _Heard(session, _VERDICTS[choice % len(_VERDICTS)])
        for read in reads:
            found.feed(read, 0.0)
        heard.append((found.messages, found.requests, found.reason))
        found.finish(0.0)
        _subscribe(found.requests)
    assert heard[0] == heard[1], "what a session delivers depends on how the stream was split"


def _subscribe(requests: Sequence[object]) -> None:
    """Let a hub take the subscriptions, and publish to them."""
    hub = PubSubHub(message_buffers)
    hub.peer_up(b"peer", 1)
    for request in requests:
        if isinstance(request, Interest):
            (hub.subscribe if request.subscribe else hub.unsubscribe)(b"peer", 1, request.prefix)
            hub.publish((request.prefix + b"x", b"body"))
    while hub.take(b"peer", 1, 1 << 16):
        pass
    hub.peer_down(b"peer", 1)
    assert not hub.prefixes()


def _curve() -> Run:
    """Send frames with right boxes and any content, from both sides of a connection that is ready."""

    def run(data: bytes) -> None:
        kinds = (SocketType.XSUB, SocketType.XPUB)
        client = Session(kinds[0], _MECHANISMS[5](kinds[0]), now=0.0, limits=_LIMITS)
        server = Session(kinds[1], _MECHANISMS[4](kinds[1]), now=0.0, limits=_LIMITS)
        heard = [_Heard(client, Verdict.ALLOW), _Heard(server, Verdict.ALLOW)]
        up, down = client.greet(), server.greet()
        while up or down:
            up, down = _answers(client, down), _answers(server, up)
        assert client.is_ready
        assert server.is_ready
        for piece in cut(data):
            if not piece:
                continue
            sender, receiver = ((client, heard[1]), (server, heard[0]))[piece[0] >> 7]
            receiver.feed(sender.seal(encode_frame(piece[1:], piece[0] & 7)), 0.0)
        for one in heard:
            one.finish(0.0)

    return run


def _answers(session: Session, data: bytes) -> bytes:
    out = session.receive(data, 0.0)
    return out.send + (session.decide(Verdict.ALLOW, 0.0).send if out.ask is not None else b"")


TARGETS: tuple[Target, ...] = (
    Target("zmtp", lambda: _session, (), most_bytes=4096),
    Target("zmtp-curve", _curve, ()),
    Target("zmtp-greeting", lambda: decode_greeting, (Violation,), most_bytes=128),
    Target("zmtp-metadata", lambda: decode_metadata, (Violation,)),
)
