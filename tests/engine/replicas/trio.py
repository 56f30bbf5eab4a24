"""Three engines on a fake network that replicate one channel, each with a disk in memory."""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.records import Acknowledged, Acks, Notice, Write
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.messages.redex import channel_id
from tests.engine.fleet import meet
from tests.engine.replicas.memorydisk import MemoryDisk

CHANNEL = "alarms"
ID = channel_id(CHANNEL)
HEARTBEAT_S = 0.1


class Trio:
    """The nodes, and what they do with the work of their engines: everything is durable at the next look."""

    def __init__(self, seed: int = 0) -> None:
        self.net = FakeNet(seed)
        self.nodes = [self.net.create(name) for name in ("one", "two", "three")]
        self.disks = {node.node_id: MemoryDisk() for node in self.nodes}
        self.notices: dict[int, list[Notice]] = {node.node_id: [] for node in self.nodes}
        self._seen = dict.fromkeys(self.disks, 0)
        meet(*self.nodes)

    def open(self) -> None:
        """Open the channel on all nodes, and wait for a leader."""
        members = tuple(node.node_id for node in self.nodes)
        settings = ReplicaSettings(nodes=members, heartbeat_s=HEARTBEAT_S)
        for node in self.nodes:
            disk = self.disks[node.node_id]
            with node.turn() as (engine, now, out):
                engine.replicas.open(ID, settings, disk.content.recovered(), disk, now, out)
        self.until(lambda: self.leader() is not None)

    def leader(self) -> FakeNode | None:
        """Return the node that leads, and can change the set."""
        for node in self.nodes:
            lead = node.engine.replicas[ID].lead if ID in node.engine.replicas else None
            if lead is not None and not lead.fenced(self.net.clock.now) and lead.established and lead.config_stored:
                return node
        return None

    def append(self, node: FakeNode, token: int, *records: bytes, acks: Acks = Acks.MAJORITY) -> None:
        with node.turn() as (engine, now, out):
            engine.replicas.append(ID, token, records, acks, now, out)

    def acknowledged(self, node: FakeNode, token: int) -> bool:
        return any(isinstance(one, Acknowledged) and one.token == token for one in self.notices[node.node_id])

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(2000):
            if done():
                return
            self.step()
        raise AssertionError("the nodes do not get there")

    def step(self) -> None:
        """Carry out what the engines asked for, and let a moment pass."""
        for node in self.nodes:
            work = node.happened(ReplicaWork)
            new, self._seen[node.node_id] = work[self._seen[node.node_id] :], len(work)
            for one in new:
                self._carry_out(node, one)
        self.net.run(for_s=0.005)

    def _carry_out(self, node: FakeNode, work: ReplicaWork) -> None:
        writes: tuple[Write, ...] = work.writes  # type: ignore[assignment]
        self.notices[node.node_id] += work.notices  # type: ignore[arg-type]
        disk = self.disks[node.node_id]
        for write in writes:
            disk.write(write)
        if writes:
            number = writes[-1].number
            disk.sync(number)
            with node.turn() as (engine, now, out):
                engine.replicas.durable(ID, number, now, out)
