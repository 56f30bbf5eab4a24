"""Liveness: sends heartbeats to every peer, and detects peers that went silent (transport.md §16).

Every `heartbeat_s` each peer gets a heartbeat, followed by a pingwave, from which nodes further away learn a route to
this node. On the same tick each peer is judged by the time since its last verified heartbeat:

    silent for session_timeout_s / 2     suspected: nobody waits for its answers any more
    silent for session_timeout_s         failed: PeerFailed; the session stays usable
    the next heartbeat                   PeerRecovered
    failed, and no authenticated packet for 30 × session_timeout_s     removed: PeerGone; at once if there are many peers

A 0.23 node multiplies its own timeout by three before it fails a peer. With the default timeout of 30 s and the usual
heartbeat of 5 s, a peer is suspected after three missed heartbeats and fails after six.

Time in which this node itself did not run, because its process was stopped or busy, does not count as silence of others.

Data packets are no sign of life, because a 0.23 peer judges this node in the same way. Packets that were not verified
never count; a 0.23 node lets them keep a session alive (transport.md §17). A peer that failed and never proved its
session is removed at once.

A new session starts with an extra heartbeat, which proves to the other side that this node has the keys. It is repeated
a few times until something comes back. A node drops a heartbeat that came through a relay (transport.md §7), so an
empty packet takes its place there, and any packet from such a peer counts. A 0.23 node cannot send through a relay at
all (mesh.md §2.2), so a relayed peer that was never heard is not judged, but removed when its session is idle.

This file only sends pingwaves; engine/routes/pingwaves.py receives them.
"""

from __future__ import annotations

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone, PeerRecovered
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move, move_due
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health, Peer
from meshbus.engine.session.presence import Presence
from meshbus.engine.session.service import Context, Service
from meshbus.wire.constants import CONTROL_STREAM, Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.pingwave import Pingwave, pack_pingwave

SUSPECTED_AFTER = 0.5
"""Silence after which a peer is suspected, in session timeouts. Our choice: three heartbeats with the defaults."""
EVICTED_AFTER = 30
"""Idle time after which a failed peer is removed, in session timeouts. As on the 0.23 wire (transport.md §16): a node that
removed a peer earlier could not use the session any more that a 0.23 peer still has after a long outage."""
REPEATS_S = (0.25, 0.5, 1.0)
"""Pauses between the heartbeats that open a session, until the peer is heard on it. Our choice."""


