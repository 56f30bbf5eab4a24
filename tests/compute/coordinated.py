"""Nodes with groups of daemons on a network that tests control; outputs are published to one log, once each."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict, deque

from meshbus.compute.coordination import Coordination, Report
from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.groups import GroupKind, GroupSpec
from meshbus.compute.member import GroupMember
from meshbus.compute.reconciling import Outbound
from meshbus.compute.registry import Factory
from meshbus.engine.base.counters import Counters
from meshbus.names.subnet import SubnetId
from tests.compute.counter import Counter

SEED = bytes(range(32))
STEP_S = 0.25


class Coordinated:
    """Several nodes, and what they published."""

    def __init__(self, *nodes: int, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.counters = {node: Counters() for node in nodes}
        self.nodes = {node: Coordination(node, self.counters[node], round) for node in nodes}
        self.reports: defaultdict[int, list[Report]] = defaultdict(list)
        self.published: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        """What was published under each origin and number; a log keeps the first."""
        self.log: dict[tuple[int, int], bytes] = {}
        self.publishes = True
        self.subnets = dict.fromkeys(nodes, SubnetId.parse("1"))
        self._links: set[frozenset[int]] = set()
        self._queues: defaultdict[tuple[int, int], deque[tuple[int, bytes]]] = defaultdict(deque)

    def join(self, kind: GroupKind = GroupKind.STANDBY, size: int = 2, *, create: type[Counter] = Counter) -> GroupSpec:
        """Create a group over all nodes."""
        spec = GroupSpec(seed=SEED, kind=kind, size=size, nodes=tuple(self.nodes), parent_origin=77, fork_seq=3)
        for node in self.nodes:
            self.post(node, self.nodes[node].join(spec, Factory(create=create), self.now))
        return spec

    def member(self, node: int, spec: GroupSpec) -> GroupMember:
        return self.nodes[node].group(spec.group_id)

    def connect(self, *nodes: int) -> None:
        for pair in itertools.combinations(nodes, 2):
            if frozenset(pair) not in self._links:
                self._links.add(frozenset(pair))
                for node, other in (pair, pair[::-1]):
                    self.post(node, self.nodes[node].peer_up(other, self.subnets[other], self.now))

    def cut(self, *nodes: int) -> None:
        """Separate these nodes from all others."""
        for pair in [pair for pair in self._links if len(pair & set(nodes)) == 1]:
            self._links.discard(pair)
            for node, other in itertools.permutations(pair):
                self._queues.pop((node, other), None)
                if node in self.nodes:
                    self.post(node, self.nodes[node].peer_down(other, self.now))

    def crash(self, node: int) -> None:
        self.cut(node)
        del self.nodes[node]

    def send(self, node: int, spec: GroupSpec, number: int, key: bytes | None = None) -> None:
        event = DaemonEvent(1000 + node, number, b"%d of %d" % (number, node))
        self.post(node, self.nodes[node].send(spec.group_id, event, key))

    def post(self, sender: int, out: list[Outbound]) -> None:
        for to, subprotocol_id, message in out:
            if frozenset((sender, to)) in self._links:
                self._queues[sender, to].append((subprotocol_id, message))
        self._watch(sender)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            for node in self.rng.sample(list(self.nodes), len(self.nodes)):
                self.post(node, self.nodes[node].tick(self.now))
            self.deliver()

    def deliver(self) -> None:
        """Deliver everything that is under way: in order for each pair, otherwise in any order."""
        for _ in range(100_000):
            waiting = [pair for pair, queue in self._queues.items() if queue]
            if not waiting:
                return
            sender, to = self.rng.choice(waiting)
            subprotocol_id, message = self._queues[sender, to].popleft()
            if to in self.nodes:
                self.post(to, self.nodes[to].handle(subprotocol_id, message, sender, self.now))
        raise AssertionError("messages without end")

    def running(self, spec: GroupSpec) -> dict[int, list[int]]:
        return {
            slot: [node for node in self.nodes if self.member(node, spec).host(slot) is not None] for slot in spec.slots
        }

    def seen(self, node: int, kind: type) -> list[Report]:
        return [report for report in self.reports[node] if type(report) is kind]

    def _watch(self, node: int) -> None:
        if node not in self.nodes:
            return
        one = self.nodes[node]
        self.reports[node] += one.take_reports()
        for output in one.take_outputs():
            if self.publishes:
                key = output.origin, output.sequence
                self.published[key].add(output.payload)
                self.log.setdefault(key, output.payload)
                one.published(output)
