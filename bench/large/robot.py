"""A process with a robot: it publishes poses at 100 Hz, and if wanted camera frames of 200 KB at 5 Hz.

    python -m bench.large.robot NAME

It reads commands as bench/child.py describes.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import AsyncExitStack

from bench.child import serve
from bench.large.receiver import PSK
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node

POSE_HZ, FRAME_HZ = 100, 5
FRAME_BYTES = 200_000
JITTER = 0.1
"""Share of the time between two frames by which it varies, so that frames come at any time between two poses."""
POSES, FRAMES = "poses", "frames/"


class Robot:
    """One robot."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack = AsyncExitStack()
        self._node: Node | None = None

    async def start(self, address: str, public_key: str) -> str:
        """Connect to the hub."""
        self._node = await self._stack.enter_async_context(Node.open(psk=PSK, ephemeral=True))
        await self._node.connect(address, public_key=public_key)
        return ""

    async def drive(self, seconds: float, frames: bool) -> int:
        """Publish for so long; return the number of poses. Poses and frames begin with the time at which they are published."""
        assert self._node is not None
        poses, sent, began = self._node.publisher(POSES), 0, time.monotonic()
        async with asyncio.TaskGroup() as group:
            camera = group.create_task(self._film(self._node)) if frames else None
            while time.monotonic() - began < seconds:
                await poses.publish(_time())
                sent += 1
                await asyncio.sleep(max(began + sent / POSE_HZ - time.monotonic(), 0.0))
            if camera is not None:
                camera.cancel()
        return sent

    async def _film(self, node: Node) -> None:
        camera, chance = node.publisher(FRAMES + self._name), random.Random(self._name)
        image = chance.randbytes(FRAME_BYTES - 8)
        while True:
            await asyncio.sleep(chance.uniform(1 - JITTER, 1 + JITTER) / FRAME_HZ)
            await camera.publish(_time() + image)


def _time() -> bytes:
    return time.monotonic_ns().to_bytes(8, "little")


if __name__ == "__main__":
    warm()
    asyncio.run(serve(Robot(sys.argv[1])))
