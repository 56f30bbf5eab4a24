"""Reaching a node without a relay, past the NATs on both sides; and through a relay where that cannot be.

What is tried first follows from the kinds of NAT on both sides (engine/nat/watch.py); what fails leads one rung further down:

    DIRECT    a handshake at the address that the node has announced
    PROBE     only before ASK, and only while nobody has told us where we are seen: ask the coordinator
    ASK       ask a neighbor that both know for an introduction
    PUNCH     both send keep-alives (engine/nat/punch.py) until one arrives, here or there
    SHAKE     a handshake at the address that the punch has opened
    RELAY     a handshake by way of the coordinator, or of the next hop that the routing table knows

A kind is only what the node has announced, and a NAT that keeps ports looks like none at all; so a direct try that fails
is followed by a punch before the relay. `Reached` or HandshakeFailed tells the end, and no rung has more than a few
seconds. A session that exists already, by way of a relay, goes on until a better one takes its place.

The counterparts of the other implementation's figures are the counters `traversal/punch_attempted`,
`traversal/punch_succeeded` and `traversal/relay_fallback`.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf

from meshbus.engine.base.notices import HandshakeFailed, Path, PeerGone, Reached, SessionUp
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.directory.announce import Announcer
from meshbus.engine.directory.reachability import Nat
from meshbus.engine.nat.addresses import AnnouncedAddress
from meshbus.engine.nat.reflex import Reflex
from meshbus.engine.nat.rendezvous import Rendezvous
from meshbus.engine.nat.watch import NatWatch, Plan, plan
from meshbus.engine.routes.mesh import Mesh
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.peer import Health, Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.settings import HandshakeConfig
from meshbus.errors import HandshakeError, HandshakeFault, LocalProtocolError, PeerError, PeerFault
from meshbus.names.identity import noise_public_key
from meshbus.wire.messages.address import Address as Numeric

ASK_S = 5.0
"""How long a coordinator may take."""
ASK_AGAIN_S = 1.5
"""After which a request, or its answer, counts as lost."""
QUICK = HandshakeConfig(tries=3, timeout_s=1.0)
"""Where there is still something else to try: three round trips of up to a second."""


class Rung(Enum):
    """What is being tried."""

    DIRECT = auto()
    PROBE = auto()
    ASK = auto()
    PUNCH = auto()
    SHAKE = auto()
    RELAY = auto()


class Traversal(Service):
    """The ways of one node to those that are behind NATs, its own NAT, and its services for others."""

    def __init__(self, context: Context, mesh: Mesh, reflex: Reflex, rendezvous: Rendezvous) -> None:
        self._peers = context.peers
        self._handshakes = context.services[Handshakes]
        self._counters = context.counters
        self._mesh = mesh
        self._climbs: dict[int, _Climb] = {}
        self.reflex = reflex
        self.rendezvous = rendezvous
        self.punches = rendezvous.punches
        self.addresses = rendezvous.addresses
        announcer = context.services[Announcer]
        self.nat = NatWatch(self._peers, reflex, context.settings.nat, changed=announcer.set_nat)
        reflex.told = self._told
        self.punches.introduced = self._introduced
        self.punches.opened = self._opened

    # ── what the application asks ───────────────────────────────────────────────────────────

    def connect(
        self,
        node_id: int,
        now: float,
        out: Output,
        *,
        public_key: bytes | None = None,
        coordinator: int | None = None,
    ) -> None:
        """Begin to reach a node; `Reached` or HandshakeFailed tells the end.

        The Noise key of a meshbus node follows from its announcement; that of a plain node must be given. Without a
        coordinator one is chosen: a neighbor that has heard the node, or the next hop to it. Raises PeerError when
        nothing can be tried, LocalProtocolError for a key that is missing, HandshakeError for one that cannot be or
        while another handshake with the node is under way. Asking again for what is under way changes nothing.
        """
        peer = self._peers.get(node_id)
        if peer is not None and not peer.link.route and peer.health is not Health.FAILED:
            out.control.append(Reached(node_id, Path.DIRECT))
            return
        if node_id in self._climbs:
            return
        found = self.addresses.get(node_id, now)
        key = _key_of(node_id, found) if public_key is None else public_key
        helper = self._choose(node_id, found, coordinator, now)
        address = None if found is None else found.reflex
        if helper is None and address is None:
            raise PeerError(
                PeerFault.UNREACHABLE,
                node_id,
                "no neighbor has heard of it, and it has announced no address: connect to a node that it is connected"
                " to, and name that one as coordinator",
            )
        climb = _Climb(node_id, key, address, None if helper is None else helper.node_id)
        first = plan(self.nat.status.nat, Nat.UNKNOWN if found is None else found.nat)
        self._climbs[node_id] = climb
        try:
            self._start(climb, first, now, out)
        except HandshakeError:
            self._end(climb)
            raise

    def cancel(self, node_id: int) -> bool:
        """Stop trying to reach a node; return whether that was in progress.

        A handshake that has begun goes on: `Handshakes.cancel_connect` ends it.
        """
        climb = self._climbs.get(node_id)
        if climb is not None:
            self._end(climb)
        return climb is not None

    @property
    def reaching(self) -> frozenset[int]:
        """The nodes that we are trying to reach."""
        return frozenset(self._climbs)

    # ── what happens ────────────────────────────────────────────────────────────────────────

    def finish(self, now: float, out: Output) -> None:
        """Take note of what happened to peers; a failed handshake that is not the last word leaves the output."""
        for event in list(out.control):
            match event:
                case SessionUp(node_id=node_id):
                    self.nat.session_up(now)
                    self._on_session(node_id, now, out)
                case PeerGone(node_id=node_id):
                    self.nat.forget(node_id)
                case HandshakeFailed(node_id=node_id) if (climb := self._climbs.get(node_id)) is not None:
                    self._on_failure(climb, event, now, out)
                case _:
                    pass

    def next_timer(self) -> float | None:
        """Return when `tick` is due."""
        times = [self.nat.next_timer()]
        times += [climb.due for climb in self._climbs.values() if climb.due < inf]
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Ask again, give up and go on where it is time."""
        self.nat.tick(now, out)
        for climb in list(self._climbs.values()):
            if now < climb.due:
                continue
            if climb.rung is Rung.ASK and now < climb.until:
                self._ask(climb, now, out)
            else:
                self._descend(climb, now, out)

    # ── down the ladder ─────────────────────────────────────────────────────────────────────

    def _start(self, climb: _Climb, first: Plan, now: float, out: Output) -> None:
        """Begin with what the kinds of NAT suggest, or with what there is."""
        if climb.coordinator is None or (first is Plan.DIRECT and climb.address is not None):
            self._shake(climb, Rung.DIRECT, climb.address, now, out)
        elif first is Plan.RELAY:
            self._relay(climb, now, out)
        else:
            self._introduce(climb, now, out)

    def _descend(self, climb: _Climb, now: float, out: Output) -> None:
        """Try what comes next."""
        try:
            if climb.rung is Rung.DIRECT and climb.coordinator is not None:
                self._introduce(climb, now, out)
            else:
                self._relay(climb, now, out)
        except HandshakeError as error:
            out.control.append(HandshakeFailed(climb.node_id, error.fault, str(error)))
            self._counters.add("traversal", "failed")
            self._end(climb)

    def _introduce(self, climb: _Climb, now: float, out: Output) -> None:
        """Find out where we are seen, if nobody has told yet; then ask to be introduced."""
        helper = self._helper(climb)
        if helper is None:
            self._relay(climb, now, out)
        elif self._own_address(helper) is None:
            climb.enter(Rung.PROBE)
            self.reflex.ask(helper, now, out)
        else:
            climb.enter(Rung.ASK, now + ASK_S)
            self.punches.expect(climb.node_id, helper.node_id)
            self._ask(climb, now, out)

    def _ask(self, climb: _Climb, now: float, out: Output) -> None:
        helper = self._helper(climb)
        address = None if helper is None else self._own_address(helper)
        if helper is None or address is None:
            self._descend(climb, now, out)
            return
        climb.due = min(now + ASK_AGAIN_S, climb.until)
        self.rendezvous.ask(helper, climb.node_id, address, out)

    def _shake(self, climb: _Climb, rung: Rung, address: Address, now: float, out: Output) -> None:
        climb.enter(rung)
        self.punches.forget(climb.node_id)
        holder = self._peers.by_address(address)
        if holder is not None and holder.node_id != climb.node_id:
            # A neighbor's session would be lost to whoever claims its address.
            self._counters.add("traversal", "foreign_address")
            self._descend(climb, now, out)
            return
        self._handshakes.connect(climb.node_id, address, climb.public_key, now, out, straight=True, config=QUICK)

    def _relay(self, climb: _Climb, now: float, out: Output) -> None:
        """Go through somebody else; what is there already is good enough."""
        self._counters.add("traversal", "relay_fallback")
        self.punches.forget(climb.node_id)
        climb.enter(Rung.RELAY)
        peer = self._peers.get(climb.node_id)
        if peer is not None and peer.health is not Health.FAILED:
            self._reached(climb, Path.RELAYED, out)
            return
        hop = self._mesh.next_hop(climb.node_id, now)
        relay = self._helper(climb) or (None if hop is None else self._peers.get(hop))
        if relay is None or relay.node_id == climb.node_id:
            raise HandshakeError(
                HandshakeFault.TIMEOUT,
                f"node {climb.node_id:016x} does not answer at its own address, and no neighbor leads to it: check"
                " that it runs, or name a coordinator that it is connected to",
            )
        self._handshakes.connect(climb.node_id, relay.link.address, climb.public_key, now, out)

    # ── what the others tell ────────────────────────────────────────────────────────────────

    def _told(self, node_id: int, seen: Numeric | None, now: float, out: Output) -> None:
        self.nat.told(node_id, seen, now, out)
        for climb in list(self._climbs.values()):
            if climb.rung is Rung.PROBE and climb.coordinator == node_id:
                if seen is None:
                    self._descend(climb, now, out)
                else:
                    self._introduce(climb, now, out)

    def _introduced(self, node_id: int, until: float) -> None:
        climb = self._climbs.get(node_id)
        if climb is not None and climb.rung in {Rung.ASK, Rung.PUNCH}:
            if climb.rung is Rung.ASK:
                self._counters.add("traversal", "punch_attempted")
            climb.enter(Rung.PUNCH, until)

    def _opened(self, node_id: int, address: Numeric, now: float, out: Output) -> None:
        climb = self._climbs.get(node_id)
        if climb is not None and climb.rung is Rung.PUNCH:
            try:
                self._shake(climb, Rung.SHAKE, address, now, out)
            except HandshakeError:
                self._descend(climb, now, out)

    def _on_session(self, node_id: int, now: float, out: Output) -> None:
        """Take a new session, begun by us or by them; one behind a relay is not yet what we are after."""
        climb, peer = self._climbs.get(node_id), self._peers.get(node_id)
        if climb is None or peer is None:
            return
        if peer.link.home is not None:
            punched = climb.rung in {Rung.PUNCH, Rung.SHAKE}
            self._counters.add("traversal", "punch_succeeded" if punched else "direct")
            self._reached(climb, Path.PUNCHED if punched else Path.DIRECT, out)
        elif climb.rung is Rung.RELAY:
            self._reached(climb, Path.RELAYED, out)
        elif climb.rung in {Rung.DIRECT, Rung.SHAKE} and node_id not in self._handshakes.connecting:
            self._descend(climb, now, out)  # it took the place of our handshake

    def _on_failure(self, climb: _Climb, event: HandshakeFailed, now: float, out: Output) -> None:
        if climb.rung is Rung.RELAY:
            self._counters.add("traversal", "failed")
            self._end(climb)
        elif climb.rung in {Rung.DIRECT, Rung.SHAKE}:
            out.control.remove(event)
            self._descend(climb, now, out)

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _choose(self, node_id: int, found: AnnouncedAddress | None, coordinator: int | None, now: float) -> Peer | None:
        """Return the neighbor that is to introduce us; raises PeerError when the one that was named is none."""
        if coordinator is not None:
            helper = self._peers.require(coordinator)
            if helper.link.home is None:
                raise PeerError(
                    PeerFault.UNREACHABLE, coordinator, "a coordinator must be a neighbor, not behind a relay"
                )
            return helper
        known = (None if found is None else found.neighbor, self._mesh.next_hop(node_id, now))
        helpers = (self._peers.get(neighbor) for neighbor in known if neighbor is not None)
        return next((peer for peer in helpers if peer is not None and _can_help(peer, node_id)), None)

    def _helper(self, climb: _Climb) -> Peer | None:
        helper = None if climb.coordinator is None else self._peers.get(climb.coordinator)
        return helper if helper is not None and _can_help(helper, climb.node_id) else None

    def _own_address(self, helper: Peer) -> Numeric | None:
        return self.nat.status.reflex or self.nat.seen_by(helper.node_id)

    def _reached(self, climb: _Climb, path: Path, out: Output) -> None:
        out.control.append(Reached(climb.node_id, path))
        self._end(climb)

    def _end(self, climb: _Climb) -> None:
        self.punches.forget(climb.node_id)
        self._climbs.pop(climb.node_id, None)


class _Climb:
    """One node on its way to be reached."""

    __slots__ = ("address", "coordinator", "due", "node_id", "public_key", "rung", "until")

    def __init__(self, node_id: int, public_key: bytes, address: Numeric | None, coordinator: int | None) -> None:
        self.node_id = node_id
        self.public_key = public_key
        self.address = address
        self.coordinator = coordinator
        self.enter(Rung.DIRECT)

    def enter(self, rung: Rung, until: float = inf) -> None:
        """Begin with a rung; those without an end of their own end with a handshake or an answer."""
        self.rung = rung
        self.until = until
        self.due = until


def _can_help(peer: Peer, node_id: int) -> bool:
    return peer.node_id != node_id and peer.link.home is not None and peer.health is not Health.FAILED


def _key_of(node_id: int, found: AnnouncedAddress | None) -> bytes:
    if found is None:
        raise PeerError(
            PeerFault.UNREACHABLE, node_id, "it has not announced itself here: give its public_key and a coordinator"
        )
    if not found.meshbus:
        raise LocalProtocolError(
            f"node {node_id:016x} announces no meshbus profile, so its key does not follow from its announcement:"
            " give public_key, which a net-mesh node prints at its start"
        )
    return noise_public_key(found.entity_id)
