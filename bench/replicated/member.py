"""Program of one member: a meshbus node that replicates a channel, and appends to it when it is told to.

It reads commands from standard input and writes answers to standard output, one JSON object per line. The load runs in
the member's own process, as that of an application that embeds a node does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.child import serve, tell
from bench.replicated.contender import Load, Mode, drive
from meshbus.errors import MeshError, ReplicationError
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node

PSK = "42" * 32
CHANNEL = "bench/replicated"
BATCH = 4000
"""Events per call: as many as the client of JetStream has under way."""
WORKERS = 2
"""Batches under way at once: while one is on its way to the disks, the next is prepared."""
WAIT_S = 30.0


async def main(name: str, names: str, folder: str, acks: str) -> None:
    """Open the node, and carry out commands until the input ends."""
    channel = {"name": CHANNEL, "replicas": names.split(","), "acks": acks}
    node = Node.open(psk=PSK, ephemeral=True, name=name, bind="127.0.0.1:0", log_dir=Path(folder), channels=[channel])
    async with node:
        member = _Member(node)
        tell({"address": node.address, "public_key": node.public_key.hex(), "node_id": node.node_id})
        await serve(member)


class _Member:
    """The commands."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._publisher = node.publisher(CHANNEL, wait_s=WAIT_S)

    async def connect(self, peers: list[tuple[str, str]]) -> Mapping[str, Any]:
        """Connect to the other members."""
        for address, public_key in peers:
            await self._node.connect(address, public_key=public_key)
        return {}

    async def status(self) -> Mapping[str, Any]:
        """Return who leads, and whether appends are taken."""
        [status] = self._node.replicas()
        return {"leader": status.leader, "waiting": status.waiting}

    async def load(self, mode: str, size: int, seconds: float) -> Load:
        """Append events."""
        payload = bytes(size)

        single = mode == Mode.SINGLE
        events = [payload] * (1 if single else BATCH)

        async def append() -> int:
            try:
                await (self._publisher.publish(payload) if single else self._publisher.publish_batch(events))
            except ReplicationError:
                return 0
            return len(events)

        return await drive(append, seconds, workers=1 if single else WORKERS)

    async def append(self) -> Mapping[str, Any]:
        """Append one event, however often that has to be tried, and return when it was acknowledged."""
        while True:
            try:
                await self._publisher.publish(bytes(64))
            except MeshError:
                continue
            return {"at": time.monotonic()}


if __name__ == "__main__":
    warm()
    asyncio.run(main(*sys.argv[1:]))
