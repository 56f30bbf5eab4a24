"""Routing service: owns the routing table, pingwaves, rerouting, forwarding and the gateway, and steers the links.

It decides how packets reach a peer: directly at its address, or through a neighbor with a routing header in front. The
decision is made when the routing table changes, not per packet: the link of the peer gets the new address and header,
and every packet sealed later uses them. If the direct way to a peer fails, its session is routed through a neighbor, and
it is direct again with the next heartbeat that arrives.
"""

from __future__ import annotations

from meshbus.engine.base.notices import PeerFailed, PeerGone
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.base.renaming import move
from meshbus.engine.routes.boundary import Boundary
from meshbus.engine.routes.forward import Forwarder
from meshbus.engine.routes.pingwaves import Pingwaves
from meshbus.engine.routes.proximity import ProximityGraph
from meshbus.engine.routes.reroute import ReroutePolicy
from meshbus.engine.routes.routing import LEARNED_METRIC, RoutingConfig, RoutingTable
from meshbus.engine.routes.tap import Tap
from meshbus.engine.session.candidate import same_place
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.liveness import SUSPECTED_AFTER
from meshbus.engine.session.peer import Health, Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import PeerError, PeerFault
from meshbus.names.identity import routing_id
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.wire.messages.capability import Announcement
from meshbus.wire.route import RouteHeader

AGE_MISSES = 3
"""Session timeouts after which a route is stale (mesh.md §5)."""


