"""A node with a daemon in a process of its own, which publishes, moves and dies on command; see daemonfleet.py.

    python -m tests.node.daemons.daemonchild settings.json

Commands are lines of JSON on stdin, what happened are lines of JSON on stdout. `hold` in the settings names the nodes that
hold the history of the daemon together with this one; `takeover_s` is how long a node is gone before its daemon goes on here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from meshbus import Node, NodeConfig
from meshbus.errors import MeshError
from meshbus.names.channel import ChannelName
from meshbus.node.daemons import daemonhosting
from meshbus.node.daemons.daemonfiles import DaemonFiles
from meshbus.node.driving.tasks import TaskOwner

INPUT, OUTPUT, DAEMON = "numbers", "counts", "counter"


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def die_at(operation: str, what: str, *, before: bool) -> None:
    """Let the process kill itself at a write of its records: of this operation, with this status or outcome."""
    original: Callable[..., None] = getattr(DaemonFiles, operation)

    def deadly(self: DaemonFiles, *arguments: Any) -> None:
        told = [getattr(one, "mark", one) for one in arguments]
        found = {str(getattr(one, name, "")) for one in told for name in ("status", "outcome")}
        hit = not what or what in found
        if hit and before:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, *arguments)
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(DaemonFiles, operation, deadly)


async def publish(node: Node, stop: int, batch: int, pause_s: float) -> None:
    """Publish the numbers from where the log ends, which may be because the process was killed."""
    log = node.logs.of_published(ChannelName(INPUT))
    assert log is not None
    publisher = node.publisher(INPUT)
    while (number := log.file.next_seq) < stop:
        await publisher.publish_batch([b"%d" % one for one in range(number, min(number + batch, stop))])
        await asyncio.sleep(pause_s)


async def feed(node: Node, start: int, stop: int, rows: int, pause_s: float) -> None:
    """Publish numbered batches on a replicated channel, each until it is acknowledged; another node can go on after them."""
    import pyarrow as pa

    publisher = node.publisher(INPUT)
    for batch in range(start, stop):
        table = pa.table({"payload": [b"%d" % number for number in range(batch * rows, (batch + 1) * rows)]})
        while True:
            try:
                await publisher.publish_once(table, writer="feed", batch=batch)
                break
            except MeshError:
                await asyncio.sleep(pause_s)
        say(fed=batch + 1)
        await asyncio.sleep(pause_s)


async def move(node: Node, target: int, timeout_s: float) -> None:
    try:
        done = await node.daemons.move(DAEMON, target, timeout_s=timeout_s)
        say(moved=[done.source, done.target, done.seconds])
    except MeshError as error:
        say(failed=str(error))


def status(node: Node) -> None:
    info = node.daemons.get(DAEMON)
    fields = {name: getattr(info, name) for name in ("state", "phase", "outputs", "moves", "errors", "error", "node")}
    agreed = sum(peer.profile for peer in node.peers)
    say(
        status={**fields, "agreed": agreed, "next": [one.next_seq for one in info.inputs]},
        counters=node.counters,
        lines=[line.text for line in node.daemons.logs(DAEMON)][-20:],
        history=history(node),
    )


def history(node: Node) -> dict[str, Any]:
    """Return what this node has of the daemon's history."""
    if not node.coordination.chains():
        return {}
    (held,) = node.coordination.chains()
    chain = node.coordination._coordination.keeper.chain(held.origin)
    assert chain is not None
    return {**held._asdict(), "digest": digest_of(event.payload for event in chain.log.events)}


def digest_of(outputs: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(outputs)).hexdigest()


async def main(settings: dict[str, Any]) -> None:
    tasks = TaskOwner("a command", logging.getLogger("tests"))
    members = settings.pop("hold", None)
    daemonhosting.TAKEOVER_S = settings.pop("takeover_s", daemonhosting.TAKEOVER_S)
    async with Node(NodeConfig.load(env={}, **settings)) as node:
        if members is not None:
            node.coordination.hold(DAEMON, members)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        say(up=f"{node.node_id:016x}")
        while line := await reader.readline():
            match json.loads(line):
                case ["publish", stop, batch, pause_s]:
                    tasks.start(publish(node, stop, batch, pause_s))
                case ["feed", start, stop, rows, pause_s]:
                    tasks.start(feed(node, start, stop, rows, pause_s))
                case ["move", target, timeout_s]:
                    tasks.start(move(node, target, timeout_s))
                case ["die", operation, what, before]:
                    die_at(operation, what, before=before)
                case ["status"]:
                    status(node)
                case ["quit"]:
                    break
        await tasks.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
