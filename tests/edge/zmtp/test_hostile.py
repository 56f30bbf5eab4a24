"""Hostile streams: for any bytes in any pieces, a session stays bounded and ends with a named reason."""

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest

from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.curve import CurveClientHandshake, CurveServerHandshake, public_key_of
from meshbus.edge.zmtp.framing import encode_command, encode_frame, encode_message
from meshbus.edge.zmtp.greeting import encode_greeting
from meshbus.edge.zmtp.mechanism import NullHandshake, PlainClientHandshake, PlainServerHandshake, Verdict
from meshbus.edge.zmtp.metadata import SocketType, describe_socket
from meshbus.edge.zmtp.protocol import HANDSHAKE_BYTES, MAX_PONGS, PART_BYTES, Limits, Session
from tests.edge.zmtp.talk import CAPTURES, CLIENT_SECRET, SERVER_SECRET, entropy

LIMITS = Limits(max_message_bytes=2_000)
GATE_STREAMS = 20_000
SOAK_STREAMS = 1_000_000
CURVE_EVERY = 20
"""One stream in this many uses CURVE, whose handshake costs as much as dozens of others."""

Make = Callable[[], Session]


def _session(kind: SocketType, handshake: object) -> Session:
    return Session(kind, handshake, now=0.0, limits=LIMITS)  # type: ignore[arg-type]


def _transcripts() -> tuple[list[tuple[Make, bytes]], list[tuple[Make, bytes]]]:
    """Valid streams to start from: what a peer of each kind of session would send, without and with CURVE."""
    pub, sub, xpub, xsub = SocketType.PUB, SocketType.SUB, SocketType.XPUB, SocketType.XSUB
    ready_sub, ready_pub = (encode_command(b"READY", describe_socket(kind)) for kind in (sub, pub))
    requests = (
        encode_command(b"SUBSCRIBE", b"A" * 245)
        + encode_frame(b"\x01B")
        + encode_command(b"PING", b"\x00\x0acontext")
        + encode_command(b"CANCEL", b"B")
        + encode_message([b"up", b"", b"stream"])
    )
    messages = encode_message([b"topic", b"body", b""]) + encode_message([b"x" * 300]) + encode_command(b"PONG")
    null, plain = encode_greeting(b"NULL"), encode_greeting(b"PLAIN")
    cheap: list[tuple[Make, bytes]] = [
        (lambda: _session(pub, NullHandshake(pub)), null + ready_sub + requests),
        (lambda: _session(xpub, NullHandshake(xpub, judged=True)), null + ready_sub + requests),
        (lambda: _session(sub, NullHandshake(sub)), null + ready_pub + messages),
        (lambda: _session(xsub, NullHandshake(xsub)), null + ready_pub + messages),
        (
            lambda: _session(pub, PlainServerHandshake(pub)),
            plain
            + encode_command(b"HELLO", b"\x05admin\x06secret")
            + encode_command(b"INITIATE", describe_socket(sub))
            + requests,
        ),
        (
            lambda: _session(sub, PlainClientHandshake(sub, b"admin", b"secret")),
            plain + encode_command(b"WELCOME") + ready_pub + messages,
        ),
    ]
    streams = {name: CAPTURES[name]["streams"] for name in ("curve_libzmq_pub", "curve_libzmq_sub")}
    curve: list[tuple[Make, bytes]] = [
        (
            lambda: _session(pub, CurveServerHandshake(pub, secret_key=SERVER_SECRET, entropy=entropy(1))),
            bytes.fromhex(streams["curve_libzmq_sub"]["client"]),
        ),
        (
            lambda: _session(
                sub,
                CurveClientHandshake(
                    sub, server_key=public_key_of(SERVER_SECRET), secret_key=CLIENT_SECRET, entropy=entropy(2)
                ),
            ),
            bytes.fromhex(streams["curve_libzmq_pub"]["server"]),
        ),
    ]
    return cheap, curve


