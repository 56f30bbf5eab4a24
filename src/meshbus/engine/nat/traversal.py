"""NAT traversal: reaches a node directly past the NATs on both sides, or through a relay if that fails (mesh.md §8.4).

The NAT types of both sides decide which *step* is tried first (engine/nat/watch.py). A step that fails leads to the
next one:

    DIRECT     a handshake at the address that the node announced
    PROBE      before ASK, if our own address is not known yet: ask the coordinator for it
    ASK        ask a neighbor of both for an introduction
    PUNCH      both nodes send keep-alives (engine/nat/punch.py) until one arrives, on either side
    HANDSHAKE  a handshake at the address that the punch opened
    RELAY      a handshake through the coordinator, or through the next hop of the routing table

A NAT type is only what a node announced, and a NAT that keeps ports looks like none. So, unlike on a 0.23 node, a
failed direct attempt is followed by a punch before the relay. `Reached` or `HandshakeFailed` reports the end, and no
step takes more than a few seconds. A relayed session that exists is kept until a better one replaces it.

The counters `traversal/punch_attempted`, `traversal/punch_succeeded` and `traversal/relay_fallback` correspond to the
statistics of a 0.23 node.
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
"""How long to wait for a coordinator (mesh.md §8.4)."""
ASK_AGAIN_S = 1.5
"""Time after which a request or its answer counts as lost, and is repeated. Our choice: three tries within `ASK_S`."""
QUICK = HandshakeConfig(tries=3, timeout_s=1.0)
"""Handshake on a step that has a next one. Our choice: three round trips of up to a second, not 3 × 5 s as on the
0.23 wire (mesh.md §8.4)."""


class Step(Enum):
    """The step that is being tried."""

    DIRECT = auto()
    PROBE = auto()
    ASK = auto()
    PUNCH = auto()
    HANDSHAKE = auto()
    RELAY = auto()


class Traversal(Service):
    """Connection attempts of this node to nodes behind NATs, and the detection of its own NAT type."""

    unfinished = ()  # it only handles notices

    def __init__(self, context: Context, mesh: Mesh, reflex: Reflex, rendezvous: Rendezvous) -> None:
        self._peers = context.peers
        self._handshakes = context.services[Handshakes]
        self._counters = context.counters
        self._mesh = mesh
        self._attempts: dict[int, _Attempt] = {}
        self.reflex = reflex
        self.rendezvous = rendezvous
        self.punches = rendezvous.punches
        self.addresses = rendezvous.addresses
        announcer = context.services[Announcer]
        self.nat = NatWatch(
            self._peers,
            reflex,
            context.settings.nat,
            changed=announcer.set_nat,
            forget=context.counters.forgetting("observed_addresses"),
        )
        reflex.told = self._told
        self.punches.introduced = self._introduced
        self.punches.opened = self._opened
        rendezvous.rejected = self._rejected

    # ── called by the application ───────────────────────────────────────────────────────────

    def connect(
        self,
        node_id: int,
        now: float,
        out: Output,
        *,
        public_key: bytes | None = None,
        coordinator: int | None = None,
    ) -> None:
        """Start to reach a node; `Reached` or `HandshakeFailed` reports the end.

        The Noise key of a meshbus node follows from its announcement; that of a 0.23 node must be given. If no
        coordinator is given, one is chosen: a neighbor that has a session with the node, or the next hop to it. A call
        for a node that is already being reached does nothing. Raises PeerError if nothing can be tried,
        LocalProtocolError if the key is needed and missing, and HandshakeError if the key is invalid or another
        handshake with the node is running.
        """
        peer = self._peers.get(node_id)
        if peer is not None and not peer.link.route and peer.health is not Health.FAILED:
            out.control.append(Reached(node_id, Path.DIRECT))
            return
        if node_id in self._attempts:
            return
        found = self.addresses.get(node_id, now)
        key = _key_of(node_id, found) if public_key is None else public_key
        helper = self._choose(node_id, found, coordinator, now)
        address = None if found is None else found.reflex
        if helper is None and address is None:
            raise PeerError(
                PeerFault.UNREACHABLE,
                node_id,
                "no neighbor knows it, and it has announced no address; connect to a node that it is connected to, and"
                " name that node as coordinator",
            )
        attempt = _Attempt(node_id, key, address, None if helper is None else helper.node_id)
        first = plan(self.nat.status.nat, Nat.UNKNOWN if found is None else found.nat)
        self._attempts[node_id] = attempt
        try:
            self._start(attempt, first, now, out)
        except HandshakeError:
            self._end(attempt)
            raise

    def cancel(self, node_id: int) -> bool:
        """Stop trying to reach a node; return whether that was in progress.

        A handshake that is running continues; `Handshakes.cancel_connect` ends it.
        """
        attempt = self._attempts.get(node_id)
        if attempt is not None:
            self._end(attempt)
        return attempt is not None

    @property
    def reaching(self) -> frozenset[int]:
        """The nodes that this node is trying to reach."""
        return frozenset(self._attempts)

    # ── called by the engine ────────────────────────────────────────────────────────────────

    def finish(self, now: float, out: Output) -> None:
        """Handle the notices about peers in the output; remove a HandshakeFailed after which another step is tried."""
        for event in list(out.control):
            match event:
                case SessionUp(node_id=node_id):
                    self.nat.session_up(now)
                    self._on_session(node_id, now, out)
                case PeerGone(node_id=node_id):
                    self.nat.forget(node_id)
                case HandshakeFailed(node_id=node_id) if (attempt := self._attempts.get(node_id)) is not None:
                    self._on_failure(attempt, event, now, out)
                case _:
                    pass

    def next_timer(self) -> float | None:
        """Return the earliest deadline of a step or of the NAT detection, or None."""
        times = [self.nat.next_timer()]
        times += [attempt.due for attempt in self._attempts.values() if attempt.due < inf]
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Repeat requests, and go to the next step where the deadline has passed."""
        self.nat.tick(now, out)
        for attempt in list(self._attempts.values()):
            if now < attempt.due:
                continue
            if attempt.step is Step.ASK and now < attempt.until:
                self._ask(attempt, now, out)
            else:
                self._next_step(attempt, now, out)

    # ── from step to step ───────────────────────────────────────────────────────────────────

    def _start(self, attempt: _Attempt, first: Plan, now: float, out: Output) -> None:
        """Start with the step that the NAT types suggest, if address and coordinator allow it."""
        if attempt.coordinator is None or (first is Plan.DIRECT and attempt.address is not None):
            self._handshake(attempt, Step.DIRECT, attempt.address, now, out)
        elif first is Plan.RELAY:
            self._relay(attempt, now, out)
        else:
            self._introduce(attempt, now, out)

    def _next_step(self, attempt: _Attempt, now: float, out: Output) -> None:
        """Go to the next step, or report the failure."""
        try:
            if attempt.step is Step.DIRECT and attempt.coordinator is not None:
                self._introduce(attempt, now, out)
            else:
                self._relay(attempt, now, out)
        except HandshakeError as error:
            out.control.append(HandshakeFailed(attempt.node_id, error.fault, str(error)))
            self._counters.add("traversal", "failed")
            self._end(attempt)

    def _introduce(self, attempt: _Attempt, now: float, out: Output) -> None:
        """Ask for our own address if it is not known, then for an introduction."""
        helper = self._helper(attempt)
        if helper is None:
            self._relay(attempt, now, out)
        elif self._own_address(helper) is None:
            attempt.enter(Step.PROBE)
            self.reflex.ask(helper, now, out)
        else:
            attempt.enter(Step.ASK, now + ASK_S)
            self.punches.expect(attempt.node_id, helper.node_id)
            self._ask(attempt, now, out)

    def _ask(self, attempt: _Attempt, now: float, out: Output) -> None:
        helper = self._helper(attempt)
        address = None if helper is None else self._own_address(helper)
        if helper is None or address is None:
            self._next_step(attempt, now, out)
            return
        attempt.due = min(now + ASK_AGAIN_S, attempt.until)
        self.rendezvous.ask(helper, attempt.node_id, address, out)

    def _handshake(self, attempt: _Attempt, step: Step, address: Address, now: float, out: Output) -> None:
        attempt.enter(step)
        self.punches.forget(attempt.node_id)
        holder = self._peers.by_address(address)
        if holder is not None and holder.node_id != attempt.node_id:
            # The address belongs to another neighbor: a node that claims it would take over that session.
            self._counters.add("traversal", "foreign_address")
            self._next_step(attempt, now, out)
            return
        self._handshakes.connect(attempt.node_id, address, attempt.public_key, now, out, straight=True, config=QUICK)

    def _relay(self, attempt: _Attempt, now: float, out: Output) -> None:
        """Connect through a relay; a session that exists is enough."""
        self._counters.add("traversal", "relay_fallback")
        self.punches.forget(attempt.node_id)
        attempt.enter(Step.RELAY)
        peer = self._peers.get(attempt.node_id)
        if peer is not None and peer.health is not Health.FAILED:
            self._reached(attempt, Path.RELAYED, out)
            return
        hop = self._mesh.next_hop(attempt.node_id, now)
        relay = self._helper(attempt) or (None if hop is None else self._peers.get(hop))
        if relay is None or relay.node_id == attempt.node_id:
            raise HandshakeError(
                HandshakeFault.TIMEOUT,
                f"node {attempt.node_id:016x} does not answer at its announced address, and no neighbor can relay to it;"
                " check that it runs, or name a coordinator that it is connected to",
            )
        self._handshakes.connect(attempt.node_id, relay.link.address, attempt.public_key, now, out)

    # ── callbacks ───────────────────────────────────────────────────────────────────────────

    def _told(self, node_id: int, seen: Numeric | None, now: float, out: Output) -> None:
        self.nat.told(node_id, seen, now, out)
        for attempt in list(self._attempts.values()):
            if attempt.step is Step.PROBE and attempt.coordinator == node_id:
                if seen is None:
                    self._next_step(attempt, now, out)
                else:
                    self._introduce(attempt, now, out)

    def _introduced(self, node_id: int, until: float) -> None:
        attempt = self._attempts.get(node_id)
        if attempt is not None and attempt.step in {Step.ASK, Step.PUNCH}:
            if attempt.step is Step.ASK:
                self._counters.add("traversal", "punch_attempted")
            attempt.enter(Step.PUNCH, until)

    def _rejected(self, coordinator: int, node_id: int, now: float, out: Output) -> None:
        """Go on without an introduction that the coordinator refused (dialects.md §3.2, rule 9)."""
        attempt = self._attempts.get(node_id)
        if attempt is not None and attempt.step is Step.ASK and attempt.coordinator == coordinator:
            self._next_step(attempt, now, out)

    def _opened(self, node_id: int, address: Numeric, now: float, out: Output) -> None:
        attempt = self._attempts.get(node_id)
        # Only while punching: a keep-alive and a PunchAck may both report the same success.
        if attempt is not None and attempt.step is Step.PUNCH:
            try:
                self._handshake(attempt, Step.HANDSHAKE, address, now, out)
            except HandshakeError:
                self._next_step(attempt, now, out)

    def _on_session(self, node_id: int, now: float, out: Output) -> None:
        """Handle a new session with a node that is being reached, whichever side started it.

        A relayed session ends the attempt only on the last step.
        """
        attempt, peer = self._attempts.get(node_id), self._peers.get(node_id)
        if attempt is None or peer is None:
            return
        if peer.link.home is not None:
            punched = attempt.step in {Step.PUNCH, Step.HANDSHAKE}
            self._counters.add("traversal", "punch_succeeded" if punched else "direct")
            self._reached(attempt, Path.PUNCHED if punched else Path.DIRECT, out)
        elif attempt.step is Step.RELAY:
            self._reached(attempt, Path.RELAYED, out)
        elif attempt.step in {Step.DIRECT, Step.HANDSHAKE} and node_id not in self._handshakes.connecting:
            self._next_step(
                attempt, now, out
            )  # the relayed session ended our handshake, so no failure will be reported

    def _on_failure(self, attempt: _Attempt, event: HandshakeFailed, now: float, out: Output) -> None:
        if attempt.step is Step.RELAY:
            self._counters.add("traversal", "failed")
            self._end(attempt)
        elif attempt.step in {Step.DIRECT, Step.HANDSHAKE}:
            out.control.remove(event)
            self._next_step(attempt, now, out)

    # ── helpers ─────────────────────────────────────────────────────────────────────────────

    def _choose(self, node_id: int, found: AnnouncedAddress | None, coordinator: int | None, now: float) -> Peer | None:
        """Return the coordinator to use, or None; raise PeerError if the one that was named is not a neighbor."""
        if coordinator is not None:
            helper = self._peers.require(coordinator)
            if helper.link.home is None:
                raise PeerError(
                    PeerFault.UNREACHABLE, coordinator, "a coordinator must be a neighbor, but it is behind a relay"
                )
            return helper
        known = (None if found is None else found.neighbor, self._mesh.next_hop(node_id, now))
        helpers = (self._peers.get(neighbor) for neighbor in known if neighbor is not None)
        return next((peer for peer in helpers if peer is not None and _can_help(peer, node_id)), None)

    def _helper(self, attempt: _Attempt) -> Peer | None:
        helper = None if attempt.coordinator is None else self._peers.get(attempt.coordinator)
        return helper if helper is not None and _can_help(helper, attempt.node_id) else None

    def _own_address(self, helper: Peer) -> Numeric | None:
        return self.nat.status.reflex or self.nat.seen_by(helper.node_id)

    def _reached(self, attempt: _Attempt, path: Path, out: Output) -> None:
        out.control.append(Reached(attempt.node_id, path))
        self._end(attempt)

    def _end(self, attempt: _Attempt) -> None:
        self.punches.forget(attempt.node_id)
        self._attempts.pop(attempt.node_id, None)


class _Attempt:
    """The attempt to reach one node."""

    __slots__ = ("address", "coordinator", "due", "node_id", "public_key", "step", "until")

    def __init__(self, node_id: int, public_key: bytes, address: Numeric | None, coordinator: int | None) -> None:
        self.node_id = node_id
        self.public_key = public_key
        self.address = address
        self.coordinator = coordinator
        self.enter(Step.DIRECT)

    def enter(self, step: Step, until: float = inf) -> None:
        """Start a step; one without a deadline ends with its handshake or with an answer."""
        self.step = step
        self.until = until
        self.due = until


def _can_help(peer: Peer, node_id: int) -> bool:
    return peer.node_id != node_id and peer.link.home is not None and peer.health is not Health.FAILED


def _key_of(node_id: int, found: AnnouncedAddress | None) -> bytes:
    if found is None:
        raise PeerError(
            PeerFault.UNREACHABLE, node_id, "no announcement of it has arrived; give its public_key and a coordinator"
        )
    if not found.meshbus:
        raise LocalProtocolError(
            f"node {node_id:016x} is not a meshbus node, so its key does not follow from its announcement;"
            " give public_key, which a net-mesh node prints at its start"
        )
    return noise_public_key(found.entity_id)
