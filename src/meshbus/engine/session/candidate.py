"""Sessions that nobody has proved yet, and when they take the place of another.

Whoever holds the mesh key can begin a session in any node's name, and whoever recorded a first message can send it
again. So a session that *they* began is a candidate while there is something to lose: it waits beside the node's current
session, which goes on undisturbed. Its first packet that verifies proves that somebody has its keys. It then takes over

    at once     when the current session was never proved itself, or its peer counts as failed
    at once     when it came straight from the current session's address: only who receives there could read our
                answer, so this is the peer after a restart
    later       when the current session, asked several times, has shown no sign of life for `contest_s`: the peer
                came back from another address. Its packets are kept until then

A current session that answers keeps its place, and the candidate runs out after `confirm_s`. So one forged or repeated
message 1 ends nothing, a stranger cannot take over a peer that is there, and a peer that restarted is back within
seconds. It is asked with a reflex request, which a 0.23 node answers at once; any other packet of it counts as well.

Everything here is bounded. What a candidate is measured against beyond this (our own attempts) is decided in
engine/session/handshake.py.
"""

from __future__ import annotations

from copy import copy

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, Output, place_of
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health, Peer
from meshbus.engine.settings import CONFIRM_S, CONTEST_S
from meshbus.errors import BadTag, RemoteProtocolError, Replayed, UnknownVersion
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.keys import Role
from meshbus.wire.messages.reflex import ReflexRequest, encode_reflex
from meshbus.wire.replaywindow import ReplayWindow
from meshbus.wire.seal import Opener

PROBE_S = 0.25
MAX_PER_NODE = 4
MAX_CANDIDATES = 1024
MAX_HELD = 64
"""Packets kept for one candidate."""
MAX_HELD_BYTES = 4 << 20
"""Bytes kept for all of them."""


def confirmed(link: Link) -> bool:
    """Say whether the peer has proved that it has the keys of a session: by message 2, or by a packet."""
    return link.role is Role.INITIATOR or link.opener.window.next > 0


def straight_from(link: Link, address: Address) -> bool:
    """Say whether a session was begun from this very address, without a relay."""
    return not link.route and same_place(link.address, address)


def same_place(one: Address, other: Address) -> bool:
    """Say whether two addresses are the same host and port."""
    return place_of(one) == place_of(other)


class Candidate:
    """One session that waits."""

    __slots__ = (
        "_mark",
        "_opener",
        "_probe_at",
        "_quiet_since",
        "_rival",
        "due",
        "expires_at",
        "held",
        "link",
        "node_id",
        "refused",
    )

    def __init__(self, node_id: int, link: Link, now: float, confirm_s: float) -> None:
        self.node_id = node_id
        self.link = link
        self.expires_at = now + confirm_s
        self.due = self.expires_at
        """When to look at it again."""
        self.held: list[tuple[Address, bytes]] = []
        """Genuine packets, in the order they came, for whoever takes the session over."""
        self.refused = False
        """Whether the current session has shown that it is alive."""
        # The session's own replay window must be untouched when the held packets are opened in earnest.
        self._opener: Opener = copy(link.opener)
        self._opener.window = ReplayWindow()
        self._rival: Link | None = None
        self._mark = 0
        self._quiet_since = now
        self._probe_at = now

    @property
    def proved(self) -> bool:
        """Whether a packet has verified."""
        return self._opener.window.next > 0

    def verify(self, datagram: Buffer) -> None:
        """Check a packet; raises RemoteProtocolError for one that is not genuine and new."""
        self._opener.open(datagram)

    def wait(self, now: float) -> None:
        """Look at it again a little later."""
        self.due = min(now + PROBE_S, self.expires_at)

    def contested(self, peer: Peer, now: float, contest_s: float, out: Output) -> bool:
        """Say whether the peer's current session keeps its place for now; asks it for a sign of life when it is time."""
        rival = peer.link
        if not confirmed(rival) or peer.health is Health.FAILED:
            return False
        if not rival.route and straight_from(self.link, rival.address):
            return False
        seen = rival.opener.window.next
        if rival is not self._rival or seen != self._mark:
            self.refused |= rival is self._rival
            self._rival, self._mark, self._quiet_since = rival, seen, now
        ends_at = self._quiet_since + contest_s
        if now >= ends_at:
            return False
        if now >= self._probe_at:
            self._probe_at = now + PROBE_S
            peer.send_message(Subprotocol.REFLEX, encode_reflex(ReflexRequest()), out)
        self.due = min(self._probe_at, ends_at, self.expires_at)
        return True