class Liveness(Service):
    """Heartbeats and the failure detector of one node."""

    def __init__(self, context: Context) -> None:
        """Schedule the first heartbeat one interval after the start, as 0.23 nodes do."""
        self._identity = context.identity
        self._peers = context.peers
        self._services = context.services
        self._wall = context.wall
        self._config = context.settings.liveness
        self._beat_at = context.started_at + self._config.heartbeat_s
        self._opening: dict[int, _OpeningHeartbeats] = {}
        self._opening_due: Deadlines[int] = Deadlines()
        """By node id. Many may open sessions at once, and the timer is asked for after every batch."""
        self._seq = 0

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Send the first heartbeat of a new session, to prove that this node has the keys."""
        self._beat(peer.link, out)
        if peer.link.home is not None:
            out.send(peer.link.home, self.pingwave(now))
        opening = self._opening[peer.node_id] = _OpeningHeartbeats(peer.link, now)
        self._opening_due.set(peer.node_id, opening.due)

    def heard(self, peer: Peer, now: float, out: Output, *, heartbeat: bool) -> bool:
        """Record verified packets of a peer, once per batch, and return whether the peer has just recovered."""
        peer.link.used_at = now
        # Heartbeats cannot pass a relay, so any packet of a relayed peer counts as one.
        if not (heartbeat or peer.link.route):
            return False
        peer.heard_at = now
        recovered = peer.health is Health.FAILED
        peer.health = Health.ALIVE
        if recovered:
            out.control.append(PeerRecovered(peer.node_id))
        return recovered

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Expect the heartbeats of a peer under its new id."""
        move(self._opening, old, new)
        move_due(self._opening_due, old, new)

    def became(self, old: int, now: float, out: Output) -> None:
        """Send pingwaves, by which neighbors know the way to this node under its new id."""
        wave = self.pingwave(now)
        for peer in self._peers:
            if peer.link.home is not None:
                out.send(peer.link.home, wave)

    def next_timer(self) -> float:
        """Return when the next heartbeat is due."""
        opening = self._opening_due.next()
        return self._beat_at if opening is None else min(self._beat_at, opening)

    def tick(self, now: float, out: Output) -> None:
        """Send the heartbeats that are due, judge all peers, and report those that failed or are gone."""
        self._repeat_openings(now, out)
        if now < self._beat_at:
            return
        interval = self._config.heartbeat_s
        self._excuse(now)
        # Stay on the grid of intervals, and skip the ones that were missed while the process was stopped.
        self._beat_at += interval * ((now - self._beat_at) // interval + 1)
        verdicts = [verdict for peer in self._peers for verdict in self._judge(peer, now, out)]
        out.control += verdicts
        wave = self.pingwave(now) if len(self._peers) else b""
        for peer in self._peers:
            self._beat(peer.link, out)
            if peer.link.home is not None:
                out.send(peer.link.home, wave)
        for verdict in verdicts:
            self._services.peer_down(verdict, now, out)

    def pingwave(self, now: float) -> bytes:
        """Build the next pingwave of this node.

        Its sequence increases and follows the wall clock: 0.23 nodes never forget the sequences of a node id, so a
        restarted node must not count from 1 again (mesh.md §4).
        """
        timestamp_us = self._wall(now) // 1000
        self._seq = max(self._seq + 1, timestamp_us)
        ttl = self._config.radius - 1
        return pack_pingwave(
            Pingwave(node_id=self._identity.node_id, seq=self._seq, ttl=ttl, timestamp_us=timestamp_us)
        )

    def _excuse(self, now: float) -> None:
        """Do not count the time in which this node itself did not run: what peers sent meanwhile is not read yet."""
        late_s = now - self._beat_at
        if late_s >= self._config.heartbeat_s:
            for peer in self._peers:
                peer.heard_at = min(peer.heard_at + late_s, now)

    def _judge(self, peer: Peer, now: float, out: Output) -> list[PeerFailed | PeerGone]:
        if peer.link.overrun:
            # Only a new session can go on. Whoever began this one begins the next, and is told that it has ended.
            self._services[Presence].say_goodbye(peer, out)
            return self._remove(peer, DownReason.OVERRUN)
        timeout = self._config.session_timeout_s
        idle = now - peer.link.used_at >= EVICTED_AFTER * timeout
        proved = peer.link.proved
        # A relayed peer that was never heard may be a 0.23 node, which cannot answer from there.
        if peer.link.route and not peer.link.seen:
            return self._remove(peer, DownReason.EVICTED) if idle else []
        verdicts: list[PeerFailed | PeerGone] = []
        silent_s = now - peer.heard_at
        if silent_s >= timeout:
            if peer.health is not Health.FAILED:
                peer.health = Health.FAILED
                verdicts.append(PeerFailed(peer.node_id, DownReason.SILENT))
            if idle or not proved or self._peers.is_crowded(peer):
                verdicts += self._remove(peer, DownReason.EVICTED)
        elif silent_s >= SUSPECTED_AFTER * timeout:
            peer.health = Health.SUSPECTED
        return verdicts

    def _remove(self, peer: Peer, reason: DownReason) -> list[PeerFailed | PeerGone]:
        self._peers.remove(peer.node_id)
        self._opening.pop(peer.node_id, None)
        self._opening_due.drop(peer.node_id)
        return [PeerGone(peer.node_id, reason)]

    def _repeat_openings(self, now: float, out: Output) -> None:
        for node_id in self._opening_due.over(now):
            opening = self._opening[node_id]
            peer = self._peers.get(node_id)
            current = peer is not None and peer.link is opening.link
            if current and not opening.link.seen:
                self._beat(opening.link, out)
                if opening.repeat(now):
                    self._opening_due.set(node_id, opening.due)
                    continue
            del self._opening[node_id]

    def _beat(self, link: Link, out: Output) -> None:
        if link.route:
            # An empty packet of the grant subprotocol: the receiver has nothing to deliver, to grant or to answer.
            out.trains.append(
                link.seal(Header(subprotocol_id=Subprotocol.STREAM_WINDOW, stream_id=CONTROL_STREAM), b"")
            )
        if link.home is not None:
            # Also while packets take a detour: the peer's heartbeats from there show that the direct path works again.
            out.send(link.home, link.sealer.heartbeat())


class _OpeningHeartbeats:
    """The repeated heartbeats that open a session."""

    __slots__ = ("_left", "due", "link")

    def __init__(self, link: Link, now: float) -> None:
        self.link = link
        self._left = list(REPEATS_S)
        self.due = now
        self.repeat(now)

    def repeat(self, now: float) -> bool:
        """Schedule the next repetition, and return False if there is none left."""
        if not self._left:
            return False
        self.due = now + self._left.pop(0)
        return True
