"""A node of a fleet in a process of its own, of any build: it uses what the older build and this one have in common.

    PYTHONPATH=<folder of a build> python member.py settings.json

Commands are lines of JSON on stdin, what happened are lines of JSON on stdout. tests/upgrade/fleet.py starts it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import meshbus
from meshbus import Node, NodeConfig
from meshbus.errors import MeshError, ReplicationError, ReplicationFault

PAUSE_S = 0.02
"""Between two events: a light load."""


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Member:
    """What a member of the fleet does on command."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._halted: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: dict[str, asyncio.Task[None]] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            say(crashed=repr(error))

    def handle(self, command: list[Any]) -> None:
        """Carry out one command."""
        match command:
            case ["publish", channel, prefix]:
                self.start(self._publish(channel, prefix))
            case ["halt", prefix]:
                self._halted.add(prefix)
            case ["follow", publisher, channel, label]:
                self._following[label] = self.start(self._follow(int(publisher, 16), channel, label))
            case ["unfollow", label]:
                self._following.pop(label).cancel()
            case ["history", publisher, channel, count, label]:
                self.start(self._history(int(publisher, 16), channel, count, label))
            case ["status"]:
                self._status()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _publish(self, channel: str, prefix: str) -> None:
        """Publish numbered events until told to halt, and report each as acknowledged, unresolved or to be tried again."""
        publisher = self._node.publisher(channel, reliable=True)
        number = 0
        while prefix not in self._halted:
            try:
                report = await publisher.publish(f"{prefix}{number}".encode())
            except ReplicationError as error:
                if error.fault is ReplicationFault.UNRESOLVED:
                    say(unresolved=[channel, prefix, number])
                    number += 1
            else:
                say(acked=[channel, prefix, number, report.log_seq])
                number += 1
            await asyncio.sleep(PAUSE_S)
        say(done=prefix, count=number)

    async def _follow(self, publisher: int, channel: str, label: str) -> None:
        async with self._node.subscribe(channel, publisher=publisher) as subscription:
            say(following=label)
            async for event in subscription:
                say(got=[label, event.payload.decode()])

    async def _history(self, publisher: int, channel: str, count: int, label: str) -> None:
        """Read the first events of a channel from the log of its publisher."""
        try:
            async with self._node.subscribe(channel, publisher=publisher, since="first") as subscription:
                arriving = aiter(subscription)
                found = [(await anext(arriving)).payload.decode() for _ in range(count)]
        except MeshError as error:
            say(failed=label, problem=str(error))
        else:
            say(history=label, events=found)

    def _status(self) -> None:
        (replica,) = self._node.replicas()
        say(
            status={
                "role": str(replica.role),
                "waiting": replica.waiting,
                "tail": replica.tail,
                "committed": replica.committed,
                "peers": {f"{peer.node_id:016x}": getattr(peer, "secure", False) for peer in self._node.peers},
                "agreed": [f"{peer.node_id:016x}" for peer in self._node.peers if peer.profile],
                "refused": self._node.counters.get("drop", {}).get("insecure", 0),
            }
        )


async def main(settings: dict[str, Any]) -> None:
    async with Node(NodeConfig.load(env={}, **settings)) as node:
        member = Member(node)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        say(up=f"{node.node_id:016x}", build=str(Path(meshbus.__file__).parent))
        while (line := await reader.readline()) and (command := json.loads(line)) != ["quit"]:
            member.handle(command)
        await member.close()
    say(closed=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
