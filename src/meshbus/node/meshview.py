"""What a node tells about the mesh around it: ways, distances, and what it did with packets for others.

For looking only; the parts that decide are engine/routes/mesh.py and what it composes.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.core import Engine
from meshbus.engine.directory.reachability import NatStatus
from meshbus.engine.routes.proximity import GraphNode
from meshbus.engine.routes.routing import RouteInfo
from meshbus.engine.routes.tap import InColumns, Passed
from meshbus.node.driver import Driver
from meshbus.policy.gateway import GatewayStats


class MeshView:
    """The mesh as one running node sees it."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def routes(self) -> list[RouteInfo]:
        """The nodes that can be reached, and by which way."""
        return self._engine.mesh.table.describe(Driver.now())

    @property
    def nodes(self) -> list[GraphNode]:
        """The nodes that were heard of, nearest first."""
        return sorted(self._engine.mesh.graph, key=lambda node: (node.latency_us, node.node_id))

    @property
    def gateway(self) -> GatewayStats:
        """How many forwarded packets were judged, and how; a plain relay judges only how far they may go."""
        return self._engine.mesh.boundary.gateway.stats

    @property
    def nat(self) -> NatStatus:
        """What kind of NAT this node is behind, and where others see it, as far as two neighbors have told."""
        return self._engine.traversal.nat.status

    def record(self, recorder: Callable[[Passed], None] | None) -> None:
        """Hand every batch of packets that is forwarded, delivered or dropped on its way to a recorder; None ends it.

        It is called on the packet path, before the memory of a batch is used again, and must not take long.
        """
        self._engine.mesh.tap.recorder = None if recorder is None else InColumns(recorder)
