"""A peer that sends any bytes, valid or not, over a real socket."""

from __future__ import annotations

import asyncio
from typing import Self

from meshbus.edge.zmtp.framing import encode_command
from meshbus.edge.zmtp.greeting import encode_greeting
from tests.patience import PATIENCE_S

GREETING = encode_greeting(b"NULL")
READY = encode_command(b"READY")


class RawPeer:
    """One TCP connection that a test controls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str, *, greet: bool = True) -> Self:
        """Connect to `tcp://host:port`, and perform a NULL handshake by default."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        if greet:
            peer.send(GREETING + READY)
            await peer.read(len(GREETING))
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def read(self, count: int) -> bytes:
        return await asyncio.wait_for(self._reader.readexactly(count), PATIENCE_S)

    async def closed(self) -> bytes:
        """Wait until the other side closes the connection, and return what it sent before."""
        try:
            return await asyncio.wait_for(self._reader.read(), PATIENCE_S)
        except ConnectionError:
            return b""


async def run_loop(count: int = 20) -> None:
    """Run a few iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)
