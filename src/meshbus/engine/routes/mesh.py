"""The way to other nodes, composed: routes, pingwaves, detours, relays, and packets for others.

One decision is made here for everything that is sent to a peer: straight to its address, or to a neighbor with a routing
header in front. It is made when the routing table changes, not when a packet is sent: the peer's link is told, and
whatever is sealed for it from then on goes there. A session that was begun straight and whose way fails takes a detour;
it goes straight again with the next heartbeat that arrives.
"""

from __future__ import annotations

from meshbus.engine.base.notices import PeerFailed, PeerGone
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.routes.boundary import Boundary
from meshbus.engine.routes.forward import Forwarder
from meshbus.engine.routes.pingwaves import Pingwaves
from meshbus.engine.routes.proximity import ProximityGraph
from meshbus.engine.routes.reroute import ReroutePolicy
from meshbus.engine.routes.routing import LEARNED_METRIC, RoutingConfig, RoutingTable
from meshbus.engine.routes.tap import Tap
from meshbus.engine.session.candidate import same_place
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import PeerError, PeerFault
from meshbus.names.identity import routing_id
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.wire.messages.capability import Announcement
from meshbus.wire.route import RouteHeader

AGE_MISSES = 3
"""Session timeouts after which a route is stale, as on the other side of the wire."""


class Mesh(Service):
    """The ways of one node."""

    def __init__(self, context: Context, handshakes: Handshakes) -> None:
        """Set up without routes; handshakes under way are redirected when the route to their node changes."""
        liveness = context.settings.liveness
        self._node_id = context.identity.node_id
        self._peers = context.peers
        self._handshakes = handshakes
        self._counters = context.counters
        self._liveness = liveness
        self._sweep_at = context.started_at + liveness.heartbeat_s
        self._homes: dict[int, Address] = {}
        """The addresses of our neighbors, also of those that are already gone from the peer table."""
        self.boundary = Boundary(context)
        self.tap = Tap(self._peers, lambda: self.boundary.gateway.policy)
        self.table = RoutingTable(
            RoutingConfig(patience_s=liveness.session_timeout_s, max_age_s=AGE_MISSES * liveness.session_timeout_s),
            changed=self._route_changed,
        )
        self.graph = ProximityGraph(self._node_id)
        self.pingwaves = Pingwaves(context, self.table, self.graph)
        self.reroute = ReroutePolicy(self.table, self.graph, self._peers, self._counters)
        self.forwarder = Forwarder(context, self.table, self.boundary, self.tap)

    def way_to(self, node_id: int, now: float) -> Address:
        """Return the address through which a node is reached; raises PeerError when there is none."""
        hop = self.table.lookup(node_id, now)
        if hop is None:
            raise PeerError(
                PeerFault.UNREACHABLE,
                node_id,
                f"no neighbor has heard of it: it is down, or further away than pingwaves go ({self._liveness.radius} hops from"
                " here, unless it sends its own further); give an address, or connect to a node that is nearer to it",
            )
        return hop

    def next_hop(self, node_id: int, now: float) -> int | None:
        """Return the neighbor through which a node is reached."""
        hop = self.table.lookup(node_id, now)
        neighbor = None if hop is None else self._peers.by_address(hop)
        return None if neighbor is None else neighbor.node_id

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Enter the way that a new session was begun by."""
        home, before = peer.link.home, self._homes.get(peer.node_id)
        if home is not None:
            if before is not None and not same_place(before, home):
                self.table.move_hop(before, home)
            self._homes[peer.node_id] = home
            self.graph.seed(peer.node_id, home, now)
        self.table.install(peer.node_id, peer.link.address, now)

    def heard(self, peer: Peer, now: float) -> None:
        """Note that a neighbor's heartbeat came straight: its way works."""
        home = peer.link.home
        if home is None:
            return
        self.table.confirm(peer.node_id, home, now)
        if peer.link.route:
            self.table.choose(peer.node_id, home, now)
        self.reroute.recovered(peer.node_id, home, now)

    def announced(self, peer: Peer, heard: Announcement, now: float) -> None:
        """Learn a route from an announcement that a neighbor forwarded, and the entity behind a signed one."""
        if heard.hop_count and peer.link.home is not None and heard.node_id != self._node_id:
            self.table.learn(heard.node_id, peer.link.home, heard.hop_count + LEARNED_METRIC, now)
        if heard.signature is not None:
            self.boundary.heard(heard.node_id, heard.entity_id, now)

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Let the gateway judge by new channel configurations."""
        self.boundary.set_channels(registry, now)

    def tokens_changed(self, now: float, out: Output) -> None:
        """Let the gateway judge all publishers again."""
        self.boundary.recheck(now)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Take routes off a neighbor that failed, or that is gone for good."""
        node_id = down.node_id
        home = self._homes.get(node_id)
        if home is not None and self._peers.by_address(home) in {None, self._peers.get(node_id)}:
            self.reroute.failed(node_id, home, now)
        if isinstance(down, PeerGone):
            self._homes.pop(node_id, None)
            self.reroute.forget(node_id)

    def next_timer(self) -> float:
        """Return when `tick` is due."""
        recheck = self.boundary.next_timer()
        return self._sweep_at if recheck is None else min(self._sweep_at, recheck)

    def tick(self, now: float, out: Output) -> None:
        """Sweep routes, graph and the memory of pingwaves, all by one clock."""
        self.boundary.tick(now)
        if now < self._sweep_at:
            return
        interval_s = self._liveness.heartbeat_s
        self._sweep_at += interval_s * ((now - self._sweep_at) // interval_s + 1)
        max_age_s = self.table.config.max_age_s
        self._counters.add("route", "stale", self.table.sweep(now, alive=lambda dest: self._alive(dest, now)))
        self.graph.sweep(now, max_age_s)
        self.pingwaves.sweep(now, max_age_s)

    def _alive(self, dest: int, now: float) -> bool:
        """Return whether a peer is heard through its session, whatever pingwaves say."""
        peer = self._peers.get(dest)
        return peer is not None and now - peer.heard_at <= self._liveness.session_timeout_s

    def _route_changed(self, dest: int, hop: Address | None) -> None:
        """Let the packets for a peer take the way that the table now says."""
        if hop is not None:
            self._handshakes.redirect(dest, hop)
        peer = self._peers.get(dest)
        if peer is None:
            return
        link = peer.link
        if link.home is not None and (hop is None or same_place(hop, link.home)):
            link.follow(link.home, None)
        elif hop is not None:
            route = RouteHeader(ttl=self._liveness.routed_ttl, src_id=routing_id(self._node_id), dest_id=dest)
            link.follow(hop, route)
