import asyncio
import socket  # noqa: TID251 - the other end
from collections.abc import Iterator
from typing import Any

import pytest

from meshbus.edge.connection import Connection
from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.framing import encode_command, encode_message
from meshbus.edge.zmtp.mechanism import Credentials, NullHandshake, Verdict
from meshbus.edge.zmtp.metadata import SocketType, describe_socket
from meshbus.edge.zmtp.protocol import Closed, Heartbeat, Interest, Limits, Session
from tests.edge.raw import GREETING, READY, run_loop

CONTROL_BYTES = 10_000


class Owner:
    """Records the callbacks of a connection."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_judge(self, _: Connection, credentials: Credentials) -> None:
        self.told.append(("judge", credentials))

    def on_ready(self, _: Connection) -> None:
        self.told.append(("ready", None))

    def on_messages(self, _: Connection, messages: Any) -> None:
        self.told.append(("messages", messages))

    def on_requests(self, _: Connection, requests: Any) -> None:
        self.told.append(("requests", requests))

    def on_idle(self, _: Connection) -> None:
        self.told.append(("idle", None))

    def on_closed(self, _: Connection, closed: Closed) -> None:
        self.told.append(("closed", closed.reason))


class Stage:
    """A connection, its owner, and the raw socket at the other end."""

    def __init__(
        self, kind: SocketType = SocketType.PUB, *, judged: bool = False, heartbeat: Heartbeat | None = None
    ) -> None:
        mine, self.other = socket.socketpair()
        mine.setblocking(False)
        self.other.setblocking(False)
        self.owner = Owner()
        session = Session(
            kind,
            NullHandshake(kind, judged=judged),
            now=asyncio.get_running_loop().time(),
            limits=Limits(max_message_bytes=1000, handshake_timeout_s=0.02),
            heartbeat=heartbeat,
        )
        self.connection = Connection(7, mine, session, self.owner, address="somewhere", max_control_bytes=CONTROL_BYTES)

    async def shake_hands(self) -> None:
        self.other.send(GREETING + encode_command(b"READY", describe_socket(SocketType.SUB)))
        await run_loop()

    def fill(self) -> None:
        """Make the stream busy: the other end does not read."""
        self.connection.send([bytes(5_000_000)])
        assert not self.connection.idle


@pytest.fixture
def stages() -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.connection.close()
        stage.other.close()


async def test_from_the_greeting_to_the_end(stages: list[Stage]) -> None:
    stages.append(stage := Stage())
    assert stage.other.recv(100) == GREETING
    await stage.shake_hands()
    assert stage.connection.info.peer_type == "SUB"
    assert stage.connection.idle
    stage.other.send(encode_command(b"SUBSCRIBE", b"A"))
    await run_loop()
    stage.other.close()
    await run_loop()
    assert stage.owner.told == [
        ("ready", None),
        ("requests", [Interest(b"A", subscribe=True)]),
        ("closed", CloseReason.EOF),
    ]
    stage.connection.close()
    assert len(stage.owner.told) == 3, "the end is told once"


async def test_control_data_goes_before_and_between_messages(stages: list[Stage]) -> None:
    stages.append(stage := Stage())
    await stage.shake_hands()
    stage.fill()
    stage.other.send(encode_command(b"PING", b"\0\0one"))
    await run_loop()
    received = bytearray()
    while ("idle", None) not in stage.owner.told:
        await run_loop(2)
        try:
            received += stage.other.recv(1 << 20)
        except BlockingIOError:
            continue
    assert bytes(received[-12:]).endswith(b"\x04PONGone")


async def test_a_peer_that_causes_answers_and_does_not_read_them(stages: list[Stage]) -> None:
    stages.append(stage := Stage())
    await stage.shake_hands()
    stage.fill()
    for _ in range(CONTROL_BYTES // 10):
        stage.other.send(encode_command(b"PING", b"\0\0" + b"c" * 16))
        await run_loop(2)
        if stage.connection.closed:
            break
    assert stage.owner.told[-1] == ("closed", CloseReason.STALLED)


async def test_a_verdict_that_takes_its_time(stages: list[Stage]) -> None:
    stages.append(stage := Stage(judged=True))
    await stage.shake_hands()
    assert stage.owner.told == [("judge", Credentials("NULL"))]
    stage.connection.decide(Verdict.ALLOW)
    assert stage.owner.told[-1] == ("ready", None)
    stage.connection.close()
    stage.connection.decide(Verdict.ALLOW)


async def test_a_refused_peer_gets_an_error_before_the_close(stages: list[Stage]) -> None:
    stages.append(stage := Stage(judged=True))
    await stage.shake_hands()
    stage.connection.decide(Verdict.DENY)
    assert stage.other.recv(1000).endswith(b"\x05ERROR\x03400")
    assert stage.owner.told[-1] == ("closed", CloseReason.DENIED)


async def test_the_clock_ends_a_handshake_and_keeps_heartbeats(stages: list[Stage]) -> None:
    stages += [slow := Stage(), alive := Stage(heartbeat=Heartbeat(interval_s=0.01, timeout_s=5))]
    await alive.shake_hands()
    while not slow.connection.closed:  # noqa: ASYNC110 - the clock is waited for
        await asyncio.sleep(0.005)
    assert slow.owner.told == [("closed", CloseReason.HANDSHAKE_TIMEOUT)]
    assert b"\x04PING" in alive.other.recv(1000)
    assert alive.connection.closed is None


async def test_silence_proves_nothing_while_we_do_not_listen(stages: list[Stage]) -> None:
    stages.append(stage := Stage(SocketType.SUB, heartbeat=Heartbeat(interval_s=0.005)))
    stage.other.send(GREETING + READY)
    await run_loop()
    stage.connection.pause()
    await asyncio.sleep(0.1)
    assert stage.other.recv(10_000).count(b"\x04PING") > 2
    assert stage.owner.told == [("ready", None)]
    stage.connection.resume()
    while not stage.connection.closed:  # noqa: ASYNC110 - the clock is waited for
        await asyncio.sleep(0.005)
    assert stage.owner.told[-1] == ("closed", CloseReason.SILENT)


async def test_a_subscriber_sends_subscriptions_and_receives(stages: list[Stage]) -> None:
    stages.append(stage := Stage(SocketType.SUB))
    stage.connection.send_interests([Interest(b"too early", subscribe=True)])
    stage.connection.send_upstream(encode_message([b"too early"]))
    stage.other.send(GREETING + READY)
    await run_loop()
    stage.connection.send_interests([Interest(b"A", subscribe=True), Interest(b"B", subscribe=False)])
    stage.connection.send_upstream(encode_message([b"up"]))
    sent = stage.other.recv(1000)
    assert sent.endswith(encode_command(b"SUBSCRIBE", b"A") + encode_command(b"CANCEL", b"B") + encode_message([b"up"]))
    assert b"too early" not in sent
    stage.connection.pause()
    stage.other.send(encode_message([b"A", b"x"]))
    await run_loop()
    assert stage.owner.told == [("ready", None)]
    stage.connection.resume()
    await run_loop()
    assert stage.owner.told[-1] == ("messages", [(b"A", b"x")])
