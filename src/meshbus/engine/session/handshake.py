"""Handshakes: two messages that establish a session, as initiator and as responder (transport.md §10).

    we begin      engine/session/attempt.py sends message 1 and waits. Message 2 proves that the peer has its private
                  key, so the session is established at once and replaces any other
    they begin    a routed message 1 is answered for every node that the policy admits, a direct one for nodes that
                  `accept` named. The session is a candidate until its first packet verifies
                  (engine/session/candidate.py). If a proved neighbor relayed it, it is established soon although it is
                  not proved, unless there is a proved one: a 0.23 node cannot send through a relay. Such peers are few
                  (engine/session/unproved.py), count as suspected, and get no route
    both begin    each side answers the other, so the order of arrival does not matter. The session of the lower node id
                  wins: the higher id, having answered, holds back its own session for `YIELD_S`; the lower id drops the
                  other session when its own is established. A 0.23 node mistakes our message 1 for a message 2 here and
                  gives up its try (transport.md §10.3); we answer its next one. While our own attempt runs, a session
                  that the other side began counts only if it was proved from the address of the attempt: from another
                  address, any holder of the mesh key could have begun it

The caller passes handshake packets to `receive_direct` and `receive_routed`, packets of sessions that are no peer's
current one to `claim`, and calls `tick`. The first three return `Established` sessions, which the caller must put into
the peer table before it calls anything else here. Invalid messages never raise, never end an attempt and never use up
an `accept`. They are counted, and the work that they cause is bounded (engine/session/budget.py). The messages
themselves are in wire/handshake.py and wire/noise.py.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.notices import HandshakeFailed, PeerFailed, PeerGone
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.session.attempt import Attempt, Carry, Phase, Target, carry_routed
from meshbus.engine.session.budget import HandshakeBudget, Standing
from meshbus.engine.session.candidate import (
    AMPLIFICATION,
    PROBE_S,
    Candidate,
    Candidates,
    reason_of,
    same_place,
    straight_from,
)
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health
from meshbus.engine.session.service import Context, Established, Service
from meshbus.engine.settings import HandshakeConfig
from meshbus.errors import Fault, HandshakeError, HandshakeFault, MalformedPacket, RemoteProtocolError, UnknownVersion
from meshbus.names.identity import routing_id
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.policy.revocations import EVERYTHING
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.handshake import (
    decode_handshake,
    decode_routed_handshake,
    encode_handshake,
    unpack_initiator_id,
)
from meshbus.wire.header import Buffer, unpack_header
from meshbus.wire.keys import Role, SessionKeys, derive_keys
from meshbus.wire.messages.revocation import Revocation
from meshbus.wire.noise import KEY_BYTES, MIN_MESSAGE_BYTES, Responder, derive_public_key, prologue
from meshbus.wire.route import RouteHeader

YIELD_S = 1.0
"""How long the higher node id holds back its own session. Our choice: a few round trips and one lost packet."""
MAX_TRIES = 64
"""Expected nodes tried for one direct message 1. Our choice, to bound the work.

A direct message does not name its sender; only the prologue does (transport.md §10.1), so each one is tried."""
RELAYED_S = 0.5
"""How long a session that was begun through a relay waits for its proof. Our choice: a meshbus node proves it within a
round trip, a net-mesh 0.23 node never."""
MAX_EPHEMERALS = 4096
"""Ephemeral keys remembered, to recognize replays of message 1. Our choice: 128 KiB of keys."""

_ROUTED_FIRST_BYTES = MIN_MESSAGE_BYTES + 8
"""A routed message 1 carries the node id of the initiator as payload (transport.md §10.1)."""
_DIRECT_BYTES = HEADER_BYTES + MIN_MESSAGE_BYTES
_ROUTED_BYTES = ROUTE_BYTES + HEADER_BYTES + _ROUTED_FIRST_BYTES
"""The shortest datagrams with a message 1."""
_ROUTED_EPHEMERAL = slice(ROUTE_BYTES + HEADER_BYTES, ROUTE_BYTES + HEADER_BYTES + KEY_BYTES)
"""Where the initiator's ephemeral key is in a routed handshake packet."""


