"""The demo's ZeroMQ applications: two programs that know pyzmq and nothing of meshbus.

    python -m meshbus.demo.zeromq dispatcher tcp://127.0.0.1:PORT      publishes orders
    python -m meshbus.demo.zeromq dashboard tcp://127.0.0.1:PORT       subscribes to telemetry

Both say `Ready` when they are connected. The dispatcher publishes on `Order` and says `Sent`; the dashboard says `Shown` when
it has received what `Await` names. The counterpart is demo/visitors.py.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import msgspec

from meshbus.demo.process import input_lines, run_child, say, wait_for
from meshbus.node.driving.tasks import TaskOwner

ORDERS, SECRET, SHOWN = b"orders/go", b"secret/codes", b"telemetry/"
"""The topic of orders, one that the bridge does not expose, and the prefix that the dashboard shows."""
FORBIDDEN = 3
"""Messages on the topic that is not exposed."""

_logger = logging.getLogger("meshbus.demo")


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The application is connected."""


class Await(msgspec.Struct, frozen=True, tag=True):
    """Command: wait until so many messages have arrived, but not for ever."""

    messages: int


class Order(msgspec.Struct, frozen=True, tag=True):
    """Command: publish so many orders."""

    events: int
    per_s: int


class Sent(msgspec.Struct, frozen=True, tag=True):
    """What the dispatcher has sent: orders, and messages that it may not send."""

    orders: int
    forbidden: int


class Shown(msgspec.Struct, frozen=True, tag=True):
    """What the dashboard has received."""

    messages: int


ORDER, AWAIT = msgspec.json.Decoder(Order), msgspec.json.Decoder(Await)
ANSWER: msgspec.json.Decoder[Ready | Sent | Shown] = msgspec.json.Decoder(Ready | Sent | Shown)


async def dispatch(context: Any, zmq: Any, address: str) -> None:
    """Publish orders."""
    with context.socket(zmq.XPUB) as socket:
        socket.connect(address)
        await socket.recv()  # the bridge subscribes; what is sent before would be lost
        _say(Ready())
        async for line in input_lines():
            command = ORDER.decode(line)
            for _ in range(FORBIDDEN):
                await socket.send_multipart([SECRET, b"{}"])
            for number in range(command.events):
                await socket.send_multipart([ORDERS, b'{"n":%d}' % number])
                await asyncio.sleep(1 / command.per_s)
            _say(Sent(command.events, FORBIDDEN))


async def show(context: Any, zmq: Any, address: str) -> None:
    """Receive telemetry until the input ends."""
    with context.socket(zmq.SUB) as socket:
        socket.connect(address)
        socket.subscribe(SHOWN)
        _say(Ready())
        messages = 0

        async def take() -> None:
            nonlocal messages
            while True:
                await socket.recv_multipart()
                messages += 1

        taking = TaskOwner("taking messages", _logger)
        taking.start(take())
        async for line in input_lines():
            wanted = AWAIT.decode(line).messages
            await wait_for(lambda: messages >= wanted)  # noqa: B023 - awaited before the next line
            _say(Shown(messages))
        await taking.close()


async def _run(kind: str, address: str) -> None:
    import zmq
    import zmq.asyncio

    with zmq.asyncio.Context() as context:
        await (dispatch if kind == "dispatcher" else show)(context, zmq, address)


def _say(line: Ready | Sent | Shown) -> None:
    say(msgspec.json.encode(line) + b"\n")


if __name__ == "__main__":
    run_child(lambda: asyncio.run(_run(sys.argv[1], sys.argv[2])))
