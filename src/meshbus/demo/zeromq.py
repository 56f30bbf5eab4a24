"""The demo's ZeroMQ applications: two programs that know pyzmq and nothing of meshbus.

    python -m meshbus.demo.zeromq dispatcher tcp://127.0.0.1:PORT      publishes orders
    python -m meshbus.demo.zeromq dashboard tcp://127.0.0.1:PORT       subscribes to telemetry

The dispatcher says `Ready` when it is connected, and publishes after a line on its standard input. Both say `Sent` or `Shown`
at the end of their input. The counterpart is demo/visitors.py.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec

from meshbus.demo.process import input_lines, run_child, say

ORDERS, SECRET, SHOWN = b"orders/go", b"secret/codes", b"telemetry/"
"""The topic of orders, one that the bridge does not expose, and the prefix that the dashboard shows."""
FORBIDDEN = 3
"""Messages on the topic that is not exposed."""
_DRAIN_MS = 500
"""When nothing has come for this long after the end of the input, nothing will."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The application is connected."""


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


COMMAND = msgspec.json.Decoder(Order)
ANSWER: msgspec.json.Decoder[Ready | Sent | Shown] = msgspec.json.Decoder(Ready | Sent | Shown)


async def dispatch(context: Any, zmq: Any, address: str) -> None:
    """Publish orders."""
    with context.socket(zmq.XPUB) as socket:
        socket.connect(address)
        await socket.recv()  # the bridge subscribes; what is sent before would be lost
        _say(Ready())
        async for line in input_lines():
            command = COMMAND.decode(line)
            for _ in range(FORBIDDEN):
                await socket.send_multipart([SECRET, b"{}"])
            for number in range(command.events):
                await socket.send_multipart([ORDERS, b'{"n":%d}' % number])
                await asyncio.sleep(1 / command.per_s)
            _say(Sent(command.events, FORBIDDEN))


async def show(context: Any, zmq: Any, address: str) -> None:
    """Receive telemetry until the input ends and nothing more comes."""
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

        taking = asyncio.ensure_future(take())
        async for _ in input_lines():
            pass
        before = -1
        while before != messages:
            before = messages
            await asyncio.sleep(_DRAIN_MS / 1000)
        taking.cancel()
        _say(Shown(messages))


async def _run(kind: str, address: str) -> None:
    import zmq
    import zmq.asyncio

    with zmq.asyncio.Context() as context:
        await (dispatch if kind == "dispatcher" else show)(context, zmq, address)


def _say(line: Ready | Sent | Shown) -> None:
    say(msgspec.json.encode(line) + b"\n")


if __name__ == "__main__":
    run_child(lambda: asyncio.run(_run(sys.argv[1], sys.argv[2])))
