"""Candidates: sessions begun by a peer that are not proved yet, or wait until they may replace its current session.

Any holder of the mesh key can begin a session in the name of any node, and anybody who recorded a message 1 can send it
again. A 0.23 node establishes its session at once in the first case (transport.md §19). Here a session that the other
side began is only a candidate: nobody hears of it, and a current session continues undisturbed. The candidate is proved
by its first packet that verifies: its sender has the keys. A 0.23 node may send nothing for seconds, so it is asked with
reflex requests; together with message 2 they are at most `AMPLIFICATION` times the bytes that were received, because the
address may be that of a victim. The candidate then takes over

    at once     if there is no current session, if it was never proved itself, or if its peer has failed
    at once     if it came directly from the address of the current session: only a node that receives there could read
                our answer, so this is the peer after a restart
    later       if the current session does not react to several probes for `contest_s`: the peer came back under
                another address. The candidate's packets are kept until then

A current session that reacts stays, and the candidate expires after `confirm_s`. So a forged or repeated message 1 ends
no session, nobody can take over the session of a peer that is alive, and a restarted peer is back within seconds. The
probe is a reflex request, which a 0.23 node answers immediately (mesh.md §8.1); any other packet of the session counts
as well.

All memory here is bounded, and no operation depends on the number of candidates. How a candidate competes with a handshake that this node began is decided in
engine/session/handshake.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from copy import copy

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.packets import Address, Output, host_of, place_of
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health, Peer
from meshbus.engine.settings import CONFIRM_S, CONTEST_S
from meshbus.errors import BadTag, RemoteProtocolError, Replayed, UnknownVersion
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import Buffer, Header
from meshbus.wire.messages.reflex import ReflexRequest, encode_reflex
from meshbus.wire.replaywindow import ReplayWindow
from meshbus.wire.seal import Opener

PROBE_S = 0.25
"""Time between two probes of the current session: eight of them in the default `contest_s`."""
AMPLIFICATION = 3
"""Bytes sent to an address that proved nothing, for each byte received from it. As for QUIC (RFC 9000, 8.1)."""
PROOF_AFTER_S = (0.0, 0.5, 2.0)
"""When a candidate is asked for its proof, in seconds after message 2, as often as `AMPLIFICATION` allows. Our choice: a
0.23 node that has not started yet may read and forget the first packets while it connects to others."""
MAX_PER_NODE = 4
"""Candidates per node. Our choice: more than the three tries of one handshake."""
MAX_PER_HOST = 256
"""Candidates begun from one host, whatever its ports. Our choice: one host cannot crowd out the others."""
MAX_CANDIDATES = 1024
"""Candidates of all nodes. Our choice, against memory exhaustion."""
MAX_HELD = 64
"""Packets kept for one candidate. Our choice: as many as one full train has (session/link.py)."""
MAX_HELD_BYTES = 4 << 20
"""Bytes kept for all candidates. Our choice: eight candidates with 64 packets of the largest size."""


BOUNDS = (
    Bound(
        name="candidates",
        what="sessions that others began and have not proved",
        by=By.OUTSIDER,
        per_node=MAX_CANDIDATES,
        per={"host": MAX_PER_HOST, "node id": MAX_PER_NODE},
        full="the oldest that is not proved goes, first of the same node, then of the same host",
        cost="the number of proved ones",
        counter=Reason.HANDSHAKE_CROWDED,
    ),
    Bound(
        name="held_packets",
        what="bytes of packets that wait until their session takes over",
        by=By.MEMBER,
        per_node=MAX_HELD_BYTES,
        per={"session, in packets": MAX_HELD},
        unit="bytes",
        full="the new packet is dropped",
        counter=Reason.CONTESTED_SESSION,
    ),
)


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
        "allowance",
        "asked",
        "begun_at",
        "due",
        "expires_at",
        "held",
        "host",
        "link",
        "node_id",
        "refused",
    )

    def __init__(self, node_id: int, link: Link, now: float, confirm_s: float) -> None:
        self.node_id = node_id
        self.link = link
        self.host = host_of(link.address)
        self.begun_at = now
        self.expires_at = now + confirm_s
        self.due = self.expires_at
        """When `tick` has to examine it again."""
        self.held: list[tuple[Address, bytes]] = []
        """Verified packets with their sources, in the order of arrival; received again if the session takes over."""
        self.allowance = 0
        """Bytes that may still be sent before it is proved."""
        self.asked = 0
        """How often it was asked for its proof."""
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

    def ask(self, now: float, out: Output) -> None:
        """Send a packet that a 0.23 node answers immediately, if it is time and the allowance permits it."""
        self.due = self.expires_at
        if self.asked == len(PROOF_AFTER_S):
            return
        if now >= self.begun_at + PROOF_AFTER_S[self.asked]:
            header = Header(subprotocol_id=Subprotocol.REFLEX, stream_id=Subprotocol.REFLEX, event_count=1)
            train = self.link.seal(header, pack_frames([encode_reflex(ReflexRequest())]))
            if len(train.data) > self.allowance:
                return
            self.allowance -= len(train.data)
            self.asked += 1
            self.link.probes += 1
            out.trains.append(train)
        if self.asked < len(PROOF_AFTER_S):
            self.due = min(self.begun_at + PROOF_AFTER_S[self.asked], self.expires_at)

    def contested(self, peer: Peer, now: float, contest_s: float, out: Output) -> bool:
        """Return whether the peer's current session stays for now; probe it if a probe is due."""
        rival = peer.link
        if not rival.proved or peer.health is Health.FAILED:
            return False
        # The peer after a restart: only a node that receives at the current address could read our message 2.
        if not rival.route and straight_from(self.link, rival.address):
            return False
        # The replay window advances with every packet that verifies: if it moved, the current session is alive.
        seen = rival.seen
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
        # Not dicts: the oldest must be found without a search (base/boundedmap.py).
        self._by_session: OrderedDict[int, Candidate] = OrderedDict()
        self._by_host: dict[Address, OrderedDict[int, Candidate]] = {}
        self._by_node: dict[int, list[Candidate]] = {}
        self._due: Deadlines[int] = Deadlines()
        """By session id."""
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._by_session)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._by_session

    def add(self, node_id: int, link: Link, now: float) -> Candidate:
        """Add and return a candidate; if there are too many, the oldest that is not proved goes, or else the oldest."""
        added = Candidate(node_id, link, now, self._confirm_s)
        # The narrowest limit first: a flood in the name of one node or from one host must not crowd out others.
        own, near = self._by_node.get(node_id), self._by_host.get(added.host)
        if own is not None and len(own) >= MAX_PER_NODE:
            self._crowd_out(own)
        elif near is not None and len(near) >= MAX_PER_HOST:
            self._crowd_out(near.values())
        elif len(self._by_session) >= MAX_CANDIDATES:
            self._crowd_out(self._by_session.values())
        self._by_session[link.session_id] = added
        self._by_host.setdefault(added.host, OrderedDict())[link.session_id] = added
        self._by_node.setdefault(node_id, []).append(added)
        self._due.set(link.session_id, added.due)
        return added

    def of(self, node_id: int) -> list[Candidate]:
        """Return the candidates of a node, oldest first."""
        return list(self._by_node.get(node_id, ()))

    def begun_since(self, time: float) -> list[int]:
        """Return the nodes whose sessions were begun since a time."""
        return [one.node_id for one in self._by_session.values() if one.begun_at >= time]

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

    def ask(self, candidate: Candidate, now: float, out: Output) -> None:
        """Ask a candidate for its proof, if that is due and permitted."""
        candidate.ask(now, out)
        self._due.set(candidate.link.session_id, candidate.due)

    def wait(self, candidate: Candidate, until: float) -> None:
        """Examine a candidate again at a time."""
        candidate.due = min(until, candidate.expires_at)
        self._due.set(candidate.link.session_id, candidate.due)

    def contested(self, candidate: Candidate, peer: Peer, now: float, out: Output) -> bool:
        """Return whether the peer's current session stays for now, and count a refusal once."""
        before = candidate.refused
        contested = candidate.contested(peer, now, self._contest_s, out)
        self._due.set(candidate.link.session_id, candidate.due)
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
        return self._due.next()

    def expire(self, now: float) -> list[Candidate]:
        """Remove the candidates that expired, and return the others that are due."""
        waiting = []
        for candidate in [self._by_session[session_id] for session_id in self._due.over(now)]:
            # Due, but not expired: it waits for its proof, or for the current session to react.
            if now < candidate.expires_at:
                self.wait(candidate, now + PROBE_S)
                waiting.append(candidate)
                continue
            self._remove(candidate)
            if not candidate.refused:
                self._counters.count(Reason.HANDSHAKE_UNCONFIRMED)
        return waiting

    def _crowd_out(self, candidates: Collection[Candidate]) -> None:
        # A proved candidate is worth more: its sender has shown that it has the keys.
        goes = next((candidate for candidate in candidates if not candidate.proved), None)
        self._remove(next(iter(candidates)) if goes is None else goes)
        self._counters.count(Reason.HANDSHAKE_CROWDED)

    def _remove(self, candidate: Candidate) -> None:
        session_id = candidate.link.session_id
        del self._by_session[session_id]
        self._due.drop(session_id)
        near, own = self._by_host[candidate.host], self._by_node[candidate.node_id]
        del near[session_id]
        own.remove(candidate)
        if not near:
            del self._by_host[candidate.host]
        if not own:
            del self._by_node[candidate.node_id]
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
