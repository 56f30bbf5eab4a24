"""Program of one node: it runs a daemon, or takes it, and publishes events for it or receives its outputs.

bench/child.py has the form of commands. Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.child import serve, tell
from meshbus.compute.daemon import DaemonEvent
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node

PSK = "42" * 32
INPUTS, OUTPUT = "bench/numbers/", "bench/counts"
_STAMP = struct.Struct("<Qd")


class Stopped:
    """Answers each event with the event, and has a state of some size; it is stopped while that is copied."""

    deterministic = False

    def __init__(self, size: int = 8) -> None:
        self._count = 0
        self._padding = bytes(size - 8)

    def process(self, event: DaemonEvent) -> list[bytes]:
        """Count the event, and return it."""
        self._count += 1
        return [event.payload]

    def snapshot(self) -> bytes:
        """Return the count and the padding."""
        return self._count.to_bytes(8, "little") + self._padding

    def restore(self, state: bytes) -> None:
        """Continue."""
        self._count, self._padding = int.from_bytes(state[:8], "little"), state[8:]


class Copied(Stopped):
    """The same, but it runs on while its state is copied."""

    deterministic = True


KINDS = {"stopped": Stopped, "copied": Copied}


async def main(name: str, folder: str) -> None:
    """Open the node, and carry out commands until the input ends."""
    home = Path(folder)
    channels = [{"prefix": INPUTS, "log": "published"}, {"name": OUTPUT, "log": "published"}]
    node = Node.open(
        psk=PSK,
        ephemeral=True,
        name=name,
        bind="127.0.0.1:0",
        log_dir=home / "log",
        daemons_dir=home / "daemons",
        channels=channels,
    )
    async with node:
        tell({"address": node.address, "public_key": node.public_key.hex(), "node_id": node.node_id})
        await serve(_Member(node))


class _Member:
    """The commands."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._delays: dict[int, tuple[float, float]] = {}
        self._repeated = 0
        self._news = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._tasks = TaskOwner("receiving outputs", logging.getLogger("bench"))

    async def connect(self, peers: list[tuple[str, str]]) -> Mapping[str, Any]:
        """Connect to other nodes."""
        for address, public_key in peers:
            await self._node.connect(address, public_key=public_key)
        return {}

    async def run(self, daemon: str, kind: str, size: int, inputs: Sequence[str]) -> Mapping[str, Any]:
        """Run a daemon with a state of a size."""
        output = OUTPUT if inputs else None
        await self._node.daemons.run(daemon, lambda: KINDS[kind](size), inputs=inputs, output=output)
        return {}

    async def offer(self, daemon: str, kind: str, *, has_output: bool) -> Mapping[str, Any]:
        """Take a daemon that moves here."""
        await self._node.daemons.offer(daemon, KINDS[kind], output=OUTPUT if has_output else None)
        return {}

    async def move(self, daemon: str, target: int) -> Mapping[str, Any]:
        """Move a daemon from here, and return when that began and how long it took."""
        began = time.monotonic()
        moved = await self._node.daemons.move(daemon, target=target, source=self._node.node_id)
        return {"began": began, "seconds": moved.seconds}

    async def withdraw(self, daemon: str) -> Mapping[str, Any]:
        """Stop a daemon for good."""
        await self._node.daemons.withdraw(daemon)
        return {}

    async def listen(self, publishers: list[int]) -> Mapping[str, Any]:
        """Receive the outputs of nodes from now on."""
        for publisher in publishers:
            subscription = self._node.subscribe(OUTPUT, publisher=publisher)
            await subscription.__aenter__()
            self._subscriptions.append(subscription)
            self._tasks.start(self._receive(subscription))
        return {}

    async def publish(self, channel: str, rate: float, seconds: float) -> Mapping[str, Any]:
        """Publish events at a steady rate for some time, and return the number of the first and how many there were."""
        publisher = self._node.publisher(channel)
        began, number = time.monotonic(), len(self._delays)
        first = number
        while (passed := time.monotonic() - began) < seconds:
            due = first + int(passed * rate)
            while number < due:
                await publisher.publish(_STAMP.pack(number, time.monotonic()))
                number += 1
            await asyncio.sleep(0.001)
        return {"published": number - first, "first": first}

    async def delays(self, first: int, count: int, wait_s: float) -> Sequence[tuple[float, float]]:
        """Return when each of these events was published, and how many seconds later its output was here."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while any(number not in self._delays for number in range(first, first + count)):
                    self._news.clear()
                    await self._news.wait()
        return [self._delays[number] for number in range(first, first + count) if number in self._delays]

    async def repeated(self) -> Mapping[str, Any]:
        """Return how many outputs came more than once since the last call."""
        count, self._repeated = self._repeated, 0
        return {"count": count}

    async def _receive(self, subscription: Subscription) -> None:
        while (batch := await subscription.next_batch()) is not None:
            now = time.monotonic()
            for payload in batch.payloads():
                number, at = _STAMP.unpack(payload)
                self._repeated += number in self._delays
                self._delays.setdefault(number, (at, now - at))
            self._news.set()


if __name__ == "__main__":
    warm()
    asyncio.run(main(*sys.argv[1:]))