class Mesh(Service):
    """The routes of one node, and the services built on them."""

    def __init__(self, context: Context, handshakes: Handshakes) -> None:
        """Start without routes; running handshakes are redirected when the route to their node changes."""
        liveness = context.settings.liveness
        self._identity = context.identity
        self._revocations = context.revocations
        self._peers = context.peers
        self._handshakes = handshakes
        self._counters = context.counters
        self._liveness = liveness
        self._sweep_at = context.started_at + liveness.heartbeat_s
        self._homes: dict[int, Address] = {}
        """Addresses of the neighbors, including those that were already removed from the peer table."""
        self.boundary = Boundary(context)
        self.tap = Tap(self._peers, lambda: self.boundary.gateway.policy)
        self.table = RoutingTable(
            RoutingConfig(
                # Half of the time after which a peer fails: its packets then come on a detour before that.
                patience_s=SUSPECTED_AFTER * liveness.session_timeout_s,
                max_age_s=AGE_MISSES * liveness.session_timeout_s,
            ),
            changed=self._route_changed,
        )
        self.graph = ProximityGraph(self._identity.node_id)
        self.pingwaves = Pingwaves(context, self.table, self.graph)
        self.reroute = ReroutePolicy(self.table, self.graph, self._peers, self._counters)
        self.forwarder = Forwarder(context, self.table, self.boundary, self.tap)

    def way_to(self, node_id: int, now: float) -> Address:
        """Return the address of the next hop to a node; raise PeerError if there is no route."""
        hop = self.table.lookup(node_id, now)
        if hop is None:
            raise PeerError(
                PeerFault.UNREACHABLE,
                node_id,
                "no route: it is down, or further away than its pingwaves travel (this node's travel"
                f" {self._liveness.radius} hops); give an address, or connect to a node that is nearer to it",
            )
        return hop

    def next_hop(self, node_id: int, now: float) -> int | None:
        """Return the neighbor that is the next hop to a node, or None."""
        hop = self.table.lookup(node_id, now)
        neighbor = None if hop is None else self._peers.by_address(hop)
        return None if neighbor is None else neighbor.node_id

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Install the route by which a new session was established, unless the session is not proved."""
        if peer.health is not Health.ALIVE:
            return
        home, before = peer.link.home, self._homes.get(peer.node_id)
        if home is not None:
            if before is not None and not same_place(before, home):
                self.table.move_hop(before, home)
            self._homes[peer.node_id] = home
            self.graph.seed(peer.node_id, home, now)
        self.table.install(peer.node_id, peer.link.address, now)

    def heard(self, peer: Peer, now: float) -> None:
        """Record a heartbeat that arrived directly from a neighbor: the direct way works."""
        home = peer.link.home
        if home is None:
            return
        self.table.confirm(peer.node_id, home, now)
        # The session was on a detour: a heartbeat that came directly proves that the direct way works again.
        if peer.link.route:
            self.table.choose(peer.node_id, home, now)
        self.reroute.recovered(peer.node_id, home, now)

    def announced(self, peer: Peer, heard: Announcement, now: float) -> None:
        """Learn a route from a forwarded announcement (mesh.md §9), and the entity from a signed one."""
        # mesh.md §9: only a forwarded announcement is a route; a relayed peer is not a next hop.
        if heard.hop_count and peer.link.home is not None and heard.node_id != self._identity.node_id:
            self.table.learn(heard.node_id, peer.link.home, heard.hop_count + LEARNED_METRIC, now)
        if heard.signature is not None:
            self.boundary.heard(heard.node_id, heard.entity_id, now)

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Use new channel configurations in the gateway."""
        self.boundary.set_channels(registry, now)

    def tokens_changed(self, now: float, out: Output) -> None:
        """Check all publishers in the gateway again."""
        self.boundary.recheck(now)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Keep the ways to a node that goes on under another id, and let gateways know whose events are its own."""
        move(self._homes, old, new)
        self.graph.rename(old, new)
        self.reroute.rename(old, new)
        self.table.rename(old, new)
        entity_id = self._revocations.key_of(new)
        if entity_id is not None:
            self.boundary.renamed(old, new, entity_id, now)

    def became(self, old: int, now: float, out: Output) -> None:
        """Name this node by its new id in what is sent through relays."""
        self.graph.rename(old, self._identity.node_id)
        for peer in self._peers:
            if peer.link.route:
                self._route_changed(peer.node_id, peer.link.address)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Move the routes away from a neighbor that failed or was removed."""
        node_id = down.node_id
        home = self._homes.get(node_id)
        # If another peer has the address by now, the routes through it are that peer's.
        if home is not None and self._peers.by_address(home) in {None, self._peers.get(node_id)}:
            self.reroute.failed(node_id, home, now)
        if isinstance(down, PeerGone):
            self._homes.pop(node_id, None)
            self.reroute.forget(node_id)

    def next_timer(self) -> float:
        """Return the time of the next sweep or check of publishers."""
        recheck = self.boundary.next_timer()
        return self._sweep_at if recheck is None else min(self._sweep_at, recheck)

    def tick(self, now: float, out: Output) -> None:
        """Remove stale routes, graph entries and pingwave copies, once per heartbeat interval."""
        self.boundary.tick(now)
        if now < self._sweep_at:
            return
        interval_s = self._liveness.heartbeat_s
        # Stay on the grid of intervals, however late the call is.
        self._sweep_at += interval_s * ((now - self._sweep_at) // interval_s + 1)
        max_age_s = self.table.config.max_age_s
        self._counters.add("route", "stale", self.table.sweep(now, alive=lambda dest: self._alive(dest, now)))
        self.graph.sweep(now, max_age_s)
        self.pingwaves.sweep(now, max_age_s)

    def _alive(self, dest: int, now: float) -> bool:
        """Return whether a peer was heard lately through its session, even if no pingwave of it arrived.

        A 0.23 node drops such a route (mesh.md §5), although the peer is there.
        """
        peer = self._peers.get(dest)
        return peer is not None and now - peer.heard_at <= self._liveness.session_timeout_s

    def _route_changed(self, dest: int, hop: Address | None) -> None:
        """Switch the link of a peer, or its running handshake, to a changed route."""
        if hop is not None:
            self._handshakes.redirect(dest, hop)
        peer = self._peers.get(dest)
        if peer is None:
            return
        link = peer.link
        if link.home is not None and (hop is None or same_place(hop, link.home)):
            link.follow(link.home, None)
        elif hop is not None:
            route = RouteHeader(ttl=self._liveness.routed_ttl, src_id=routing_id(self._identity.node_id), dest_id=dest)
            link.follow(hop, route)
