"""Handshakes: from two messages to a session, as initiator and as responder.

    we begin      engine/session/attempt.py sends message 1 and waits; message 2 proves that the peer holds its private key, so
                  the session is established at once and replaces any other
    they begin    a routed message 1 is answered for every node the policy admits, a direct one for nodes that `accept`
                  named. The session is established at once when the node has none, or none that was ever proved;
                  otherwise it is a candidate beside the current one (engine/session/candidate.py)
    both begin    each side answers the other, so neither depends on whose message came first. The session of the lower
                  node id wins: the higher one, having answered, holds its own back for `YIELD_S`; the lower one forgets
                  the other when its own is established. A 0.23 node takes our message 1 for a message 2 here and gives
                  up its try; we answer its next one. While we try, a session that they began counts only when it was
                  proved from the address that we are trying: elsewhere anybody could have begun it

The caller gives handshake packets to `receive_direct` and `receive_routed`, packets of a session it does not know to
`claim`, and the clock to `tick`. Each gives `Established` sessions back, to be put into the peer table at once, before
anything else is asked here. Junk never raises, never ends an attempt and never uses up an `accept`; it is counted, and
the work it can cause is bounded (engine/session/budget.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.session.attempt import Attempt, Carry, Phase, Target, carry_routed
from meshbus.engine.session.budget import HandshakeBudget
from meshbus.engine.session.candidate import (
    Candidate,
    Candidates,
    confirmed,
    reason_of,
    same_place,
    straight_from,
)
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import PeerTable
from meshbus.engine.settings import HandshakeConfig
from meshbus.errors import Fault, HandshakeError, HandshakeFault, MalformedPacket, RemoteProtocolError, UnknownVersion
from meshbus.names.identity import Entropy, routing_id
from meshbus.policy.reason import Reason
from meshbus.wire.constants import ROUTED_TTL
from meshbus.wire.handshake import (
    decode_handshake,
    decode_routed_handshake,
    encode_handshake,
    unpack_initiator_id,
)
from meshbus.wire.header import Buffer, unpack_header
from meshbus.wire.keys import Role, SessionKeys, derive_keys
from meshbus.wire.noise import KEY_BYTES, MIN_MESSAGE_BYTES, Responder, derive_public_key, prologue
from meshbus.wire.route import RouteHeader

YIELD_S = 1.0
"""How long the higher node id holds back what it began: a few round trips, with a lost packet in between."""
MAX_TRIES = 64
"""Expected nodes tried for one direct message 1; the prologue has the node id, the packet has not."""
MAX_EPHEMERALS = 4096

_ROUTED_FIRST_BYTES = MIN_MESSAGE_BYTES + 8
"""A routed message 1 carries a node id."""


class Established(msgspec.Struct, frozen=True):
    """A session to put into the peer table."""

    node_id: int
    link: Link
    initiated: bool
    held: tuple[tuple[Address, bytes], ...] = ()
    """Packets of it that came before, with their sources: to be received now, in this order."""


class Handshakes:
    """All handshakes of one node."""

    def __init__(
        self,
        node_id: int,
        *,
        psk: bytes,
        static_private_key: bytes,
        peers: PeerTable,
        counters: Counters,
        entropy: Entropy,
        config: HandshakeConfig = HandshakeConfig(),  # noqa: B008  frozen
        admit: Callable[[int], bool] = lambda _: True,
        carry: Carry = carry_routed,
        routed_ttl: int = ROUTED_TTL,
    ) -> None:
        """Set up; `admit` says which nodes may begin a routed handshake with us, `carry` sends what goes by node id.

        `routed_ttl` is how many hops the packets of a relayed session may make.

        A node id is only claimed at that point: an allow list keeps strangers out, not liars with the mesh key.
        """
        self.node_id = node_id
        self.public_key = derive_public_key(static_private_key)
        self._psk = psk
        self._static = static_private_key
        self._peers = peers
        self._counters = counters
        self._entropy = entropy
        self._config = config
        self._admit = admit
        self._carry = carry
        self._routed_ttl = routed_ttl
        self._attempts: dict[int, Attempt] = {}
        """By routing id: that is all a routed message 2 tells of its sender."""
        self._expected: dict[int, _Expected] = {}
        self._candidates = Candidates(counters, confirm_s=config.confirm_s, contest_s=config.contest_s)
        self._ephemerals: BoundedMap[bytes, None] = BoundedMap(MAX_EPHEMERALS)
        self._budget = HandshakeBudget()

    # ── what the application asks ───────────────────────────────────────────────────────────

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
    ) -> None:
        """Begin a handshake; it ends in an `Established`, or in a HandshakeFailed in some call's output.

        Routed is what a running 0.23 node answers, at its own address or behind a relay's; it answers direct only
        while it accepts, before it runs. `straight` says that there is no relay at the
        address, `config` how patient this one is; one that `follows` goes elsewhere when `redirect` says so. Asking
        again for what is under way changes nothing; raises HandshakeError
        when another attempt with the same routing id is under way, or for a target that cannot be.
        """
        self._check_id(node_id)
        target = Target(node_id, address, public_key, routed, straight)
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
            psk=self._psk,
            entropy=self._entropy,
            tries=patience.tries,
            timeout_s=patience.timeout_s,
            carry=self._carry,
            follows=follows,
        )
        attempt.send(now, out)
        self._attempts[key] = attempt

    def redirect(self, node_id: int, address: Address) -> None:
        """Tell that a node is now reached by another way."""
        attempt = self._attempt(node_id)
        if attempt is not None:
            attempt.redirect(address)

    def cancel_connect(self, node_id: int) -> bool:
        """Stop trying to reach a node; return whether that was in progress."""
        return self._end_attempt(node_id)

    def accept(self, node_id: int) -> None:
        """Allow a node to begin one session, directly too; holds until that session is proved, or until cancelled."""
        self._check_id(node_id)
        self._forget_used()
        if node_id not in self._expected:
            self._expected[node_id] = _Expected(self._responder(node_id))

    def cancel_accept(self, node_id: int) -> bool:
        """Take an `accept` back; says whether it was still open."""
        self._forget_used()
        return self._expected.pop(node_id, None) is not None

    @property
    def accepting(self) -> frozenset[int]:
        """The nodes that `accept` allows and that have not come yet."""
        self._forget_used()
        return frozenset(self._expected)

    @property
    def connecting(self) -> frozenset[int]:
        """The nodes that we are trying to reach."""
        return frozenset(attempt.target.node_id for attempt in self._attempts.values())

    # ── what the wire brings ────────────────────────────────────────────────────────────────

    def receive_direct(self, source: Address, datagram: Buffer, now: float, out: Output) -> list[Established]:
        """Take a packet with the HANDSHAKE flag."""
        try:
            message = decode_handshake(datagram)
        except RemoteProtocolError as error:
            return self._drop(_reason(error))
        if not self._worth_reading(message, source, now):
            return []
        tried = [a for a in self._attempts.values() if not a.target.routed and same_place(a.target.address, source)]
        for attempt in tried:
            keys = attempt.read(message, source, now)
            if keys is not None:
                return self._finish(attempt, keys, None, now)
        self._forget_used()
        if len(message) != MIN_MESSAGE_BYTES or not self._expected:
            return self._unread(tried)
        for node_id in list(self._expected)[:MAX_TRIES]:
            if not self._budget.afford_direct(now):
                return self._drop(Reason.HANDSHAKE_RATE)
            expected = self._expected.pop(node_id)
            self._expected[node_id] = expected  # at the end, so that the next message finds others first
            if _read(expected.responder, message) is None:
                continue
            responder, expected.responder = expected.responder, self._responder(node_id)
            return self._answer(node_id, responder, source, None, now, out)
        return self._unread(tried, unverified=True)

    def receive_routed(self, source: Address, datagram: Buffer, now: float, out: Output) -> list[Established]:
        """Take a routed packet for this node, routing header included, whose inner packet has the HANDSHAKE flag."""
        try:
            route, message = decode_routed_handshake(datagram)
        except RemoteProtocolError as error:
            return self._drop(_reason(error))
        if route.dest_id != self.node_id:
            return self._drop(Reason.HANDSHAKE_MISROUTED)
        if not self._worth_reading(message, source, now):
            return []
        attempt = self._attempts.get(route.src_id)
        tried = [attempt] if attempt is not None and attempt.target.routed else []
        for attempt in tried:
            keys = attempt.read(message, source, now)
            if keys is not None:
                target = attempt.target
                relayed = not target.straight and (route.hop_count > 0 or not same_place(source, target.address))
                return self._finish(attempt, keys, self._route(target.node_id) if relayed else None, now)
        if len(message) < _ROUTED_FIRST_BYTES:
            return self._unread(tried)
        if not self._budget.afford_routed(now):
            return self._drop(Reason.HANDSHAKE_RATE)
        responder = self._responder(route.src_id)
        payload = _read(responder, message)
        if payload is None:
            return self._unread(tried, unverified=True)
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
        return self._answer(node_id, responder, source, route, now, out)

    def knows(self, session_id: int) -> bool:
        """Say whether packets of this session, which is no peer's current one, belong to `claim`."""
        return session_id in self._candidates

    def claim(self, source: Address, datagram: bytes, now: float, out: Output) -> list[Established]:
        """Take a packet (without routing header) of a session that is no peer's current one.

        A genuine packet comes back in `held` of the session's `Established`, now or later.
        """
        try:
            session_id = unpack_header(datagram).session_id
        except RemoteProtocolError as error:
            return self._drop(reason_of(error))
        candidate = self._candidates.claim(session_id, source, datagram)
        return [] if candidate is None else self._judge(candidate, now, out)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def next_timer(self) -> float | None:
        """Say when `tick` is due."""
        times = [attempt.due for attempt in self._attempts.values()]
        waiting = self._candidates.next_timer()
        if waiting is not None:
            times.append(waiting)
        return min(times, default=None)

    def tick(self, now: float, out: Output) -> list[Established]:
        """Repeat, give up and settle what is due."""
        established: list[Established] = []
        for attempt in list(self._attempts.values()):
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
            if candidate.node_id not in {done.node_id for done in established}:
                established += self._judge(candidate, now, out)
        return established

    # ── decisions ───────────────────────────────────────────────────────────────────────────

    def _finish(self, attempt: Attempt, keys: SessionKeys, route: RouteHeader | None, now: float) -> list[Established]:
        """Message 2 verified: establish, unless the lower node id is about to be through as well."""
        target = attempt.target
        link = Link(keys, Role.INITIATOR, target.address, now, route=route)
        rivals = self._candidates.of(target.node_id)
        if self.node_id > target.node_id and any(straight_from(rival.link, target.address) for rival in rivals):
            attempt.hold(link, now + YIELD_S)
            return []
        return [self._establish(target.node_id, link, now, initiated=True)]

    def _answer(
        self, node_id: int, responder: Responder, source: Address, route: RouteHeader | None, now: float, out: Output
    ) -> list[Established]:
        """Message 1 verified: send message 2, and establish where nothing can be lost by it."""
        ephemeral = responder.initiator_ephemeral
        peer = self._peers.get(node_id)
        self._ephemerals.put(ephemeral, None)
        if peer is not None and peer.link.ephemeral == ephemeral:
            return self._drop(Reason.HANDSHAKE_REPLAY)
        message = responder.write(self._entropy(KEY_BYTES))
        if route is None:
            out.send(source, encode_handshake(message))
        else:
            self._carry(source, message, self.node_id, node_id, out)
        keys = derive_keys(responder.handshake_hash, Role.RESPONDER)
        relayed = route is not None and route.hop_count > 0
        link = Link(keys, Role.RESPONDER, source, now, route=self._route(node_id) if relayed else None)
        link.ephemeral = ephemeral
        if node_id in self._expected:
            self._expected[node_id].link = link
        if self._attempt(node_id) is None and (peer is None or not confirmed(peer.link)):
            return [self._establish(node_id, link, now, initiated=False)]
        self._candidates.add(node_id, link, now)
        return []

    def _judge(self, candidate: Candidate, now: float, out: Output) -> list[Established]:
        """Let a proved candidate take over, or wait."""
        node_id = candidate.node_id
        attempt, peer = self._attempt(node_id), self._peers.get(node_id)
        if attempt is not None:
            # Our own attempt would prove more; only who receives at the same address may end it.
            if not straight_from(candidate.link, attempt.target.address):
                candidate.wait(now)
                return []
        elif peer is not None and self._candidates.contested(candidate, peer, now, out):
            return []
        return [self._promote(candidate, now)]

    def _promote(self, candidate: Candidate, now: float) -> Established:
        self._candidates.take(candidate)
        return self._establish(candidate.node_id, candidate.link, now, initiated=False, held=tuple(candidate.held))

    def _fall_back(self, node_id: int, now: float) -> list[Established]:
        """Our attempt failed: what the peer began meanwhile is better than nothing, if it is from behind a relay.

        A 0.23 node cannot send from there, so it will never prove its session; from elsewhere it would have.
        """
        if self._peers.get(node_id) is None:
            for candidate in reversed(self._candidates.of(node_id)):
                if candidate.link.route:
                    return [self._promote(candidate, now)]
        return []

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
        elif peer is not None and not confirmed(peer.link):
            # The peer may be using it and not the new one; its first packet will tell.
            self._candidates.add(node_id, peer.link, now)
        return Established(node_id, link, initiated, held)

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _check_id(self, node_id: int) -> None:
        if node_id in {0, self.node_id}:
            whose = "stands for an unknown peer" if node_id == 0 else "is this node itself"
            raise HandshakeError(HandshakeFault.REFUSED, f"node id {node_id:016x} {whose}")

    def _attempt(self, node_id: int) -> Attempt | None:
        attempt = self._attempts.get(routing_id(node_id))
        return attempt if attempt is not None and attempt.target.node_id == node_id else None

    def _end_attempt(self, node_id: int) -> bool:
        if self._attempt(node_id) is None:
            return False
        del self._attempts[routing_id(node_id)]
        return True

    def _responder(self, initiator: int) -> Responder:
        """Prepare for message 1 of a node; its routing id is enough."""
        return Responder(psk=self._psk, prologue=prologue(initiator, self.node_id), static_private_key=self._static)

    def _route(self, node_id: int) -> RouteHeader:
        return RouteHeader(ttl=self._routed_ttl, src_id=routing_id(self.node_id), dest_id=node_id)

    def _forget_used(self) -> None:
        used = [node_id for node_id, expected in self._expected.items() if expected.used]
        for node_id in used:
            del self._expected[node_id]

    def _worth_reading(self, message: bytes, source: Address, now: float) -> bool:
        """Sort out what costs no curve operation."""
        if len(message) < MIN_MESSAGE_BYTES:
            self._drop(Reason.HANDSHAKE_TRUNCATED)
        elif message[:KEY_BYTES] in self._ephemerals:
            self._drop(Reason.HANDSHAKE_REPLAY)
        elif not self._budget.admit(source, now):
            self._drop(Reason.HANDSHAKE_RATE)
        else:
            return True
        return False

    def _unread(self, tried: list[Attempt], *, unverified: bool = False) -> list[Established]:
        """Count a message that nothing here could read."""
        for attempt in tried:
            attempt.unverified += 1
        return self._drop(Reason.HANDSHAKE_UNVERIFIED if tried or unverified else Reason.HANDSHAKE_UNEXPECTED)

    def _drop(self, reason: Reason) -> list[Established]:
        self._counters.count(reason)
        return []


class _Expected:
    """A node that may begin a session directly."""

    __slots__ = ("link", "responder")

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.link: Link | None = None

    @property
    def used(self) -> bool:
        return self.link is not None and confirmed(self.link)


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