def _damage(rng: random.Random, stream: bytes, others: list[tuple[Make, bytes]]) -> bytes:
    """Spoil a stream in one to three ways."""
    data = bytearray(stream)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0:
                del data[place : place + rng.randint(1, 80)]
            case 1:
                data[place:place] = rng.randbytes(rng.randint(1, 80))
            case 2:
                other = rng.choice(others)[1]
                data[place:] = other[rng.randrange(len(other)) :]
            case 3:
                data[place:place] = bytes((rng.choice([2, 3, 6]),)) + rng.choice(
                    [rng.randrange(4_000), 1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1]
                ).to_bytes(8, "big")
            case 4:
                data[place:place] = encode_command(rng.randbytes(rng.randrange(6)), rng.randbytes(rng.randrange(30)))
            case 5:
                data[place:place] = data[rng.randrange(len(data) + 1) :]
            case _:
                if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _play(rng: random.Random, session: Session, data: bytes) -> CloseReason | None:
    """Feed a stream in random pieces; return how the session ended."""
    at = 0
    while at < len(data):
        count = rng.choice([1, 2, 30, 300, len(data)])
        out = session.receive(data[at : at + count], 0.0)
        at += count
        if out.ask is not None:
            out = session.decide(rng.choice(list(Verdict)), 0.0)
        assert len(out.send) <= 400 + MAX_PONGS * 60
        assert session._reader.held <= max(HANDSHAKE_BYTES, LIMITS.max_message_bytes + PART_BYTES) + count + 9
        assert session._parts_bytes <= LIMITS.max_message_bytes + PART_BYTES
        if out.closed is not None:
            assert session.next_timer() is None
            return out.closed.reason
    timer = session.next_timer()
    assert timer is None or session.tick(timer).closed is not None
    return None


def _fuzz(streams: int, seed: int) -> Counter[CloseReason | None]:
    rng = random.Random(seed)
    cheap, curve = _transcripts()
    found: Counter[CloseReason | None] = Counter()
    for number in range(streams):
        make, stream = rng.choice(curve if number % CURVE_EVERY == 0 else cheap)
        data = rng.randbytes(rng.randrange(200)) if number % 50 == 1 else _damage(rng, stream, cheap)
        try:
            found[_play(rng, make(), data)] += 1
        except Exception as error:
            raise AssertionError(f"stream {number} of seed {seed}: {data.hex()}") from error
    return found


EXPECTED = {
    CloseReason.BAD_SIGNATURE,
    CloseReason.OLD_VERSION,
    CloseReason.MECHANISM_MISMATCH,
    CloseReason.INCOMPATIBLE_SOCKET,
    CloseReason.BAD_FLAGS,
    CloseReason.MALFORMED,
    CloseReason.TOO_LONG,
    CloseReason.UNEXPECTED,
    CloseReason.BAD_BOX,
    CloseReason.DENIED,
}


def test_damaged_streams_end_by_name() -> None:
    found = _fuzz(GATE_STREAMS, seed=7)
    assert set(found) >= EXPECTED, "the fuzz reaches every check"


@pytest.mark.soak
def test_a_million_damaged_streams_end_by_name() -> None:
    found: Counter[CloseReason | None] = Counter()
    for seed in range(SOAK_STREAMS // GATE_STREAMS):
        found += _fuzz(GATE_STREAMS, seed=1000 + seed)
    assert sum(found.values()) == SOAK_STREAMS
    assert set(found) >= EXPECTED


@pytest.mark.parametrize("length", [LIMITS.max_message_bytes, 1 << 30, (1 << 64) - 1])
def test_an_announced_length_costs_nothing(length: int) -> None:
    session = _session(SocketType.SUB, NullHandshake(SocketType.SUB))
    session.receive(encode_greeting(b"NULL") + encode_command(b"READY"), 0.0)
    tracemalloc.start()
    try:
        out = session.receive(b"\x02" + length.to_bytes(8, "big"), 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000
    assert (out.closed is None) == (length <= LIMITS.max_message_bytes)


def test_a_frame_in_the_smallest_pieces_is_not_copied_again_and_again() -> None:
    """Two bytes at a time: collecting them must take linear time and memory."""
    session = Session(SocketType.SUB, NullHandshake(SocketType.SUB), now=0.0, limits=Limits(max_message_bytes=1 << 20))
    session.receive(encode_greeting(b"NULL") + encode_command(b"READY"), 0.0)
    body = bytes(40_000)
    data = encode_frame(body)
    tracemalloc.start()
    try:
        outputs = [session.receive(data[at : at + 2], 0.0).messages for at in range(0, len(data), 2)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outputs[-1] == [(body,)]
    assert peak < 100 * len(body), "the list of outputs is most of it"
