"""Nodes that hold the same chains, with a network that tests control: which nodes reach each other, and in what order."""

from __future__ import annotations

import random
from collections import defaultdict, deque

from meshbus.compute.causal import ChainHead, EntityLog
from meshbus.compute.heldchain import HeldChain
from meshbus.compute.keeper import ChainKeeper
from meshbus.compute.reconciling import Outbound, Report
from meshbus.engine.base.counters import Counters
from meshbus.wire.messages.causal import CausalLink

ORIGIN = 0xABCDEF0123456789


class Keeping:
    """One node."""

    def __init__(self, net: KeeperNet, node: int) -> None:
        self.net = net
        self.node = node
        self.counters = Counters()
        self.keeper = ChainKeeper(node, self.counters)
        self.reports: list[Report] = []

    def hold(self, *members: int, origin: int = ORIGIN) -> None:
        self.net.post(self.node, self.keeper.hold(EntityLog(origin), members))

    @property
    def chain(self) -> HeldChain:
        chain = self.keeper.chain(ORIGIN)
        assert chain is not None
        return chain

    @property
    def payloads(self) -> list[bytes]:
        return [event.payload for event in self.chain.log.events]

    def write(self, *payloads: bytes, horizon: int = 0) -> None:
        """Add events to the copy of this node, as a daemon that runs here does."""
        head = ChainHead(self.chain.log.head.link, self.chain.log.head_hash)
        events = [head.emit(payload, horizon) for payload in payloads]
        self.net.post(self.node, self.keeper.append(ORIGIN, events))

    def reported(self, kind: type) -> list[Report]:
        self.reports += self.keeper.take_reports()
        return [report for report in self.reports if type(report) is kind]


class KeeperNet:
    """Messages between nodes: in order for each pair, as on reliable streams, and otherwise in any order."""

    def __init__(self, *nodes: int, seed: int = 0, drops: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.drops = drops
        self.nodes = {node: Keeping(self, node) for node in nodes}
        self._links: set[frozenset[int]] = set()
        self._queues: defaultdict[tuple[int, int], deque[tuple[int, bytes]]] = defaultdict(deque)

    def connect(self, *pairs: tuple[int, int]) -> None:
        for left, right in pairs:
            self._links.add(frozenset((left, right)))
            for node, other in ((left, right), (right, left)):
                self.post(node, self.nodes[node].keeper.peer_up(other))

    def cut(self, *pairs: tuple[int, int]) -> None:
        """Lose the connection between nodes, and what is under way."""
        for left, right in pairs:
            self._links.discard(frozenset((left, right)))
            for node, other in ((left, right), (right, left)):
                self._queues.pop((node, other), None)
                self.nodes[node].keeper.peer_down(other)

    def post(self, sender: int, out: list[Outbound]) -> None:
        for to, subprotocol_id, message in out:
            if frozenset((sender, to)) in self._links:
                self._queues[sender, to].append((subprotocol_id, message))

    def step(self) -> bool:
        """Deliver one message of some pair, and return whether there was one."""
        waiting = [pair for pair, queue in self._queues.items() if queue]
        if not waiting:
            return False
        sender, to = self.rng.choice(waiting)
        subprotocol_id, message = self._queues[sender, to].popleft()
        if self.rng.random() >= self.drops:
            self.post(to, self.nodes[to].keeper.handle(subprotocol_id, message, sender, self.now))
        return True

    def run(self, limit: int = 20_000) -> None:
        """Deliver everything, and let the timers of unanswered questions pass."""
        for _ in range(limit):
            if self.step():
                continue
            times = [time for node in self.nodes.values() if (time := node.keeper.next_timer()) is not None]
            if not times:
                return
            self.now = max(self.now, min(times))
            for number, node in self.nodes.items():
                self.post(number, node.keeper.tick(self.now))
        raise AssertionError("the nodes never came to rest")


def fork(origin: int = ORIGIN) -> ChainHead:
    """Return the beginning of a chain."""
    return ChainHead(CausalLink(origin))
