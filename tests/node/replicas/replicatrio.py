"""Three nodes in this process that replicate a channel, and a fourth that only publishes and reads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from meshbus import Node, NodeConfig
from meshbus.engine.channels.publish import PublishReport
from meshbus.engine.replicas.leadership import Leadership
from meshbus.errors import ReplicationError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.replicas.replicamember import ReplicaMember
from tests.patience import PATIENCE_S

CHANNEL = "alarms"
NAMES = ("n0", "n1", "n2")


class ReplicaTrio:
    """The nodes by name."""

    def __init__(self, folder: Path, **entry: Any) -> None:
        self.folder = folder
        self.entry = {"name": CHANNEL, "replicas": NAMES, "replica_heartbeat_s": 0.1, **entry}
        self.psk = os.urandom(32).hex()
        self.ids = {name: Identity.generate(os.urandom) for name in (*NAMES, "spare", "guest")}
        self.nodes: dict[str, Node] = {}

    async def start(self, name: str, **settings: Any) -> Node:
        peers = [{"address": one.address, "public_key": one.public_key.hex()} for one in self.nodes.values()]
        config = NodeConfig.load(
            env={},
            name=name,
            psk=self.psk,
            log_dir=None if name == "guest" else self.folder / name,
            channels=[self.entry],
            peers=peers,
            **settings,
        )
        node = Node(config, self.ids[name])
        await node.start()
        self.nodes[name] = node
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).close()

    def member(self, name: str) -> ReplicaMember:
        replicas = self.nodes[name]._opened.replicas
        assert replicas is not None
        return replicas.member_of(CHANNEL)

    def members(self) -> list[Node]:
        """Return the members that run."""
        return [node for name, node in self.nodes.items() if name in NAMES]

    async def subscribed(self, node: Node) -> None:
        """Wait until a node is subscribed to the channel at every member that runs."""

        def known() -> bool:
            rosters = [member.live.engine.admission.roster for member in self.members()]
            return all(node.node_id in roster.members(ChannelName(CHANNEL)) for roster in rosters)

        await until(known)

    def leader(self) -> str | None:
        found = [name for name, node in self.nodes.items() if node.replicas()[0].role == "leader"]
        return next((name for name in found if self.nodes[name].replicas()[0].waiting is None), None)

    async def led(self, *, other_than: str | None = None) -> str:
        await until(lambda: self.leader() not in {None, other_than})
        leader = self.leader()
        assert leader is not None
        return leader

    def follower(self) -> str:
        leader = self.leader()
        return next(name for name in NAMES if name in self.nodes and name != leader)

    async def settled(self) -> None:
        """Wait until all members have the same committed events."""

        def same() -> bool:
            found = [node.replicas()[0] for node in self.members()]
            return len({(one.tail, one.committed) for one in found}) == 1 and found[0].tail == found[0].committed

        await until(same)

    async def counted(self, name: str) -> None:
        """Wait until all members have stored a config in which a member that lost its disk votes again."""

        def stored() -> bool:
            back = self._core(name).seat.member
            configs = [self._core(other).config for other in NAMES]
            return all(config is not None and back in config.members for config in configs)

        await until(stored)

    def _core(self, name: str) -> Leadership:
        core = self.member(name).core
        assert isinstance(core, Leadership)
        return core

    def payloads(self, name: str) -> list[bytes]:
        log = self.member(name).disk.log.committed
        return [event.payload for event in log.read_range(log.first_seq, log.next_seq)]


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


async def stored(publisher: ChannelPublisher, payload: bytes) -> PublishReport:
    """Publish an event until it is acknowledged: on a busy machine the leader may change at any time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(ReplicationError):
                return await publisher.publish(payload)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def replica_trio(folder: Path, **entry: Any) -> AsyncIterator[ReplicaTrio]:
    """Run the three members inside `async with`, with a leader."""
    async with AsyncExitStack() as stack:
        trio = ReplicaTrio(folder, **entry)
        for name in NAMES:
            await trio.start(name)
        stack.push_async_callback(_close, trio)
        await trio.led()
        yield trio


async def _close(trio: ReplicaTrio) -> None:
    for name in list(trio.nodes):
        await trio.stop(name)
