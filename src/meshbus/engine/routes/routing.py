"""Routing table: the next hop to each node.

A destination has one next hop in use, and a few other *ways*, the neighbors through which it was heard too. The rules
are those of mesh.md §5 where nodes must agree on them, and stricter where the choice is only ours:

    installed    by a session or the application: metric 1, replaces whatever was there
    learned      from a pingwave or a forwarded announcement: used if there is no route, or if its metric is strictly
                 lower than the present one; otherwise it refreshes the route and is kept as another way
    unconfirmed  the neighbor in use has forwarded nothing from the destination for `patience_s`, and another one has:
                 the other one is used. A 0.23 node keeps such a route as long as the destination is heard through
                 any neighbor, even if the link behind the neighbor in use is broken
    stale        the destination was not heard for `max_age_s`: the route is not used, and is removed

A next hop is an address; the peer table knows which node has it. The size is limited: when the table is full, new
destinations are refused, so that invented ones cannot displace real ones. Pingwaves are handled in
engine/routes/pingwaves.py, failures of neighbors in engine/routes/reroute.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

import msgspec

from meshbus.engine.base.packets import Address
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

MAX_ROUTES = 16_384
"""Destinations in the table. Our choice."""
MAX_WAYS = 4
"""Ways kept for one destination. Our choice."""
INSTALLED_METRIC = 1
"""Metric of an installed route (mesh.md §5)."""
LEARNED_METRIC = 2
"""Added to the hop count of a learned route (mesh.md §5)."""

RouteChanged = Callable[[int, Address | None], None]
"""Called with a destination and its new next hop, or None if it has none."""


BOUNDS = (
    Bound(
        name="routes",
        what="destinations with a route",
        by=By.PEER,
        per_node=MAX_ROUTES,
        per={"destination, in ways": MAX_WAYS},
        full="the new one is ignored, until others are stale",
        counter=Reason.PINGWAVE_FULL,
    ),
)


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetimes of routes."""

    patience_s: float = 30.0
    """Silence after which a neighbor is replaced by another way: one session timeout."""
    max_age_s: float = 90.0
    """Age at which a route is stale: three session timeouts (mesh.md §5)."""


class RouteInfo(msgspec.Struct, frozen=True):
    """One route, for display."""

    node_id: int
    next_hop: Address
    metric: int
    age_s: float


class _Way:
    """One neighbor through which a destination can be reached."""

    __slots__ = ("heard_at", "installed", "lowest_at", "metric")

    def __init__(self, metric: int, now: float, *, installed: bool) -> None:
        self.metric = metric
        self.installed = installed
        self.heard_at = now
        """When the destination was last heard through this neighbor."""
        self.lowest_at = now
        """When the metric was last confirmed. Copies of one pingwave arrive with different metrics, so a higher metric
        is accepted only after the lower one was not seen for a while."""


class _Route:
    __slots__ = ("heard_at", "hop", "ways")

    def __init__(self, hop: Address, way: _Way) -> None:
        self.hop = hop
        self.ways = {hop: way}
        self.heard_at = way.heard_at

    @property
    def way(self) -> _Way:
        return self.ways[self.hop]