class Candidates:
    """All sessions that wait, oldest first."""

    def __init__(self, counters: Counters, *, confirm_s: float = CONFIRM_S, contest_s: float = CONTEST_S) -> None:
        self._counters = counters
        self._confirm_s = confirm_s
        self._contest_s = contest_s
        self._by_session: dict[int, Candidate] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._by_session)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._by_session

    def add(self, node_id: int, link: Link, now: float) -> None:
        """Let a session wait; of too many, the oldest that was not proved goes, or else the oldest."""
        own = self.of(node_id)
        if len(own) >= MAX_PER_NODE:
            self._crowd_out(own)
        elif len(self._by_session) >= MAX_CANDIDATES:
            self._crowd_out(list(self._by_session.values()))
        self._by_session[link.session_id] = Candidate(node_id, link, now, self._confirm_s)

    def of(self, node_id: int) -> list[Candidate]:
        """Give the candidates of a node, oldest first."""
        return [candidate for candidate in self._by_session.values() if candidate.node_id == node_id]

    def claim(self, session_id: int, source: Address, datagram: bytes) -> Candidate | None:
        """Take a packet of a waiting session; gives its candidate when the packet is genuine."""
        candidate = self._by_session.get(session_id)
        if candidate is None:
            self._counters.count(Reason.UNKNOWN_SESSION)
            return None
        try:
            candidate.verify(datagram)
        except RemoteProtocolError as error:
            self._counters.count(reason_of(error))
            return None
        if len(candidate.held) >= MAX_HELD or self._held_bytes + len(datagram) > MAX_HELD_BYTES:
            self._counters.count(Reason.CONTESTED_SESSION)
        else:
            candidate.held.append((source, datagram))
            self._held_bytes += len(datagram)
        return candidate

    def contested(self, candidate: Candidate, peer: Peer, now: float, out: Output) -> bool:
        """Say whether the peer's current session keeps its place for now."""
        before = candidate.refused
        contested = candidate.contested(peer, now, self._contest_s, out)
        if candidate.refused and not before:
            self._counters.count(Reason.REFUSE_LIVE_SESSION)
        return contested

    def take(self, candidate: Candidate) -> None:
        """Take a candidate out, and with it the older ones of its node: the peer has moved on."""
        own = self.of(candidate.node_id)
        for other in own[: own.index(candidate) + 1]:
            self._remove(other)

    def drop(self, node_id: int) -> None:
        """Forget the candidates of a node."""
        for candidate in self.of(node_id):
            self._remove(candidate)

    def next_timer(self) -> float | None:
        """Say when `due` will give something, or forget something."""
        return min((candidate.due for candidate in self._by_session.values()), default=None)

    def expire(self, now: float) -> list[Candidate]:
        """Forget the candidates whose time is up, and give the others that are due."""
        ready = [candidate for candidate in self._by_session.values() if now >= candidate.due]
        waiting = []
        for candidate in ready:
            if now < candidate.expires_at:
                waiting.append(candidate)
                continue
            self._remove(candidate)
            if not candidate.refused:
                self._counters.count(Reason.HANDSHAKE_UNCONFIRMED)
        return waiting

    def _crowd_out(self, candidates: list[Candidate]) -> None:
        goes = next((candidate for candidate in candidates if not candidate.proved), candidates[0])
        self._remove(goes)
        self._counters.count(Reason.HANDSHAKE_CROWDED)

    def _remove(self, candidate: Candidate) -> None:
        del self._by_session[candidate.link.session_id]
        self._held_bytes -= sum(len(datagram) for _, datagram in candidate.held)


def reason_of(error: RemoteProtocolError) -> Reason:
    """Return why a packet of a session that is not confirmed yet is dropped."""
    match error:
        case BadTag():
            return Reason.BAD_TAG
        case Replayed():
            return Reason.REPLAYED
        case UnknownVersion():
            return Reason.UNKNOWN_VERSION
        case _:
            return Reason.MALFORMED_PACKET
