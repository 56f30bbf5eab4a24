"""A read-only view of the mesh around a node: routes, distances, and what it did with packets for others.

The decisions are made in engine/routes/mesh.py and its parts.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.core import Engine
from meshbus.engine.directory.reachability import NatStatus
from meshbus.engine.routes.proximity import GraphNode
from meshbus.engine.routes.routing import RouteInfo
from meshbus.engine.routes.tap import InColumns, Passed
from meshbus.node.driving.driver import Driver
from meshbus.policy.gateway import GatewayStats


class MeshView:
    """The mesh as one open node sees it."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def routes(self) -> list[RouteInfo]:
        """The nodes that can be reached, with their next hops."""
        return self._engine.mesh.table.describe(Driver.now())

    @property
    def nodes(self) -> list[GraphNode]:
        """The nodes that pingwaves have reported, nearest first."""
        return sorted(self._engine.mesh.graph, key=lambda node: (node.latency_us, node.node_id))

    @property
    def is_gateway(self) -> bool:
        """Whether this node judges the packets that it forwards between subnets; a change of the policy may change it."""
        return self._engine.mesh.boundary.config is not None

    @property
    def gateway(self) -> GatewayStats:
        """The gateway's verdicts on forwarded packets; a node that is no gateway only checks the hop limit."""
        return self._engine.mesh.boundary.gateway.stats

    @property
    def nat(self) -> NatStatus:
        """The kind of NAT that this node is behind and its public address, once two neighbors have reported it."""
        return self._engine.traversal.nat.status

    def record(self, recorder: Callable[[Passed], None] | None) -> None:
        """Call a recorder with every batch of packets that is forwarded, delivered or dropped; None stops it.

        It is called on the packet path, before the memory of a batch is reused, and must return quickly.
        """
        self._engine.mesh.tap.recorder = None if recorder is None else InColumns(recorder)
