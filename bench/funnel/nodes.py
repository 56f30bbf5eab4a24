"""Two nodes on loopback in processes of their own: one publishes at a rate, the other logs what it receives.

    python -m bench.funnel.nodes publish             read `rate seconds` from stdin, publish, write [events, seconds]
    python -m bench.funnel.nodes log <log_dir>       read the address of the other, subscribe, log until stdin ends

Lines are JSON. Channels are reliable, and an answer is written when all its events are acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.funnel.load import CHANNELS, RAW_BYTES
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node

if TYPE_CHECKING:
    from meshbus.node.channels.publisher import ChannelPublisher

ANSWER_S = 120.0
"""Time limit for an answer of a node."""
_PSK = "42" * 32
_TURN_S = 0.02
_POOL = 20_000
"""Different events; a turn publishes at most so many of each channel."""
_FIRST = 100
"""Events of each channel in the first publish."""
_RETAIN_BYTES = 1 << 40


class Published(NamedTuple):
    """What a node has published."""

    events: int
    seconds: float
    """How long that took, without waiting for the last acknowledgements."""


class NodeProcess:
    """A node in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", __name__, *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - this file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True
        )

    def tell(self, value: object) -> None:
        """Send a value to the node."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(value)}\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float = ANSWER_S) -> Any:
        """Return the next value from the node; raises RuntimeError if none comes in time."""
        assert self._process.stdout is not None
        # A node that does not answer is ended, which ends the wait.
        timer = threading.Timer(timeout_s, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"a node ended, or did not answer within {timeout_s:g} s")
        return json.loads(line)

    def publish_first(self) -> int:
        """Publish a few events on each channel, and return their number."""
        return self.publish(0.0, 0.0).events

    def publish(self, rate: float, seconds: float) -> Published:
        """Publish at a rate for some seconds; return when all events are acknowledged."""
        self.tell([rate, seconds])
        return Published(*self.hear(2 * seconds + ANSWER_S))

    def close(self) -> None:
        """End the process, kindly at first."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(ANSWER_S / 4)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def nodes(log_dir: Path) -> Iterator[NodeProcess]:
    """Run a node that publishes and one that logs all of it; yield the first."""
    publisher = NodeProcess("publish")
    logger = NodeProcess("log", str(log_dir))
    try:
        logger.tell(publisher.hear())
        logger.hear()
        yield publisher
    finally:
        publisher.close()
        logger.close()


async def publish_node() -> None:
    """Publish what is asked for, until stdin ends."""
    column = pa.array([os.urandom(RAW_BYTES) for _ in range(_POOL)], pa.binary())
    async with Node.open(psk=_PSK, ephemeral=True) as node:
        publishers = [node.publisher(channel, reliable=True, wait_s=ANSWER_S) for channel in CHANNELS]
        _say([node.address, node.public_key.hex(), node.node_id])
        while (task := await _heard()) is not None:
            rate, seconds = task
            began = time.perf_counter()
            sent = await (_publish(publishers, column, rate, seconds) if rate else _publish_first(publishers, column))
            took_s = time.perf_counter() - began
            for publisher in publishers:
                report = await publisher.flush(ANSWER_S)
                if report.errors:
                    raise RuntimeError(f"events were not acknowledged: {report.errors}")
            _say([sent, took_s])


async def _publish_first(publishers: list[ChannelPublisher], column: Any) -> int:
    for publisher in publishers:
        await publisher.publish_batch(column.slice(0, _FIRST))
    return _FIRST * len(publishers)


async def _publish(publishers: list[ChannelPublisher], column: Any, rate: float, seconds: float) -> int:
    """Publish in turns what is due by the clock, the channels equally often; return the number of events.

    A node that cannot reach the rate goes on for up to twice the time.
    """
    sent, began = 0, time.perf_counter()
    while sent < int(rate * seconds) and (passed := time.perf_counter() - began) < 2 * seconds:
        due = min(int(rate * min(passed, seconds)) - sent, _POOL * len(publishers))
        shares = np.diff(np.linspace(0, due, len(publishers) + 1, dtype=int))
        for publisher, count in zip(publishers, shares, strict=True):
            if count:
                await publisher.publish_batch(column.slice(0, int(count)))
        sent += due
        await asyncio.sleep(max(0.0, passed + _TURN_S - (time.perf_counter() - began)))
    return sent


async def log_node(log_dir: str) -> None:
    """Log everything that another node publishes, until stdin ends."""
    logged = [{"prefix": "", "log": "received", "log_retain_bytes": _RETAIN_BYTES}]
    async with Node.open(psk=_PSK, ephemeral=True, log_dir=Path(log_dir), channels=logged) as node:
        address, public_key, publisher = await _heard()
        await node.connect(address, public_key=bytes.fromhex(public_key))
        for channel in CHANNELS:
            await node.subscribe_channel(publisher, channel)
        _say("logging")
        await _heard()


async def _heard() -> Any:
    """Wait for a line without holding up the node; None at the end of stdin."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    warm()
    asyncio.run(publish_node() if sys.argv[1] == "publish" else log_node(sys.argv[2]))
