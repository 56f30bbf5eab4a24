"""The routing table: through which neighbor a node is reached.

A destination has one chosen next hop and remembers a few others that were heard from. The rules are those of the 0.23
wire, where two nodes must agree on them, and stricter where only this node can tell:

    installed    a session or the application says so: metric 1, at once, whatever was there
    learned      a pingwave or a forwarded announcement came through a neighbor: chosen when nothing is there or its
                 metric is strictly lower; else it keeps the route young and is remembered as another way
    unconfirmed  the chosen neighbor has not passed on anything from there for `patience_s`, and another has: that one
                 is chosen. The 0.23 table keeps such a route for as long as anybody is heard from there, which leads
                 into the dark when a link breaks behind the neighbor
    stale        nobody was heard from there for `max_age_s`: not used, and swept

A next hop is an address of ours to send to; which node that is, the peer table knows. Memory is bounded: when the table
is full, new destinations are refused, so that a crowd of invented ones displaces nobody. What the neighbors say is in
engine/routes/pingwaves.py, what is done when one fails in engine/routes/reroute.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

import msgspec

from meshbus.engine.base.packets import Address

MAX_ROUTES = 16_384
MAX_WAYS = 4
"""Ways remembered for one destination."""
INSTALLED_METRIC = 1
LEARNED_METRIC = 2
"""What a destination costs beside its hops when it was learned."""

RouteChanged = Callable[[int, Address | None], None]
"""Is told a destination and its new next hop, None when there is none any more."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How long routes hold."""

    patience_s: float = 30.0
    """A neighbor that passed nothing on for so long gives way to another: one session timeout."""
    max_age_s: float = 90.0
    """Three session timeouts, as on the other side of the wire."""


class RouteInfo(msgspec.Struct, frozen=True):
    """One route as people read it."""

    node_id: int
    next_hop: Address
    metric: int
    age_s: float


class _Way:
    """What one neighbor offers for a destination."""

    __slots__ = ("heard_at", "installed", "lowest_at", "metric")

    def __init__(self, metric: int, now: float, *, installed: bool) -> None:
        self.metric = metric
        self.installed = installed
        self.heard_at = now
        """When the destination was last heard through this neighbor."""
        self.lowest_at = now
        """When the metric was last confirmed: copies of a pingwave race each other, so a higher one must persist."""


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
        """Grows when a next hop changes."""
        self._tell = changed
        self._routes: dict[int, _Route] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def __contains__(self, dest: object) -> bool:
        return dest in self._routes

    def __iter__(self) -> Iterator[int]:
        return iter(self._routes)

    def install(self, dest: int, hop: Address, now: float, *, metric: int = INSTALLED_METRIC) -> None:
        """Set a route, whatever was there; the earlier ways stay as others."""
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
        """Hear of a destination through a neighbor; False when there is no room for it."""
        route = self._routes.get(dest)
        if route is None:
            if len(self._routes) >= MAX_ROUTES:
                return False
            self._routes[dest] = _Route(hop, _Way(metric, now, installed=False))
            self._changed(dest, hop)
            return True
        route.heard_at = now
        self._note(route, hop, metric, now)
        chosen, heard = route.way, route.ways[hop]
        overdue = now - chosen.heard_at > self.config.patience_s
        if hop != route.hop and (heard.metric < chosen.metric or overdue):
            self._choose(dest, route, hop)
        self._trim(route)
        return True

    def confirm(self, dest: int, hop: Address, now: float) -> None:
        """Note that a way works, if it is there."""
        route = self._routes.get(dest)
        if route is not None and hop in route.ways:
            route.heard_at = route.ways[hop].heard_at = now

    def lookup(self, dest: int, now: float) -> Address | None:  # hot: bench_forward
        """Return the next hop to a destination; None when there is none, or only a stale one."""
        route = self._routes.get(dest)
        if route is None or now - route.heard_at > self.config.max_age_s:
            return None
        return route.hop

    def stale_at(self, dest: int) -> float:
        """Say until when `lookup` gives what it gives now, if nothing changes."""
        route = self._routes.get(dest)
        return inf if route is None else route.heard_at + self.config.max_age_s

    def metric(self, dest: int) -> int | None:
        """Return the metric of a route."""
        route = self._routes.get(dest)
        return None if route is None else route.way.metric

    def via(self, hop: Address) -> list[int]:
        """Return the destinations that are reached through a neighbor."""
        return [dest for dest, route in self._routes.items() if route.hop == hop]

    def another(self, dest: int, avoid: Address, now: float) -> Address | None:
        """Return the best other way to a destination that is not overdue."""
        route = self._routes.get(dest)
        if route is None:
            return None
        earliest = now - self.config.patience_s
        ways = [(way.metric, -way.heard_at, hop) for hop, way in route.ways.items() if way.heard_at >= earliest]
        ways = [way for way in ways if way[2] != avoid]
        return min(ways, key=lambda way: way[:2])[2] if ways else None

    def choose(self, dest: int, hop: Address, now: float) -> None:
        """Use a way that is there, or a new one as good as the one in use."""
        route = self._routes.get(dest)
        if route is None:
            self.learn(dest, hop, INSTALLED_METRIC, now)
            return
        if hop not in route.ways:
            route.ways[hop] = _Way(route.way.metric, now, installed=False)
        route.heard_at = now
        self._choose(dest, route, hop)
        self._trim(route)

    def withdraw(self, dest: int, hop: Address) -> None:
        """Forget one way; without another one the destination is unreachable."""
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

    def withdraw_hop(self, hop: Address) -> None:
        """Forget every way through a neighbor."""
        for dest in [dest for dest, route in self._routes.items() if hop in route.ways]:
            self.withdraw(dest, hop)

    def move_hop(self, old: Address, new: Address) -> None:
        """Follow a neighbor to another address."""
        for dest, route in self._routes.items():
            if old in route.ways:
                route.ways[new] = route.ways.pop(old)
                if route.hop == old:
                    route.hop = new
                    self._changed(dest, new)

    def sweep(self, now: float, *, alive: Callable[[int], bool] = lambda _dest: False) -> int:
        """Forget what is stale, and say how many; a destination that is heard from in other ways is spared."""
        swept = 0
        for dest, route in list(self._routes.items()):
            if now - route.heard_at <= self.config.max_age_s:
                continue
            if alive(dest):
                route.heard_at = now
                continue
            del self._routes[dest]
            self._changed(dest, None)
            swept += 1
        return swept

    def describe(self, now: float) -> list[RouteInfo]:
        """Return all routes, by node id."""
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
        """Forget the way heard longest ago, beyond the bound."""
        if len(route.ways) > MAX_WAYS:
            others = (hop for hop in route.ways if hop != route.hop)
            del route.ways[min(others, key=lambda hop: route.ways[hop].heard_at)]
