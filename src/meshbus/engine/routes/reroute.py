"""What happens to routes when a neighbor fails, and when it comes back.

For each destination behind the failed neighbor another way is looked for, in this order: another neighbor that the
destination was lately heard through; the first neighbor on a path of the proximity graph that avoids the failed one.
There is no third choice: a neighbor taken at random may lead nowhere or in a circle, so without a way the destination is
unreachable until something is heard of it.

The failed neighbor is remembered as the cause, the first one if there are several, and when it is heard again its
destinations go back to it, at the address it then has.
"""

from __future__ import annotations

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address
from meshbus.engine.routes.proximity import ProximityGraph
from meshbus.engine.routes.routing import MAX_ROUTES, RoutingTable
from meshbus.engine.session.peer import Health, PeerTable


class ReroutePolicy:
    """Moves routes off failed neighbors and back."""

    def __init__(self, table: RoutingTable, graph: ProximityGraph, peers: PeerTable, counters: Counters) -> None:
        self._table = table
        self._graph = graph
        self._peers = peers
        self._counters = counters
        self._saved: dict[int, int] = {}
        """Destination, and the neighbor whose failure moved it."""

    def __len__(self) -> int:
        return len(self._saved)

    def failed(self, node_id: int, hop: Address, now: float) -> None:
        """Take every route off a neighbor."""
        for dest in self._table.via(hop):
            if len(self._saved) < MAX_ROUTES:
                self._saved.setdefault(dest, node_id)
            other = self._table.another(dest, hop, now)
            if other is None:
                other = self._by_graph(dest, node_id)
            if other is None:
                self._counters.add("route", "lost")
            else:
                self._counters.add("route", "moved")
                self._table.choose(dest, other, now)
            self._table.withdraw(dest, hop)

    def recovered(self, node_id: int, hop: Address, now: float) -> None:
        """Return a neighbor back what its failure took away."""
        restored = [dest for dest, cause in self._saved.items() if cause == node_id]
        for dest in restored:
            del self._saved[dest]
            self._table.choose(dest, hop, now)
        self._counters.add("route", "restored", len(restored))

    def forget(self, node_id: int) -> None:
        """Drop what was saved for a neighbor that is gone for good."""
        self._saved = {dest: cause for dest, cause in self._saved.items() if cause != node_id}

    def _by_graph(self, dest: int, failed: int) -> Address | None:
        path = self._graph.path_to(dest, avoid=failed)
        first = self._peers.get(path[0]) if path else None
        if first is None or first.node_id == failed or first.health is Health.FAILED:
            return None
        return first.link.home
