"""The proximity graph: who is near whom, as pingwaves tell it.

Nodes carry what their last pingwave said; edges carry a one-way latency, smoothed. Nothing here decides where a packet
goes: the routing table does, and asks for a path only when a neighbor has failed. Both are swept by the same clock and
bounded. Times of other nodes' clocks are only compared with our own, so latencies between machines whose clocks differ
are estimates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from meshbus.engine.base.packets import Address
from meshbus.wire.pingwave import Health, Pingwave

MAX_NODES = 16_384
MAX_EDGES = 65_536
EDGE_REFRESH_S = 1.0
"""The edge to a neighbor is written at most so often."""
MAX_LATENCY_US = 1 << 40

_SMOOTHING = 8
_LOAD_COST, _HOP_COST = 50.0, 10.0
_HEALTH_COST = {Health.HEALTHY: 0.0, Health.DEGRADED: 25.0, Health.UNKNOWN: 50.0, Health.UNHEALTHY: 1000.0}


class Abilities(msgspec.Struct, frozen=True):
    """What a pingwave says about its origin in short."""

    capability_hash: int = 0
    capability_version: int = 0
    gpu: int = 0
    model_slots: int = 0
    memory_tier: int = 0
    tools: int = 0
    capability_flags: int = 0


class GraphNode(msgspec.Struct):
    """One node as its pingwaves describe it."""

    node_id: int
    heard_from: Address
    hops: int
    latency_us: int
    last_seq: int
    load: int
    health: Health
    abilities: Abilities
    seen_at: float

    @property
    def score(self) -> float:
        """How costly the node is to use: latency in milliseconds, load and health; lower is better."""
        distance = self.latency_us / 1000 if self.latency_us else self.hops * _HOP_COST
        return distance + self.load / 255 * _LOAD_COST + _HEALTH_COST[self.health]


class Edge(msgspec.Struct):
    """A hop between two nodes."""

    latency_us: int
    seen_at: float


def smoothed(previous_us: int, sample_us: int) -> int:
    """Return the new latency of an edge: an eighth of each sample, in whole numbers; 0 is no sample."""
    if sample_us == 0:
        return previous_us
    return previous_us - previous_us // _SMOOTHING + sample_us // _SMOOTHING


class ProximityGraph:
    """Nodes and edges around one node."""

    def __init__(self, node_id: int) -> None:
        self._self = node_id
        self._nodes: dict[int, GraphNode] = {}
        self._edges: dict[int, dict[int, Edge]] = {}
        self._edge_count = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[GraphNode]:
        return iter(list(self._nodes.values()))

    def get(self, node_id: int) -> GraphNode | None:
        """Find a node."""
        return self._nodes.get(node_id)

    def edge(self, source: int, dest: int) -> Edge | None:
        """Find an edge."""
        return self._edges.get(source, {}).get(dest)

    def seed(self, node_id: int, address: Address, now: float) -> None:
        """Enter a neighbor that has not sent a pingwave yet."""
        self.observe(Pingwave(node_id=node_id, seq=0, ttl=1, timestamp_us=0), node_id, address, now, 0)

    def observe(self, wave: Pingwave, sender: int, address: Address, now: float, wall_us: int) -> bool:
        """Take in a pingwave that a neighbor sent; False when there is no room for its origin."""
        sample_us = min(max(wall_us - wave.timestamp_us, 0), MAX_LATENCY_US) if wave.timestamp_us else 0
        hops = min(wave.hop_count + 1, 0xFF)
        node = self._nodes.get(wave.node_id)
        if node is None:
            if len(self._nodes) >= MAX_NODES:
                return False
            self._nodes[wave.node_id] = GraphNode(
                wave.node_id, address, hops, sample_us, wave.seq, wave.load, wave.health, _abilities(wave), now
            )
        else:
            node.last_seq = max(node.last_seq, wave.seq)
            if hops <= node.hops:
                node.heard_from, node.hops, node.latency_us = address, hops, sample_us
            if wave.capability_version > node.abilities.capability_version:
                node.abilities = _abilities(wave)
            node.load, node.health, node.seen_at = wave.load, wave.health, now
        near = self.edge(self._self, sender)
        if near is None or now - near.seen_at >= EDGE_REFRESH_S:
            self._connect(self._self, sender, 0, now)
        if sender != wave.node_id:
            self._connect(sender, wave.node_id, sample_us, now)
        return True

    def path_to(self, dest: int, *, avoid: int | None = None) -> list[int]:
        """Return the nodes on a way with the fewest hops, destination included; empty when there is none.

        `avoid` may be the destination, but nothing else on the way, and not our neighbor.
        """
        before: dict[int, int] = {self._self: self._self}
        waiting = deque([self._self])
        while waiting:
            node = waiting.popleft()
            if node == dest:
                path = []
                while node != self._self:
                    path.append(node)
                    node = before[node]
                return path[::-1]
            for further in self._edges.get(node, ()):
                avoided = further == avoid and (further != dest or node == self._self)
                if further not in before and not avoided:
                    before[further] = node
                    waiting.append(further)
        return []

    def nearest(self, predicate: Callable[[GraphNode], bool] = lambda _node: True) -> GraphNode | None:
        """Return the matching node with the lowest latency."""
        return min(filter(predicate, self), key=lambda node: (node.latency_us, node.node_id), default=None)

    def best(self, predicate: Callable[[GraphNode], bool] = lambda _node: True) -> GraphNode | None:
        """Return the matching node with the lowest score."""
        return min(filter(predicate, self), key=lambda node: (node.score, node.node_id), default=None)

    def sweep(self, now: float, max_age_s: float) -> int:
        """Forget nodes and edges that were not heard of for so long; says how many nodes."""
        for source, edges in list(self._edges.items()):
            for dest in [dest for dest, edge in edges.items() if now - edge.seen_at > max_age_s]:
                del edges[dest]
                self._edge_count -= 1
            if not edges:
                del self._edges[source]
        old = [node_id for node_id, node in self._nodes.items() if now - node.seen_at > max_age_s]
        for node_id in old:
            del self._nodes[node_id]
        return len(old)

    def _connect(self, source: int, dest: int, sample_us: int, now: float) -> None:
        edges = self._edges.setdefault(source, {})
        edge = edges.get(dest)
        if edge is not None:
            edge.latency_us, edge.seen_at = smoothed(edge.latency_us, sample_us), now
        elif self._edge_count < MAX_EDGES:
            edges[dest] = Edge(sample_us, now)
            self._edge_count += 1


def _abilities(wave: Pingwave) -> Abilities:
    return Abilities(
        wave.capability_hash,
        wave.capability_version,
        wave.gpu,
        wave.model_slots,
        wave.memory_tier,
        wave.tools,
        wave.capability_flags,
    )
