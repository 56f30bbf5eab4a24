"""Nodes that can run daemons, in one process: a publisher of numbers, and others between which a counter moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from meshbus import DaemonInfo, Node
from meshbus.log.once import BATCH, PLACE
from meshbus.names.channel import ChannelName
from tests.compute.counter import Counter, run_alone
from tests.patience import PATIENCE_S

PSK = bytes(range(32))
INPUT, OUTPUT, DAEMON = "numbers", "counts", "counter"


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110 - states of a node have no event
            await asyncio.sleep(0.01)


def prepared(folder: Path, number: int, **settings: Any) -> Node:
    return Node.open(
        **{
            "psk": PSK,
            "ephemeral": True,
            "name": f"n{number}",
            "daemons_dir": folder / f"n{number}" / "daemons",
            "log_dir": folder / f"n{number}" / "log",
            "channels": [{"name": name, "log": "published"} for name in (INPUT, OUTPUT)],
            **settings,
        }
    )


@asynccontextmanager
async def nodes(folder: Path, count: int = 3, **settings: Any) -> AsyncIterator[list[Node]]:
    """Start nodes that all have sessions with each other."""
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(prepared(folder, number, **settings)) for number in range(count)]
        for number, node in enumerate(started):
            for other in started[:number]:
                await node.connect(other.address, public_key=other.public_key)
        yield started


async def offer(*offering: Node, create: Callable[[], Any] = Counter) -> None:
    for node in offering:
        await node.daemons.offer(DAEMON, create, output=OUTPUT)


async def publish(node: Node, start: int, stop: int) -> None:
    await node.publisher(INPUT).publish_batch([b"%d" % number for number in range(start, stop)])


def info(node: Node) -> DaemonInfo:
    return node.daemons.get(DAEMON)


async def processed(node: Node, events: int) -> None:
    """Wait until the daemon on a node has processed so many events, and published what it returned."""
    await until(lambda: [one.next_seq for one in info(node).inputs] == [events] and not host_of(node).pending)


def host_of(node: Node) -> Any:
    hosting = node._parts.daemons[0]  # type: ignore[union-attr, index]
    return hosting.host(node.daemons.origin_of(DAEMON))


def outputs_of(*publishers: Node) -> list[bytes]:
    """Return all that was published, in the order of the chain; nothing twice."""
    numbered: dict[int, bytes] = {}
    for node in publishers:
        log = node.logs.of_published(ChannelName(OUTPUT))
        assert log is not None
        for event in log.file.read_range(log.file.first_seq, log.file.next_seq):
            assert event.headers is not None
            number = int(event.headers[BATCH]) + int(event.headers[PLACE])
            assert number not in numbered, f"output {number} was published twice"
            numbered[number] = bytes(event.payload)
    assert sorted(numbered) == list(range(1, len(numbered) + 1))
    return [numbered[number] for number in sorted(numbered)]


def check(owner: Node, everyone: list[Node], events: int) -> None:
    """Compare with a daemon that ran alone."""
    state, outputs = run_alone([b"%d" % number for number in range(events)])
    assert Counter.snapshot(host_of(owner).daemon) == state
    assert outputs_of(*everyone) == outputs
