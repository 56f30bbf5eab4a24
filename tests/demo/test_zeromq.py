"""The ZeroMQ applications of the demo, with plain ZeroMQ sockets at the other end."""

import asyncio
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from meshbus.demo.process import Process
from meshbus.demo.zeromq import ANSWER, FORBIDDEN, Await, Order, Ready, Sent, Shown
from tests.patience import PATIENCE_S


def application(kind: str, port: int, tmp_path: Path) -> Process[Ready | Sent | Shown]:
    command = ("-m", "meshbus.demo.zeromq", kind, f"tcp://127.0.0.1:{port}")
    return Process(kind, *command, says=ANSWER.decode, errors=tmp_path / "err")


async def test_a_dispatcher_sends_orders_and_some_that_it_may_not(tmp_path: Path) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as desk:
        port = desk.bind_to_random_port("tcp://127.0.0.1")
        desk.subscribe(b"")
        first = asyncio.ensure_future(
            desk.recv_multipart()
        )  # a socket takes connections while it is asked for messages
        async with asyncio.timeout(PATIENCE_S), application("dispatcher", port, tmp_path) as app:
            assert await app.answer() == Ready()
            app.tell(msgspec.json.encode(Order(2, 100)) + b"\n")
            assert await app.answer() == Sent(2, FORBIDDEN)
            found = [await first, *[await desk.recv_multipart() for _ in range(1 + FORBIDDEN)]]
    assert [topic for topic, _ in found] == [b"secret/codes"] * FORBIDDEN + [b"orders/go"] * 2


async def test_a_dashboard_counts_what_it_shows(tmp_path: Path) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as lidar:
        port = lidar.bind_to_random_port("tcp://127.0.0.1")
        async with asyncio.timeout(PATIENCE_S), application("dashboard", port, tmp_path) as app:
            assert await app.answer() == Ready()
            assert await lidar.recv() == b"\x01telemetry/"
            for number in range(5):
                await lidar.send_multipart([b"telemetry/pose", b"%d" % number])
            await lidar.send_multipart([b"other", b""])
            app.tell(msgspec.json.encode(Await(5)) + b"\n")
            assert await app.answer() == Shown(5)
