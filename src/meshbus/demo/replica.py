"""One replica of the demo's alarm channel: a real node that executes commands from standard input.

    python -m meshbus.demo.replica NODE.toml

The process exits when its standard input ends. The counterpart is demo/alarms.py.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from meshbus.config import NodeConfig
from meshbus.demo.process import input_lines, run_child, say
from meshbus.node.node import Node

CHANNEL = "alarms/fire"
WRITER = "demo"


class Sound(msgspec.Struct, frozen=True, tag=True):
    """Publish alarms, one after the other, each as often as it takes."""

    alarms: int
    per_s: float


class Look(msgspec.Struct, frozen=True, tag=True):
    """Return the state of the replica."""


class State(msgspec.Struct, frozen=True):
    """Answer to every command, and first of all: the state of the replica."""

    address: str
    leader: int | None
    ready: bool
    """Whether the channel takes appends for a majority."""
    committed: int
    lags: dict[str, int | None]
    """Events that each member has not confirmed, by name; None if this node does not lead and cannot know."""
    longest_wait_s: float = 0.0
    """Of the alarms that were published by the last command."""


COMMAND = msgspec.json.Decoder(Sound | Look)
STATE = msgspec.json.Decoder(State)


def alarm(number: int) -> bytes:
    """Return the payload of an alarm."""
    return b'{"alarm":%d,"hall":%d}' % (number, number % 7)


async def _sound(node: Node, command: Sound) -> float:
    """Publish alarms, and return how long the slowest took. A retry cannot double one: the log knows its writer."""
    import pyarrow as pa

    publisher, loop, longest = node.publisher(CHANNEL), asyncio.get_running_loop(), 0.0
    for number in range(command.alarms):
        began = loop.time()
        await publisher.publish_once(pa.table({"payload": [alarm(number)]}), writer=WRITER, batch=number)
        took = loop.time() - began
        longest = max(longest, took)
        await asyncio.sleep(max(0.0, 1 / command.per_s - took))
    return longest


def _state(node: Node, longest_wait_s: float) -> State:
    [status] = node.replicas()
    return State(
        node.address,
        status.leader,
        status.waiting is None,
        status.committed,
        {one.name or f"{one.node_id:016x}": one.lag for one in status.members},
        longest_wait_s,
    )


async def _run(path: Path) -> None:
    # env={}: ignore MESHBUS_* variables, which the user may have set for another node.
    async with Node.open(NodeConfig.load(path, env={})) as node:
        say(msgspec.json.encode(_state(node, 0.0)) + b"\n")
        async for line in input_lines():
            command = COMMAND.decode(line)
            longest_s = await _sound(node, command) if isinstance(command, Sound) else 0.0
            say(msgspec.json.encode(_state(node, longest_s)) + b"\n")


if __name__ == "__main__":
    run_child(lambda: asyncio.run(_run(Path(sys.argv[1]))))
