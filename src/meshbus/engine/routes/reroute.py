"""Rerouting: moves routes away from a failed neighbor, and back when it recovers (mesh.md §7).

Each destination behind the failed neighbor gets another next hop, in this order:

    1  another neighbor through which the destination was heard lately
    2  the first neighbor on a path of the proximity graph that avoids the failed one

A 0.23 node then tries any connected peer. We do not: it may lead nowhere or in a loop. Without a next hop the
destination is unreachable until it is heard again.

The failed neighbor is recorded as the cause; if several failed, the first one. When it recovers, its destinations go
back to it, at the address that it then has.
"""

from __future__ import annotations

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address
from meshbus.engine.base.renaming import move
from meshbus.engine.routes.proximity import ProximityGraph
from meshbus.engine.routes.routing import MAX_ROUTES, RoutingTable
from meshbus.engine.session.peer import Health, PeerTable


class ReroutePolicy:
    """Moves routes away from failed neighbors and back."""

    def __init__(self, table: RoutingTable, graph: ProximityGraph, peers: PeerTable, counters: Counters) -> None:
        self._table = table
        self._graph = graph
        self._peers = peers
        self._counters = counters
        self._saved: dict[int, int] = {}
        """The neighbor whose failure moved a route, by destination."""

    def __len__(self) -> int:
        return len(self._saved)

    def failed(self, node_id: int, hop: Address, now: float) -> None:
        """Move every route away from a neighbor that failed."""
        # Only routes in use. Other ways through the failed neighbor are not chosen once it was silent for `patience_s`.
        for dest in self._table.via(hop):
            # mesh.md §7: the first cause wins.
            # Not more than the table can hold. What is not recorded is not moved back, but it is learned again.
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
            # After `choose`, so that the route changes once and not first to some other way.
            self._table.withdraw(dest, hop)

    def recovered(self, node_id: int, hop: Address, now: float) -> None:
        """Move back to a neighbor the routes that its failure had moved."""
        restored = [dest for dest, cause in self._saved.items() if cause == node_id]
        for dest in restored:
            del self._saved[dest]
            self._table.choose(dest, hop, now)
        self._counters.add("route", "restored", len(restored))

    def rename(self, old: int, new: int) -> None:
        """Know a node that goes on under another id."""
        move(self._saved, old, new)
        self._saved = {dest: new if cause == old else cause for dest, cause in self._saved.items()}

    def forget(self, node_id: int) -> None:
        """Remove the moved routes of a neighbor that was removed."""
        self._saved = {dest: cause for dest, cause in self._saved.items() if cause != node_id}

    def _by_graph(self, dest: int, failed: int) -> Address | None:
        path = self._graph.path_to(dest, avoid=failed)
        first = self._peers.get(path[0]) if path else None
        # The graph may be out of date: the first hop of the path may have failed too.
        if first is None or first.node_id == failed or first.health is Health.FAILED:
            return None
        return first.link.home
