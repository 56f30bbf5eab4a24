"""A member of a replicated channel in a process of its own, which publishes on command; see replicafleet.py.

    python -m tests.node.replicas.replicachild settings.json

Commands are lines of JSON on stdin, what happened are lines of JSON on stdout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec

from meshbus import Node, NodeConfig
from meshbus.errors import MeshError, ReplicationError, ReplicationFault
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.driving.tasks import TaskOwner

CHANNEL = "alarms"


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def publish(publisher: ChannelPublisher, prefix: str, count: int, batch: int, halted: asyncio.Event) -> None:
    """Publish numbered events, and report each as acknowledged or as unresolved; what was refused is tried again."""
    number = 0
    while number < count and not halted.is_set():
        numbers = range(number, min(number + batch, count))
        say(tried=[prefix, numbers.start, numbers.stop])
        try:
            report = await publisher.publish_batch([f"{prefix}{one}".encode() for one in numbers])
        except ReplicationError as error:
            if error.fault is ReplicationFault.UNRESOLVED:
                say(unresolved=[prefix, numbers.start, numbers.stop])
                number = numbers.stop
            else:
                say(refused=str(error.fault))
            continue
        say(acked=[prefix, numbers.start, numbers.stop, report.log_seq], replicated=report.replicated)
        number = numbers.stop
    say(done=prefix)


async def publish_once(publisher: ChannelPublisher, writer: str, batches: int, rows: int) -> None:
    """Publish numbered batches, each until it is acknowledged."""
    import pyarrow as pa

    for batch in range(batches):
        table = pa.table({"payload": [f"{writer}{batch * rows + row}".encode() for row in range(rows)]})
        while True:
            try:
                await publisher.publish_once(table, writer=writer, batch=batch)
                break
            except MeshError as error:
                say(refused=str(error))
        say(once=[writer, batch])
    say(done=writer)


async def main(settings: dict[str, Any]) -> None:
    halted = asyncio.Event()
    tasks = TaskOwner("publishing", logging.getLogger("tests"))
    async with Node(NodeConfig.load(env={}, **settings)) as node:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        say(up=f"{node.node_id:016x}")
        while line := await reader.readline():
            match json.loads(line):
                case ["publish", prefix, count, batch]:
                    tasks.start(publish(node.publisher(CHANNEL), prefix, count, batch, halted))
                case ["once", writer, batches, rows]:
                    tasks.start(publish_once(node.publisher(CHANNEL), writer, batches, rows))
                case ["status"]:
                    (status,) = node.replicas()
                    dialing = [str(one) for one in node.dialing]
                    say(status=msgspec.to_builtins(status), counters=node.counters, dialing=dialing)
                case ["halt"]:
                    halted.set()
                case ["quit"]:
                    break
        tasks.cancel()
    say(closed=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
