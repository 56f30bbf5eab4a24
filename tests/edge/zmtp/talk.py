"""Two connected sessions, and captured streams to feed to one of them."""

from __future__ import annotations

import random
from typing import Any

from meshbus.edge.zmtp.curve import CurveClientHandshake, CurveServerHandshake, public_key_of
from meshbus.edge.zmtp.mechanism import (
    Handshake,
    NullHandshake,
    PlainClientHandshake,
    PlainServerHandshake,
    Verdict,
)
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.protocol import Heartbeat, Limits, Output, Session
from tests.vectors import load

CAPTURES: dict[str, dict[str, Any]] = {capture["name"]: capture for capture in load("pubsub")["zmtp"]["captures"]}
LIMITS = Limits(max_message_bytes=1 << 20, handshake_timeout_s=10)

SERVER_SECRET = bytes(range(1, 33))
CLIENT_SECRET = bytes(range(101, 133))


def stream(capture: str, side: str) -> bytes:
    """Return the captured bytes of one side of a connection."""
    return bytes.fromhex(CAPTURES[capture]["streams"][side])


def entropy(seed: int) -> Any:
    """Randomness that is the same in every run."""
    return random.Random(seed).randbytes


def session(
    socket_type: SocketType,
    handshake: Handshake | None = None,
    *,
    limits: Limits = LIMITS,
    heartbeat: Heartbeat | None = None,
) -> Session:
    """Make a session that starts at time 0."""
    return Session(socket_type, handshake or NullHandshake(socket_type), now=0.0, limits=limits, heartbeat=heartbeat)


def pair(
    mechanism: str, publisher: SocketType = SocketType.PUB, subscriber: SocketType = SocketType.SUB
) -> tuple[Session, Session]:
    """Make a publisher, which is the server, and a subscriber."""
    handshakes: dict[str, tuple[Handshake, Handshake]] = {
        "NULL": (NullHandshake(publisher), NullHandshake(subscriber)),
        "PLAIN": (PlainServerHandshake(publisher), PlainClientHandshake(subscriber, b"admin", b"secret")),
        "CURVE": (
            CurveServerHandshake(publisher, secret_key=SERVER_SECRET, entropy=entropy(1)),
            CurveClientHandshake(
                subscriber, server_key=public_key_of(SERVER_SECRET), secret_key=CLIENT_SECRET, entropy=entropy(2)
            ),
        ),
    }
    server, client = handshakes[mechanism]
    return session(publisher, server), session(subscriber, client)


def pump(left: Session, right: Session, verdict: Verdict = Verdict.ALLOW, *, now: float = 0.0) -> list[Output]:
    """Carry bytes between two sessions until both are quiet, with this verdict on credentials; return all outputs."""
    outputs: list[Output] = []
    due = [(left, right.greet()), (right, left.greet())]
    while due:
        to, data = due.pop(0)
        out = to.receive(data, now)
        outputs.append(out)
        if out.ask is not None:
            answered = to.decide(verdict, now)
            outputs.append(answered)
            out.send += answered.send
        if out.send:
            due.append((left if to is right else right, out.send))
    return outputs
