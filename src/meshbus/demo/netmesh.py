"""The demo's net-mesh node: the published Rust implementation of the mesh, in a process of its own.

    python -m meshbus.demo.netmesh MESH-KEY

It uses nothing of meshbus but the file of the mesh key. It reads commands from standard input and writes answers to standard
output, one JSON object per line, and exits when its input ends. The counterpart is demo/visitors.py.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from meshbus.demo.process import input_lines, own_output, run_child, say, wait_for
from meshbus.demo.roles import ORDERS, STATE
from meshbus.keyfile import load_psk
from meshbus.node.driving.tasks import TaskOwner

MODULE = "net"
"""Import name of the package net-mesh."""
_POLL_S = 0.01

_logger = logging.getLogger("meshbus.demo")


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First of all: how to reach the node."""

    address: str
    node_id: int
    public_key: str
    """Its Noise key, in hex."""


class Meet(msgspec.Struct, frozen=True, tag=True):
    """Command: take the handshake of a node, then start."""

    node_id: int


class Follow(msgspec.Struct, frozen=True, tag=True):
    """Command: subscribe to the orders of a node."""

    node_id: int


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Command: publish the state so often."""

    events: int
    per_s: int


class Await(msgspec.Struct, frozen=True, tag=True):
    """Command: wait until so many orders have arrived, but not for ever."""

    orders: int


class Told(msgspec.Struct, frozen=True, tag=True):
    """A command is done; what was published and received so far. The last message when the input has ended."""

    published: int
    received: int


Command: TypeAlias = Meet | Follow | Tell | Await
COMMAND: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
ANSWER: msgspec.json.Decoder[Hello | Told] = msgspec.json.Decoder(Hello | Told)


class Visitor:
    """A net-mesh node, and what it has published and received."""

    def __init__(self, net: Any, psk: bytes) -> None:
        self._mesh = net.NetMesh("127.0.0.1:0", psk.hex(), permissive_channels=True, num_shards=1)
        self._node = net.AsyncNetMesh(self._mesh)
        self._published = self._received = 0

    @property
    def hello(self) -> Hello:
        """How to reach the node."""
        # The repr is the only place that shows a port chosen by the system.
        found = re.search(r"addr=([^,)]+)", repr(self._mesh))
        return Hello(found[1] if found else "", self._mesh.node_id, self._mesh.public_key)

    @property
    def told(self) -> Told:
        """What was published and received so far."""
        return Told(self._published, self._received)

    async def do(self, command: Command) -> None:
        """Execute a command."""
        match command:
            case Meet():
                # The plain binding: it holds the interpreter lock meanwhile, and nothing else happens here.
                await asyncio.to_thread(self._mesh.accept, command.node_id)
                self._mesh.start()
            case Follow():
                await self._node.subscribe_channel(command.node_id, ORDERS)
            case Tell():
                await self._publish(command)
            case Await():
                await wait_for(lambda: self._received >= command.orders)

    async def take(self) -> None:
        """Receive events until it is cancelled."""
        while True:
            self._received += len(await self._node.poll(1000))
            await asyncio.sleep(_POLL_S)

    async def _publish(self, command: Tell) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(command.events):
            await asyncio.sleep(begin + number / command.per_s - loop.time())
            await self._node.publish(STATE, b'{"n":%d}' % number)
            self._published += 1


async def _run(path: Path) -> None:
    visitor = Visitor(importlib.import_module(MODULE), load_psk(path))
    _say(visitor.hello)
    taking = TaskOwner("taking events", _logger)
    async for line in input_lines():
        command = COMMAND.decode(line)
        await visitor.do(command)
        if isinstance(command, Meet):
            taking.start(visitor.take())
        _say(visitor.told)
    await taking.close()
    _say(visitor.told)


def _say(line: Hello | Told) -> None:
    say(msgspec.json.encode(line) + b"\n")


def main() -> None:
    """Serve on the standard streams."""
    own_output()
    asyncio.run(_run(Path(sys.argv[1])))
    os._exit(0)  # do not wait for threads of the binding


if __name__ == "__main__":
    run_child(main)
