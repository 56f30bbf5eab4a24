"""Candidates: sessions begun by a peer that are not proved yet, or wait until they may replace its current session.

Any holder of the mesh key can begin a session in the name of any node, and anybody who recorded a message 1 can send it
again. A 0.23 node establishes its session at once in the first case (transport.md §19). Here a session that the other
side began is only a candidate: nobody hears of it, and a current session continues undisturbed. The candidate is proved
by its first packet that verifies: its sender has the keys. A 0.23 node may send nothing for seconds, so it is asked with a
reflex request. The candidate then takes over

    at once     if there is no current session, if it was never proved itself, or if its peer has failed
    at once     if it came directly from the address of the current session: only a node that receives there could read
                our answer, so this is the peer after a restart
    later       if the current session does not react to several probes for `contest_s`: the peer came back under
                another address. The candidate's packets are kept until then

A current session that reacts stays, and the candidate expires after `confirm_s`. So a forged or repeated message 1 ends
no session, nobody can take over the session of a peer that is alive, and a restarted peer is back within seconds. The
probe is a reflex request, which a 0.23 node answers immediately (mesh.md §8.1); any other packet of the session counts
as well.

All memory here is bounded. How a candidate competes with a handshake that this node began is decided in
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
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import Buffer, Header
from meshbus.wire.messages.reflex import ReflexRequest, encode_reflex
from meshbus.wire.replaywindow import ReplayWindow
from meshbus.wire.seal import Opener

PROBE_S = 0.25
"""Time between two probes of the current session: eight of them in the default `contest_s`."""
PROOF_PROBES = 2
"""Probes of a candidate. Our choice: with message 2 they are less than three times the bytes of message 1, so that an
address in a forged datagram gets little more than was sent."""
MAX_PER_NODE = 4
"""Candidates per node. Our choice: more than the three tries of one handshake."""
MAX_CANDIDATES = 1024
"""Candidates of all nodes. Our choice, against memory exhaustion."""
MAX_HELD = 64
"""Packets kept for one candidate. Our choice: as many as one full train has (session/link.py)."""
MAX_HELD_BYTES = 4 << 20
"""Bytes kept for all candidates. Our choice: eight candidates with 64 packets of the largest size."""


def straight_from(link: Link, address: Address) -> bool:
    """Return whether a session was begun from this address, without a relay."""
    return not link.route and same_place(link.address, address)


def same_place(one: Address, other: Address) -> bool:
    """Return whether two addresses are the same host and port."""
    return place_of(one) == place_of(other)


class Candidate:
    """One session that waits to be proved or to take over."""

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
        """When `tick` has to examine it again."""
        self.held: list[tuple[Address, bytes]] = []
        """Verified packets with their sources, in the order of arrival; received again if the session takes over."""
        self.refused = False
        """Whether the current session has shown that it is alive."""
        # Verify with a copy of the replay window: the held packets must be new to the session's own one later.
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
        """Verify a packet; raise RemoteProtocolError if it is forged or not new."""
        self._opener.open(datagram)

    def ask_for_proof(self, now: float, out: Output) -> None:
        """Send a packet that a 0.23 node answers immediately, unless it was sent often enough."""
        self.due = self.expires_at
        if self.link.probes < PROOF_PROBES:
            self.link.probes += 1
            self.wait(now)
            header = Header(subprotocol_id=Subprotocol.REFLEX, stream_id=Subprotocol.REFLEX, event_count=1)
            out.trains.append(self.link.seal(header, pack_frames([encode_reflex(ReflexRequest())])))

    def wait(self, now: float) -> None:
        """Examine it again after a short time."""
        self.due = min(now + PROBE_S, self.expires_at)

    def contested(self, peer: Peer, now: float, contest_s: float, out: Output) -> bool:
        """Return whether the peer's current session stays for now; probe it if a probe is due."""
        rival = peer.link
        if not rival.proved or peer.health is Health.FAILED:
            return False
        # The peer after a restart: only a node that receives at the current address could read our message 2.
        if not rival.route and straight_from(self.link, rival.address):
            return False
        # The replay window advances with every packet that verifies: if it moved, the current session is alive.
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
    """All candidates of a node, oldest first."""

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

    def add(self, node_id: int, link: Link, now: float) -> Candidate:
        """Add and return a candidate; if there are too many, the oldest that is not proved goes, or else the oldest."""
        # The limit per node is checked first: a flood in the name of one node must not crowd out others.
        own = self.of(node_id)
        if len(own) >= MAX_PER_NODE:
            self._crowd_out(own)
        elif len(self._by_session) >= MAX_CANDIDATES:
            self._crowd_out(list(self._by_session.values()))
        added = self._by_session[link.session_id] = Candidate(node_id, link, now, self._confirm_s)
        return added

    def of(self, node_id: int) -> list[Candidate]:
        """Return the candidates of a node, oldest first."""
        return [candidate for candidate in self._by_session.values() if candidate.node_id == node_id]

    def begun_since(self, time: float) -> list[int]:
        """Return the nodes whose sessions were begun since a time."""
        return [one.node_id for one in self._by_session.values() if one.expires_at - self._confirm_s >= time]

    def claim(self, session_id: int, source: Address, datagram: bytes) -> Candidate | None:
        """Handle a packet of a candidate's session, and return the candidate if the packet verifies."""
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
        """Return whether the peer's current session stays for now, and count a refusal once."""
        before = candidate.refused
        contested = candidate.contested(peer, now, self._contest_s, out)
        if candidate.refused and not before:
            self._counters.count(Reason.REFUSE_LIVE_SESSION)
        return contested

    def take(self, candidate: Candidate) -> None:
        """Remove a candidate that takes over, and the older ones of its node, which the peer no longer uses."""
        own = self.of(candidate.node_id)
        # A newer candidate may be the peer's next try, which is still under way.
        for other in own[: own.index(candidate) + 1]:
            self._remove(other)

    def drop(self, node_id: int) -> None:
        """Remove all candidates of a node."""
        for candidate in self.of(node_id):
            self._remove(candidate)

    def next_timer(self) -> float | None:
        """Return when `expire` is due, or None."""
        return min((candidate.due for candidate in self._by_session.values()), default=None)

    def expire(self, now: float) -> list[Candidate]:
        """Remove the candidates that expired, and return the others that are due."""
        ready = [candidate for candidate in self._by_session.values() if now >= candidate.due]
        waiting = []
        for candidate in ready:
            # Due, but not expired: it waits for its proof, or for the current session to react.
            if now < candidate.expires_at:
                waiting.append(candidate)
                continue
            self._remove(candidate)
            if not candidate.refused:
                self._counters.count(Reason.HANDSHAKE_UNCONFIRMED)
        return waiting

    def _crowd_out(self, candidates: list[Candidate]) -> None:
        # A proved candidate is worth more: its sender has shown that it has the keys.
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