class RoutingTable:
    """Next hops by destination."""

    def __init__(
        self, config: RoutingConfig | None = None, *, changed: RouteChanged = lambda _dest, _hop: None
    ) -> None:
        self.config = config or RoutingConfig()
        self.version = 0
        """Incremented when a next hop changes."""
        self._tell = changed
        self._routes: dict[int, _Route] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def __contains__(self, dest: object) -> bool:
        return dest in self._routes

    def __iter__(self) -> Iterator[int]:
        return iter(self._routes)

    def install(self, dest: int, hop: Address, now: float, *, metric: int = INSTALLED_METRIC) -> None:
        """Set the next hop to a destination, whatever was there; the earlier ways are kept."""
        way = _Way(metric, now, installed=True)
        route = self._routes.get(dest)
        if route is None:
            self._routes[dest] = _Route(hop, way)
            self._changed(dest, hop)
            return
        route.ways[hop] = way
        route.heard_at = now
        self._choose(dest, route, hop)
        self._trim(route)

    def learn(self, dest: int, hop: Address, metric: int, now: float) -> bool:
        """Record that a destination was heard through a neighbor; return False if there is no room for it."""
        route = self._routes.get(dest)
        if route is None:
            if len(self._routes) >= MAX_ROUTES:
                return False
            self._routes[dest] = _Route(hop, _Way(metric, now, installed=False))
            self._changed(dest, hop)
            return True
        route.heard_at = now
        self._note(route, hop, metric, now)
        # mesh.md §5: only a strictly lower metric replaces a route. A silent next hop is our own exception.
        # mesh.md §5: equal metrics never replace each other, or two equal ways would alternate.
        chosen, heard = route.way, route.ways[hop]
        overdue = now - chosen.heard_at > self.config.patience_s
        if hop != route.hop and (heard.metric < chosen.metric or overdue):
            self._choose(dest, route, hop)
        self._trim(route)
        return True

    def rename(self, old: int, new: int) -> None:
        """Lead to a node that goes on under another id by the same ways."""
        route = self._routes.pop(old, None)
        if route is not None:
            self._changed(old, None)
            if new not in self._routes:
                self._routes[new] = route
                self._changed(new, route.hop)

    def confirm(self, dest: int, hop: Address, now: float) -> None:
        """Record that a known way works."""
        route = self._routes.get(dest)
        if route is not None and hop in route.ways:
            route.heard_at = route.ways[hop].heard_at = now

    def lookup(self, dest: int, now: float) -> Address | None:  # hot: bench_forward
        """Return the next hop to a destination, or None if there is none or it is stale."""
        route = self._routes.get(dest)
        if route is None or now - route.heard_at > self.config.max_age_s:
            return None
        return route.hop

    def stale_at(self, dest: int) -> float:
        """Return until when `lookup` returns its present result if the route does not change."""
        route = self._routes.get(dest)
        return inf if route is None else route.heard_at + self.config.max_age_s

    def metric(self, dest: int) -> int | None:
        """Return the metric of a route, or None."""
        route = self._routes.get(dest)
        return None if route is None else route.way.metric

    def via(self, hop: Address) -> list[int]:
        """Return the destinations whose next hop is this address."""
        return [dest for dest, route in self._routes.items() if route.hop == hop]

    def another(self, dest: int, avoid: Address, now: float) -> Address | None:
        """Return the best way to a destination that avoids an address and was heard lately, or None."""
        route = self._routes.get(dest)
        if route is None:
            return None
        earliest = now - self.config.patience_s
        # Among equal metrics, the way that was heard last.
        ways = [(way.metric, -way.heard_at, hop) for hop, way in route.ways.items() if way.heard_at >= earliest]
        ways = [way for way in ways if way[2] != avoid]
        return min(ways, key=lambda way: way[:2])[2] if ways else None

    def choose(self, dest: int, hop: Address, now: float) -> None:
        """Use a known way, or a new one with the metric of the way in use."""
        route = self._routes.get(dest)
        if route is None:
            # Not `install`: a learned way may be replaced by a pingwave, while an installed one keeps metric 1.
            self.learn(dest, hop, INSTALLED_METRIC, now)
            return
        if hop not in route.ways:
            route.ways[hop] = _Way(route.way.metric, now, installed=False)
        route.heard_at = now
        self._choose(dest, route, hop)
        self._trim(route)

    def withdraw(self, dest: int, hop: Address) -> None:
        """Remove one way to a destination; if it is the last one, remove the route."""
        route = self._routes.get(dest)
        if route is None or hop not in route.ways:
            return
        del route.ways[hop]
        if not route.ways:
            del self._routes[dest]
            self._changed(dest, None)
        elif hop == route.hop:
            best = min(route.ways.items(), key=lambda way: (way[1].metric, -way[1].heard_at))[0]
            route.hop = best
            self._changed(dest, best)

    def move_hop(self, old: Address, new: Address) -> None:
        """Replace the address of a neighbor in all routes."""
        for dest, route in self._routes.items():
            if old in route.ways:
                route.ways[new] = route.ways.pop(old)
                if route.hop == old:
                    route.hop = new
                    self._changed(dest, new)

    def sweep(self, now: float, *, alive: Callable[[int], bool] = lambda _dest: False) -> int:
        """Remove stale routes and return their number; a destination for which `alive` returns True is kept."""
        swept = 0
        for dest, route in list(self._routes.items()):
            if now - route.heard_at <= self.config.max_age_s:
                continue
            # mesh.md §5: a 0.23 node drops the route of a peer that sends no pingwaves; we keep it while it is heard.
            if alive(dest):
                route.heard_at = now
                continue
            del self._routes[dest]
            self._changed(dest, None)
            swept += 1
        return swept

    def describe(self, now: float) -> list[RouteInfo]:
        """Return all routes, sorted by node id."""
        return [
            RouteInfo(dest, route.hop, route.way.metric, now - route.heard_at)
            for dest, route in sorted(self._routes.items())
        ]

    def _changed(self, dest: int, hop: Address | None) -> None:
        self.version += 1
        self._tell(dest, hop)

    def _note(self, route: _Route, hop: Address, metric: int, now: float) -> None:
        way = route.ways.get(hop)
        if way is None:
            route.ways[hop] = _Way(metric, now, installed=False)
            return
        way.heard_at = now
        # An installed way keeps metric 1: a pingwave would report a higher one for the same neighbor.
        if way.installed:
            return
        if metric <= way.metric or now - way.lowest_at > self.config.patience_s:
            way.metric, way.lowest_at = metric, now

    def _choose(self, dest: int, route: _Route, hop: Address) -> None:
        if route.hop != hop:
            route.hop = hop
            self._changed(dest, hop)

    @staticmethod
    def _trim(route: _Route) -> None:
        """Remove the way that was heard longest ago if there are too many; never the one in use."""
        if len(route.ways) > MAX_WAYS:
            others = (hop for hop in route.ways if hop != route.hop)
            del route.ways[min(others, key=lambda hop: route.ways[hop].heard_at)]
