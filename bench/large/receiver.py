"""A process that receives large events by one of three transports, and says when all of them are there.

    python -m bench.large.receiver meshbus|pyzmq|tcp

It reads commands as bench/child.py describes. Whatever the transport, an event ends in memory that the program may keep.
"""

from __future__ import annotations

import asyncio
import socket  # noqa: TID251  the peer of this comparison
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import zmq
import zmq.asyncio

from bench.child import serve
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node

PSK = "5a" * 32
CHANNEL = "bench/large"
LIMIT = 64 << 20
CHANNELS = [{"name": CHANNEL, "max_event_bytes": LIMIT}]


class MeshbusReceiver:
    """A subscriber."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._subscription: Subscription | None = None

    async def start(self, address: str, public_key: str) -> str:
        """Subscribe at the publisher."""
        node = await self._stack.enter_async_context(Node.open(psk=PSK, ephemeral=True, channels=CHANNELS))
        await node.connect(address, public_key=public_key)
        self._subscription = await self._stack.enter_async_context(node.subscribe(CHANNEL, max_bytes=4 * LIMIT))
        return ""

    async def receive(self, events: int, size: int) -> dict[str, Any]:
        """Receive events of one size; return the bytes and the processor time that it took."""
        assert self._subscription is not None
        began, received = time.process_time(), 0
        for _ in range(events):
            batch = await self._subscription.next_batch()
            assert batch is not None
            assert (len(batch), batch.nbytes) == (1, size)
            received += batch.nbytes
        return {"bytes": received, "cpu_s": time.process_time() - began}


class PyzmqReceiver:
    """A PULL socket."""

    def __init__(self) -> None:
        self._socket = zmq.asyncio.Context().socket(zmq.PULL)

    async def start(self) -> str:
        """Return the address."""
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        return f"tcp://127.0.0.1:{port}"

    async def receive(self, events: int, size: int) -> dict[str, Any]:
        """Receive events of one size; return the bytes and the processor time that it took."""
        began, received = time.process_time(), 0
        for _ in range(events):
            frame = await self._socket.recv(copy=False)
            received += len(frame)
        assert received == events * size
        return {"bytes": received, "cpu_s": time.process_time() - began}


class TcpReceiver:
    """A socket that copies what comes into memory: the least that any transport on TCP has to do."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None

    async def start(self) -> str:
        """Return the port."""
        return str(self._listener.getsockname()[1])

    async def receive(self, events: int, size: int) -> dict[str, Any]:
        """Receive events of one size; return the bytes and the processor time that it took."""
        return await asyncio.to_thread(self._receive, events, size)

    def _receive(self, events: int, size: int) -> dict[str, Any]:
        if self._connection is None:
            self._connection, _ = self._listener.accept()
        began = time.process_time()
        for _ in range(events):
            view, filled = memoryview(bytearray(size)), 0
            while filled < size:
                filled += self._connection.recv_into(view[filled:])
        return {"bytes": events * size, "cpu_s": time.process_time() - began}


RECEIVERS = {"meshbus": MeshbusReceiver, "pyzmq": PyzmqReceiver, "tcp": TcpReceiver}

if __name__ == "__main__":
    warm()
    asyncio.run(serve(RECEIVERS[sys.argv[1]]()))