BOUNDS = (
    Bound(
        name="ephemerals",
        what="keys of handshakes, to recognize replays",
        by=By.MEMBER,
        per_node=MAX_EPHEMERALS,
        full="the oldest goes",
        counter=forgotten("ephemerals"),
    ),
)


class Handshakes(Service):
    """All handshakes of one node."""

    def __init__(self, context: Context, *, admit: Callable[[int], bool] = lambda _: True) -> None:
        """Create without sessions; `admit` decides which nodes may begin a routed handshake with this one.

        At that point the node id is only a claim: an allow list does not stop a holder of the mesh key who lies.
        """
        settings = context.settings
        self.public_key = derive_public_key(context.static_private_key)
        self.carry: Carry = carry_routed
        """Sends handshake messages to a node id; the handshake relay (routes/relay.py) replaces it."""
        self._context = context
        self._keys = context.mesh_keys
        self._static = context.static_private_key
        self._peers = context.peers
        self._counters = context.counters
        self._entropy = context.entropy
        self._config = settings.handshake
        self._admit = admit
        self._routed_ttl = settings.liveness.routed_ttl
        self._attempts: dict[int, Attempt] = {}
        """By routing id, which is all that a routed message 2 says about its sender (transport.md §7)."""
        self._expected: dict[int, _Expected] = {}
        self._candidates = Candidates(
            self._counters, confirm_s=self._config.confirm_s, contest_s=self._config.contest_s
        )
        self._ephemerals: BoundedMap[bytes, None] = BoundedMap(MAX_EPHEMERALS, self._counters.forgetting("ephemerals"))
        self._budget = HandshakeBudget(self._counters)

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self._context.identity.node_id

    # ── requests of the application ─────────────────────────────────────────────────────────

    def connect(
        self,
        node_id: int,
        address: Address,
        public_key: bytes,
        now: float,
        out: Output,
        *,
        routed: bool = True,
        straight: bool = False,
        config: HandshakeConfig | None = None,
        follows: bool = False,
        given_key: bytes | None = None,
    ) -> None:
        """Begin a handshake; its result is an `Established` session or a HandshakeFailed notice.

        A running 0.23 node answers only routed handshakes, at its own address or behind a relay; it answers direct ones
        only while it accepts, before it runs (transport.md §10.2). `straight` means that the address is known to be the
        peer's own, not a relay's. `config` overrides the number of tries and their timeout. An attempt that `follows`
        changes its address when `redirect` is called. `given_key` is the key that messages show, if the user gave another
        one than the Noise key. Calling this again for the same target changes nothing.

        Raises HandshakeError if another attempt with the same routing id is under way, or if the node id or public key
        cannot be used, or the node was revoked.
        """
        self._check_id(node_id)
        if node_id in self._context.revocations.nodes:
            raise HandshakeError(HandshakeFault.REFUSED, self._why_refused(node_id))
        target = Target(node_id, address, public_key, routed, straight, given_key)
        # transport.md §10.3: one attempt per routing id, because an answer names only that.
        key = routing_id(node_id)
        under_way = self._attempts.get(key)
        if under_way is not None:
            if under_way.target == target:
                return
            raise HandshakeError(
                HandshakeFault.REFUSED,
                f"another handshake with node {under_way.target.node_id:016x} is in progress; wait for it, or cancel that"
                " connect call",
            )
        patience = config or self._config
        attempt = Attempt(
            target,
            node_id=self.node_id,
            psks=self._keys.accepted(now),
            entropy=self._entropy,
            tries=patience.tries,
            timeout_s=patience.timeout_s,
            carry=self.carry,
            follows=follows,
        )
        attempt.send(now, out)
        self._attempts[key] = attempt
        self._budget.remember(address)

    def redirect(self, node_id: int, address: Address) -> None:
        """Change the address of an attempt that follows the routing table."""
        attempt = self._attempt(node_id)
        if attempt is not None:
            attempt.redirect(address)

    def keys_changed(self) -> None:
        """Use new mesh keys for what begins from now on."""
        for node_id, expected in self._expected.items():
            expected.responder = self._responder(node_id)

    def became(self, old: int, now: float, out: Output) -> None:
        """Begin sessions with the new key of this node; those that were begun with the old one do not come about."""
        self._static = self._context.identity.noise_private_key
        self.public_key = derive_public_key(self._static)
        self.keys_changed()
        for node_id in self.connecting:
            self._end_attempt(node_id)
            problem = "this node got another key meanwhile; try again"
            out.control.append(HandshakeFailed(node_id, HandshakeFault.REFUSED, problem))

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Accept a node under its new id."""
        expected = self._expected.pop(old, None)
        if expected is not None and new != self.node_id:
            self.accept(new, once=expected.once)

    def cancel_connect(self, node_id: int) -> bool:
        """Cancel the attempt to reach a node, and return whether there was one."""
        return self._end_attempt(node_id)

    def refused(self, address: Address, out: Output) -> None:
        """Handle the report of a machine that nothing listens at an address: anybody can forge it, so tries go on."""
        for attempt in self._attempts.values():
            if not attempt.refused and same_place(attempt.target.address, address):
                attempt.refused = True
                if attempt.due_quiet is not None:
                    out.control.append(attempt.unanswered())

    def accept(self, node_id: int, *, once: bool = True) -> None:
        """Allow a node to begin sessions, also directly, until `cancel_accept`; `once` ends it when one is proved."""
        self._check_id(node_id)
        # `accept` is used up only when the session is proved: a forged message 1 must not end it.
        self._forget_used()
        if node_id not in self._expected:
            self._expected[node_id] = _Expected(self._responder(node_id))
        self._expected[node_id].once &= once

    def cancel_accept(self, node_id: int) -> bool:
        """Withdraw an `accept`, and return whether it was still open."""
        self._forget_used()
        return self._expected.pop(node_id, None) is not None

    @property
    def accepting(self) -> frozenset[int]:
        """The nodes that `accept` allows to begin a session."""
        self._forget_used()
        return frozenset(self._expected)

    @property
    def connecting(self) -> frozenset[int]:
        """The nodes to which an attempt is under way."""
        return frozenset(attempt.target.node_id for attempt in self._attempts.values())

    # ── packets from the wire ───────────────────────────────────────────────────────────────

    def receive_direct(self, source: Address, datagram: Buffer, now: float, out: Output) -> list[Established]:
        """Handle a direct packet with the HANDSHAKE flag, and return the session to establish, if any."""
        try:
            message = decode_handshake(datagram)
        except RemoteProtocolError as error:
            return self._drop(_reason(error))
        # The usual case of a running node: nothing that could be meant, so no limit is spent on it.
        if not self._expected and not self._attempts and len(message) >= MIN_MESSAGE_BYTES:
            return self._drop(Reason.HANDSHAKE_UNEXPECTED)
        standing = self._standing(message, source, now)
        if standing is Standing.REFUSED:
            return []
        tried = [a for a in self._attempts.values() if not a.target.routed and same_place(a.target.address, source)]
        for attempt in tried:
            keys = attempt.read(message, source, now)
            if keys is not None:
                return self._finish(attempt, keys, None, now)
        self._forget_used()
        # transport.md §10.1: a direct message 1 has an empty payload, so exactly 48 bytes.
        if len(message) != MIN_MESSAGE_BYTES or not self._expected:
            return self._unread(tried)
        for node_id in list(self._expected)[:MAX_TRIES]:
            if not self._budget.afford_direct(standing, now):
                return self._drop(Reason.HANDSHAKE_RATE)
            expected = self._expected.pop(node_id)
            self._expected[node_id] = expected  # move it to the end, so that the next message tries others first
            if _read(expected.responder, message) is None:
                continue
            # A responder reads one message; the next one (a retry of the same node) needs a new responder.
            responder, expected.responder = expected.responder, self._responder(node_id)
            if self._retired(responder, now):
                return []
            self._answer(node_id, responder, source, None, now, out)
            return []
        return self._unread(tried, unverified=True)

    def receive_routed(self, source: Address, datagram: Buffer, now: float, out: Output) -> list[Established]:
        """Handle a routed packet for this node, with its routing header, whose inner packet has the HANDSHAKE flag.

        Returns the session to establish, if any.
        """
        # What a flood consists of costs as little as junk: replays, and whatever comes when the limit is used up.
        if bytes(datagram[_ROUTED_EPHEMERAL]) in self._ephemerals:
            return self._drop(Reason.HANDSHAKE_REPLAY)
        if self._budget.spent_routed(source, now) and self._peers.by_address(source) is None:
            return self._drop(Reason.HANDSHAKE_RATE)
        try:
            route, message = decode_routed_handshake(datagram)
        except RemoteProtocolError as error:
            return self._drop(_reason(error))
        if route.dest_id != self.node_id:
            return self._drop(Reason.HANDSHAKE_MISROUTED)
        standing = self._standing(message, source, now)
        if standing is Standing.REFUSED:
            return []
        # transport.md §10.3: nothing marks a message 2, so a pending attempt to this source tries to read it first.
        # Unlike a 0.23 node, we then try it as a message 1: both sides may have begun at the same time.
        attempt = self._attempts.get(route.src_id)
        tried = [attempt] if attempt is not None and attempt.target.routed else []
        for attempt in tried:
            keys = attempt.read(message, source, now)
            if keys is not None:
                target = attempt.target
                # mesh.md §2.2: a peer behind a relay is reached only with a routing header on every packet.
                relayed = not target.straight and (route.hop_count > 0 or not same_place(source, target.address))
                return self._finish(attempt, keys, self._route(target.node_id) if relayed else None, now)
        if len(message) < _ROUTED_FIRST_BYTES:
            return self._unread(tried)
        if not self._budget.afford_routed(standing, now):
            return self._drop(Reason.HANDSHAKE_RATE)
        responder = self._responder(route.src_id)
        payload = _read(responder, message)
        if payload is None:
            return self._unread(tried, unverified=True)
        if self._retired(responder, now):
            return []
        try:
            node_id = unpack_initiator_id(payload, route.src_id)
        except RemoteProtocolError:
            return self._drop(Reason.HANDSHAKE_SOURCE)
        if node_id in {0, self.node_id}:
            return self._drop(Reason.HANDSHAKE_SOURCE)
        self._forget_used()
        if node_id not in self._expected and not self._admit(node_id):
            self._counters.count(Reason.REFUSE_HANDSHAKE_NOT_ADMITTED)
            return []
        self._answer(node_id, responder, source, route, now, out)
        return []

    def knows(self, session_id: int) -> bool:
        """Return whether a session that is no peer's current one is a candidate; its packets go to `claim`."""
        return session_id in self._candidates

    def expected_up(self, since: float) -> list[int]:
        """Return the nodes without a session that have begun one since a time, and have not proved it."""
        begun = self._candidates.begun_since(since)
        return [node_id for node_id in begun if self._peers.get(node_id) is None]

    def claim(self, source: Address, datagram: bytes, now: float, out: Output) -> list[Established]:
        """Handle a packet, without its routing header, of a session that is no peer's current one.

        If the packet verifies, it is kept and returned in `held` of the session's `Established`, now or later.
        """
        try:
            session_id = unpack_header(datagram).session_id
        except RemoteProtocolError as error:
            return self._drop(reason_of(error))
        candidate = self._candidates.claim(session_id, source, datagram)
        return [] if candidate is None else self._judge(candidate, now, out)

    def revoked(self, record: Revocation, now: float, out: Output) -> None:
        """End the attempt to reach a node that was revoked."""
        if record.what in EVERYTHING and self._end_attempt(record.node_id):
            problem = self._why_refused(record.node_id)
            out.control.append(HandshakeFailed(record.node_id, HandshakeFault.REFUSED, problem))

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Remember the address of a peer that proved itself: it will come back from there."""
        peer = self._peers.get(down.node_id)
        if peer is not None and peer.link.proved and peer.link.home is not None:
            self._budget.remember(peer.link.home)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def next_timer(self) -> float | None:
        """Return the earliest deadline of all attempts and candidates, or None."""
        times = [attempt.due for attempt in self._attempts.values()]
        times += [attempt.due_quiet for attempt in self._attempts.values() if attempt.due_quiet is not None]
        waiting = self._candidates.next_timer()
        if waiting is not None:
            times.append(waiting)
        return min(times, default=None)

    def tick(self, now: float, out: Output) -> None:
        """Advance the attempts and candidates that are due, and establish the resulting sessions."""
        self._context.establish(self.settle(now, out), now, out)

    def settle(self, now: float, out: Output) -> list[Established]:
        """Advance the attempts and candidates that are due, and return the sessions to establish."""
        established: list[Established] = []
        for attempt in list(self._attempts.values()):
            if attempt.due_quiet is not None and now >= attempt.due_quiet:
                out.control.append(attempt.unanswered())
            if now < attempt.due:
                continue
            target = attempt.target
            if attempt.phase is Phase.YIELDING:
                assert attempt.link is not None
                established.append(self._establish(target.node_id, attempt.link, now, initiated=True))
            elif not attempt.advance(now, out):
                self._end_attempt(target.node_id)
                out.control.append(attempt.failure())
                established += self._fall_back(target.node_id, now)
        for candidate in self._candidates.expire(now):
            # A session that was established in this call has decided the contest for its node.
            if candidate.node_id in {done.node_id for done in established}:
                continue
            if candidate.proved:
                established += self._judge(candidate, now, out)
            elif candidate.link.route:
                established += self._believe(candidate, now)
            else:
                self._candidates.ask(candidate, now, out)
        return established

    # ── decisions ───────────────────────────────────────────────────────────────────────────

    def _finish(self, attempt: Attempt, keys: SessionKeys, route: RouteHeader | None, now: float) -> list[Established]:
        """Handle a verified message 2: establish the session, unless the peer with the lower id also began one."""
        target = attempt.target
        link = Link(keys, Role.INITIATOR, target.address, now, route=route)
        link.mesh_key = attempt.psk
        # Both sides began: the session of the lower node id wins, if it came from the address that we tried.
        rivals = self._candidates.of(target.node_id)
        # transport.md §10.3 recommends that the lower node id wins.
        if self.node_id > target.node_id and any(straight_from(rival.link, target.address) for rival in rivals):
            attempt.hold(link, now + YIELD_S)
            return []
        return [self._establish(target.node_id, link, now, initiated=True)]

    def _answer(
        self, node_id: int, responder: Responder, source: Address, route: RouteHeader | None, now: float, out: Output
    ) -> None:
        """Handle a verified message 1: send message 2, and keep the session as a candidate."""
        # transport.md §10.3: an initiator uses a new ephemeral for each try, so a known one is a replay.
        ephemeral = responder.initiator_ephemeral
        peer = self._peers.get(node_id)
        self._ephemerals.put(ephemeral, None)
        if node_id in self._context.revocations.nodes:
            self._counters.count(Reason.REFUSE_REVOKED)
            return
        # The table of ephemerals is bounded, but a replay of the current session's message 1 is always recognized.
        if peer is not None and peer.link.ephemeral == ephemeral:
            self._drop(Reason.HANDSHAKE_REPLAY)
            return
        if peer is None and not self._peers.has_room(source):
            self._counters.count(Reason.REFUSE_PEERS_FULL)
            return
        message = responder.write(self._entropy(KEY_BYTES))
        if route is None:
            out.send(source, encode_handshake(message))
        else:
            self.carry(source, message, self.node_id, node_id, out)
        keys = derive_keys(responder.handshake_hash, Role.RESPONDER)
        # transport.md §7: every forwarder increments the hop count, so 0 means that it came straight from its sender.
        relayed = route is not None and route.hop_count > 0
        link = Link(keys, Role.RESPONDER, source, now, route=self._route(node_id) if relayed else None)
        link.ephemeral, link.mesh_key = ephemeral, responder.psk
        if node_id in self._expected:
            self._expected[node_id].link = link
        candidate = self._candidates.add(node_id, link, now)
        if relayed:
            self._candidates.wait(candidate, now + RELAYED_S)
        else:
            received = _DIRECT_BYTES if route is None else _ROUTED_BYTES
            candidate.allowance = AMPLIFICATION * received - len(out.trains[-1].data)
            self._candidates.ask(candidate, now, out)

    def _believe(self, candidate: Candidate, now: float) -> list[Established]:
        """Establish a session that was begun through a relay, although it is not proved, if nothing speaks against it.

        mesh.md §2.2: a 0.23 node cannot send through a relay, so it can never prove such a session. The routing header is
        not authenticated, so anybody can claim to relay; only a neighbor that proved itself is believed.
        """
        peer, relay = self._peers.get(candidate.node_id), self._peers.by_address(candidate.link.address)
        # Nothing of value would be lost: no attempt of ours, and no session that its peer ever proved.
        unrivaled = self._attempt(candidate.node_id) is None and (peer is None or not peer.link.proved)
        if unrivaled and relay is not None and relay.link.proved and relay.health is not Health.FAILED:
            return [self._promote(candidate, now)]
        self._candidates.wait(candidate, candidate.expires_at)
        return []

    def _judge(self, candidate: Candidate, now: float, out: Output) -> list[Established]:
        """Decide whether a proved candidate takes over now or waits."""
        node_id = candidate.node_id
        attempt, peer = self._attempt(node_id), self._peers.get(node_id)
        if attempt is not None:
            # Our own attempt proves the peer's private key, which is more than a candidate proves. Only a session from
            # the address that we are trying may end it.
            if not straight_from(candidate.link, attempt.target.address):
                self._candidates.wait(candidate, now + PROBE_S)
                return []
        elif peer is not None and self._candidates.contested(candidate, peer, now, out):
            return []
        return [self._promote(candidate, now)]

    def _promote(self, candidate: Candidate, now: float) -> Established:
        self._candidates.take(candidate)
        return self._establish(candidate.node_id, candidate.link, now, initiated=False, held=tuple(candidate.held))

    def _fall_back(self, node_id: int, now: float) -> list[Established]:
        """After a failed attempt, use a session that the peer began through a relay, although it is not proved.

        A session that came directly would have been proved by now.
        """
        # The newest one: the peer uses the session of its last try.
        relayed = [candidate for candidate in self._candidates.of(node_id) if candidate.link.route]
        return self._believe(relayed[-1], now) if relayed else []

    def _establish(
        self,
        node_id: int,
        link: Link,
        now: float,
        *,
        initiated: bool,
        held: tuple[tuple[Address, bytes], ...] = (),
    ) -> Established:
        self._end_attempt(node_id)
        peer = self._peers.get(node_id)
        if initiated and self.node_id < node_id:
            self._candidates.drop(node_id)
        elif peer is not None and not peer.link.proved:
            # The peer may use the old session and not the new one; its first packet will show which.
            self._candidates.add(node_id, peer.link, now)
        return Established(node_id, link, initiated, held)

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _why_refused(self, node_id: int) -> str:
        """Return why there is no session with a node whose key was revoked."""
        revocations = self._context.revocations
        heir = revocations.key_of(revocations.heir_id(node_id))
        if heir is not None and node_id != revocations.heir_id(node_id):
            return f"the key of node {node_id:016x} was revoked, and {heir.hex()} succeeded it; connect with that key"
        return f"the key of node {node_id:016x} was revoked; `meshbus revoke ls` shows by whom and why"

    def _check_id(self, node_id: int) -> None:
        if node_id in {0, self.node_id}:
            # transport.md §6: node id 0 is the sentinel for an unknown peer.
            whose = "is reserved" if node_id == 0 else "is this node's own"
            raise HandshakeError(
                HandshakeFault.REFUSED, f"node id {node_id:016x} {whose}; pass the node id of another node"
            )

    def _attempt(self, node_id: int) -> Attempt | None:
        attempt = self._attempts.get(routing_id(node_id))
        return attempt if attempt is not None and attempt.target.node_id == node_id else None

    def _end_attempt(self, node_id: int) -> bool:
        if self._attempt(node_id) is None:
            return False
        del self._attempts[routing_id(node_id)]
        return True

    def _responder(self, initiator: int) -> Responder:
        """Create the responder for message 1 of a node; its routing id is enough, as the prologue has no more."""
        current, *others = self._keys.known
        bound = prologue(initiator, self.node_id)
        return Responder(psk=current, also=others, prologue=bound, static_private_key=self._static)

    def _retired(self, responder: Responder, now: float) -> bool:
        """Return whether a message was read under a mesh key that is not accepted any more; count it if so."""
        retired = not self._keys.accepts(responder.psk, now)
        if retired:
            self._counters.count(Reason.HANDSHAKE_RETIRED_KEY)
        return retired

    def _route(self, node_id: int) -> RouteHeader:
        return RouteHeader(ttl=self._routed_ttl, src_id=routing_id(self.node_id), dest_id=node_id)

    def _forget_used(self) -> None:
        used = [node_id for node_id, expected in self._expected.items() if expected.used]
        for node_id in used:
            del self._expected[node_id]

    def _standing(self, message: bytes, source: Address, now: float) -> Standing:
        """Return what a message may cost; count it if it deserves no curve operation."""
        if len(message) < MIN_MESSAGE_BYTES:
            self._drop(Reason.HANDSHAKE_TRUNCATED)
        elif message[:KEY_BYTES] in self._ephemerals:
            self._drop(Reason.HANDSHAKE_REPLAY)
        else:
            peer = self._peers.by_address(source)
            if peer is not None and peer.link.proved:
                self._budget.remember(source)
            standing = self._budget.admit(source, now)
            if standing is Standing.REFUSED:
                self._drop(Reason.HANDSHAKE_RATE)
            return standing
        return Standing.REFUSED

    def _unread(self, tried: list[Attempt], *, unverified: bool = False) -> list[Established]:
        """Count and drop a message that no attempt and no responder could read."""
        for attempt in tried:
            attempt.unverified += 1
        return self._drop(Reason.HANDSHAKE_UNVERIFIED if tried or unverified else Reason.HANDSHAKE_UNEXPECTED)

    def _drop(self, reason: Reason) -> list[Established]:
        self._counters.count(reason)
        return []


class _Expected:
    """A node that may begin a session, also directly."""

    __slots__ = ("link", "once", "responder")

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.link: Link | None = None
        self.once = True

    @property
    def used(self) -> bool:
        return self.once and self.link is not None and self.link.proved


def _read(responder: Responder, message: bytes) -> bytes | None:
    try:
        return responder.read(message)
    except RemoteProtocolError:
        return None


def _reason(error: RemoteProtocolError) -> Reason:
    match error:
        case MalformedPacket(fault=Fault.TRUNCATED):
            return Reason.HANDSHAKE_TRUNCATED
        case MalformedPacket(fault=Fault.BAD_MAGIC):
            return Reason.HANDSHAKE_BAD_MAGIC
        case MalformedPacket(fault=Fault.BAD_LENGTH):
            return Reason.HANDSHAKE_BAD_LENGTH
        case UnknownVersion():
            return Reason.HANDSHAKE_UNKNOWN_VERSION
        case _:
            return Reason.HANDSHAKE_UNKNOWN_KIND
