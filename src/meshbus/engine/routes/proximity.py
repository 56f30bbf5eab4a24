"""Proximity graph: nodes and the hops between them, as pingwaves report them (mesh.md §6).

A node has the content of its last pingwave; an edge has a smoothed one-way latency. The graph does not decide where
packets go: the routing table does (engine/routes/routing.py), and it asks for a path only when a neighbor has failed.
The size is limited, and old entries are removed together with old routes. A latency compares the clock of another
machine with ours, so it is an estimate if their clocks differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from meshbus.engine.base.packets import Address
from meshbus.engine.base.renaming import move
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.pingwave import Health, Pingwave

MAX_NODES = 16_384
"""Our choice: as many as the routing table has destinations."""
MAX_EDGES = 65_536
"""Our choice: four for each node."""
EDGE_REFRESH_S = 1.0
"""Shortest interval between updates of the edge to a neighbor (mesh.md §6)."""
MAX_LATENCY_US = 1 << 40
"""Upper limit of a sample, about 12 days: a false timestamp must not make the numbers grow without bound."""

# The weights of mesh.md §6.
_SMOOTHING = 8
_LOAD_COST, _HOP_COST = 50.0, 10.0
_HEALTH_COST = {Health.HEALTHY: 0.0, Health.DEGRADED: 25.0, Health.UNKNOWN: 50.0, Health.UNHEALTHY: 1000.0}


BOUNDS = (
    Bound(
        name="graph_nodes",
        what="nodes of which a pingwave was heard",
        by=By.PEER,
        per_node=MAX_NODES,
        full="the new one is ignored, until others are stale",
        counter=Reason.PINGWAVE_FULL,
    ),
    Bound(
        name="graph_edges",
        what="connections between these nodes",
        by=By.PEER,
        per_node=MAX_EDGES,
        full="the new one is left out",
        counter="none: an edge is needed only to find a path after a failure",
    ),
)


class Abilities(msgspec.Struct, frozen=True):
    """Summary of a node's capabilities in its pingwave."""

    capability_hash: int = 0
    capability_version: int = 0
    gpu: int = 0
    model_slots: int = 0
    memory_tier: int = 0
    tools: int = 0
    capability_flags: int = 0


class GraphNode(msgspec.Struct):
    """A node as its pingwaves describe it."""

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
        """Cost of using the node, by latency in milliseconds, load and health; lower is better (mesh.md §6)."""
        distance = self.latency_us / 1000 if self.latency_us else self.hops * _HOP_COST
        return distance + self.load / 255 * _LOAD_COST + _HEALTH_COST[self.health]


class Edge(msgspec.Struct):
    """A hop between two nodes."""

    latency_us: int
    seen_at: float


def smoothed(previous_us: int, sample_us: int) -> int:
    """Return the new latency of an edge: a moving average with weight 1/8, in integers. A sample of 0 is ignored."""
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
        """Return a node, or None."""
        return self._nodes.get(node_id)

    def latency_to(self, node_id: int) -> int | None:
        """Return the one-way latency of a node in microseconds, or None if it was not measured."""
        node = self._nodes.get(node_id)
        return None if node is None else node.latency_us or None

    def edge(self, source: int, dest: int) -> Edge | None:
        """Return an edge, or None."""
        return self._edges.get(source, {}).get(dest)

    def seed(self, node_id: int, address: Address, now: float) -> None:
        """Add a neighbor that has not sent a pingwave yet, with a synthetic one (mesh.md §6)."""
        self.observe(Pingwave(node_id=node_id, seq=0, ttl=1, timestamp_us=0), node_id, address, now, 0)

    def observe(self, wave: Pingwave, sender: int, address: Address, now: float, wall_us: int) -> bool:
        """Record a pingwave that a neighbor sent; return False if there is no room for its origin."""
        # Our clock may be behind that of the origin: not below 0. A synthetic pingwave has no timestamp.
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
            # mesh.md §6: a longer way updates load and health, but not distance and address.
            node.last_seq = max(node.last_seq, wave.seq)
            if hops <= node.hops:
                node.heard_from, node.hops, node.latency_us = address, hops, sample_us
            if wave.capability_version > node.abilities.capability_version:
                node.abilities = _abilities(wave)
            node.load, node.health, node.seen_at = wave.load, wave.health, now
        # mesh.md §6: the edge to the sender has latency 0; the sample is that of the rest of the way.
        near = self.edge(self._self, sender)
        if near is None or now - near.seen_at >= EDGE_REFRESH_S:
            self._connect(self._self, sender, 0, now)
        if sender != wave.node_id:
            self._connect(sender, wave.node_id, sample_us, now)
        return True

    def rename(self, old: int, new: int) -> None:
        """Keep what is known about a node that goes on under another id; it may be this node itself."""
        self._self = new if self._self == old else self._self
        node = self._nodes.pop(old, None)
        if node is not None and new not in self._nodes:
            node.node_id = new
            self._nodes[new] = node
        move(self._edges, old, new)
        for edges in self._edges.values():
            move(edges, old, new)
        self._edge_count = sum(map(len, self._edges.values()))

    def path_to(self, dest: int, *, avoid: int | None = None) -> list[int]:
        """Return the nodes on a path with the fewest hops, including the destination; empty if there is none.

        The path does not contain `avoid`, except as a destination that is reached through another node.
        """
        # Breadth-first, so the first path that reaches the destination has the fewest hops (mesh.md §6).
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
                # The failed node itself may be the destination, but not by the link that failed.
                avoided = further == avoid and (further != dest or node == self._self)
                if further not in before and not avoided:
                    before[further] = node
                    waiting.append(further)
        return []

    def nearest(self, predicate: Callable[[GraphNode], bool] = lambda _node: True) -> GraphNode | None:
        """Return the matching node with the lowest latency, or None."""
        return min(filter(predicate, self), key=lambda node: (node.latency_us, node.node_id), default=None)

    def best(self, predicate: Callable[[GraphNode], bool] = lambda _node: True) -> GraphNode | None:
        """Return the matching node with the lowest score, or None."""
        return min(filter(predicate, self), key=lambda node: (node.score, node.node_id), default=None)

    def sweep(self, now: float, max_age_s: float) -> int:
        """Remove nodes and edges that were not seen for `max_age_s`, and return the number of nodes removed."""
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
        # Without room the edge is left out: it is needed only to find a path after a failure.
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
