"""Real ZeroMQ applications in processes of their own: they know pyzmq and an address, and nothing of meshbus.

Run as `python apps.py pub ADDRESS` it publishes the messages that it reads as JSON lines; as `python apps.py sub ADDRESS
PREFIX…` it writes what it gets in the same way.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import zmq

PATIENCE_S = 120.0  # not imported: as a program, this file finds nothing but pyzmq
"""Timeout in seconds: longer than anything here takes, so only a failure waits for it."""


class App:
    """An application in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, *messages: Sequence[str]) -> None:
        """Publish messages, each a list of parts."""
        assert self._process.stdin is not None
        for message in messages:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def next(self) -> list[str]:
        """Wait for its next line of output."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        assert line, "the application ended"
        message: list[str] = json.loads(line)
        return message

    async def take_until(self, last: list[str]) -> list[list[str]]:
        """Return all messages that it received before a certain one."""
        got = []
        while (message := await self.next()) != last:
            got.append(message)
        return got

    async def end(self) -> None:
        """End it."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def app(*arguments: str) -> AsyncIterator[App]:
    """Run an application; it is connected when this returns, and a publisher has its subscriptions."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    one = App(process)
    try:
        assert await one.next() == ["ready"]
        yield one
    finally:
        await one.end()


async def until(holds: Callable[[], object]) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)


def _print_json(message: Sequence[str]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _publish(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.connect(address)
        socket.recv()  # what the other side wants; an XPUB is a PUB that hears of it
        _print_json(["ready"])
        for line in sys.stdin:
            socket.send_multipart([part.encode() for part in json.loads(line)])


def _subscribe(address: str, prefixes: list[str]) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(address)
        for prefix in prefixes:
            socket.subscribe(prefix)
        _print_json(["ready"])
        while True:
            _print_json([part.decode() for part in socket.recv_multipart()])


if __name__ == "__main__":
    if sys.argv[1] == "pub":
        _publish(sys.argv[2])
    else:
        _subscribe(sys.argv[2], sys.argv[3:])
