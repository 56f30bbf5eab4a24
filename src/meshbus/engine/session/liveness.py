"""Liveness: heartbeats to every peer, and what their silence means.

Every `heartbeat_s` each peer gets a heartbeat and, behind it, a pingwave, by which nodes further away learn the way
to us. On the same tick each peer is judged by the time since *its* last verified heartbeat, as the 0.23 wire does it:

    silent for 2 × session_timeout_s     suspected: nothing follows
    silent for 3 × session_timeout_s     failed: PeerFailed; the session stays usable
    the next heartbeat                   PeerRecovered
    failed, and no authenticated packet for 30 × session_timeout_s     removed: PeerGone

Data is no sign of life, because a 0.23 peer judges us the same way; packets that were not verified are none at all. A
peer that failed without ever having proved its session is removed at once.

A new session starts with a heartbeat out of turn, which proves to the other side that we have the keys, and which is
repeated a few times until something comes back. Behind a relay a heartbeat is dropped by its receiver; a packet without
content takes its place, and any packet from there counts. A 0.23 node cannot send through a relay at all, so a relayed
peer that was never heard is not judged, only removed when its session is idle.

Sending is all this file does with a pingwave; hearing them is engine/routes/pingwaves.py.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone, PeerRecovered
from meshbus.engine.base.packets import Output
from meshbus.engine.session.candidate import confirmed
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health, Peer, PeerTable
from meshbus.engine.settings import LivenessConfig
from meshbus.wire.constants import CONTROL_STREAM, Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.pingwave import Pingwave, pack_pingwave

MISSES_SUSPECTED = 2
MISSES_FAILED = 3
MISSES_EVICTED = 30
REPEATS_S = (0.25, 0.5, 1.0)
"""Pauses between the heartbeats that open a session, until the peer is heard on it."""


class Liveness:
    """Heartbeats and the failure detector of one node."""

    def __init__(
        self,
        node_id: int,
        *,
        peers: PeerTable,
        wall: Callable[[float], int],
        now: float,
        config: LivenessConfig = LivenessConfig(),  # noqa: B008  frozen
    ) -> None:
        """Start the heartbeat: the first one is due an interval after `now`."""
        self._node_id = node_id
        self._peers = peers
        self._wall = wall
        self._config = config
        self._beat_at = now + config.heartbeat_s
        self._opening: dict[int, _Opening] = {}
        self._seq = 0

    def session_up(self, peer: Peer, now: float, out: Output) -> None:
        """Open a new session of a peer: prove that we have its keys."""
        self._beat(peer.link, out)
        if peer.link.home is not None:
            out.send(peer.link.home, self.pingwave(now))
        self._opening[peer.node_id] = _Opening(peer.link, now)

    def heard(self, peer: Peer, now: float, out: Output, *, heartbeat: bool) -> bool:
        """Note verified packets of a peer, once for a batch; says whether the peer has just recovered."""
        peer.link.used_at = now
        if not (heartbeat or peer.link.route):
            return False
        peer.heard_at = now
        recovered = peer.health is Health.FAILED
        peer.health = Health.ALIVE
        if recovered:
            out.control.append(PeerRecovered(peer.node_id))
        return recovered

    def next_timer(self) -> float:
        """Say when `tick` is due."""
        return min([self._beat_at, *(opening.due for opening in self._opening.values())])

    def tick(self, now: float, out: Output) -> list[PeerFailed | PeerGone]:
        """Send what is due and judge the peers; gives the verdicts that it put into the output."""
        self._repeat_openings(now, out)
        if now < self._beat_at:
            return []
        interval = self._config.heartbeat_s
        self._beat_at += interval * ((now - self._beat_at) // interval + 1)
        verdicts = [verdict for peer in self._peers for verdict in self._judge(peer, now)]
        out.control += verdicts
        wave = self.pingwave(now) if len(self._peers) else b""
        for peer in self._peers:
            self._beat(peer.link, out)
            if peer.link.home is not None:
                out.send(peer.link.home, wave)
        return verdicts

    def pingwave(self, now: float) -> bytes:
        """Build our next pingwave.

        Its sequence goes up and follows the wall clock: 0.23 nodes never forget the sequences of an id, so a restarted
        node must not count from 1 again.
        """
        timestamp_us = self._wall(now) // 1000
        self._seq = max(self._seq + 1, timestamp_us)
        ttl = self._config.radius - 1
        return pack_pingwave(Pingwave(node_id=self._node_id, seq=self._seq, ttl=ttl, timestamp_us=timestamp_us))

    def _judge(self, peer: Peer, now: float) -> list[PeerFailed | PeerGone]:
        timeout = self._config.session_timeout_s
        idle = now - peer.link.used_at >= MISSES_EVICTED * timeout
        proved = confirmed(peer.link)
        if peer.link.route and not peer.link.opener.window.next:
            return self._remove(peer) if idle else []
        verdicts: list[PeerFailed | PeerGone] = []
        missed = (now - peer.heard_at) // timeout
        if missed >= MISSES_FAILED:
            if peer.health is not Health.FAILED:
                peer.health = Health.FAILED
                verdicts.append(PeerFailed(peer.node_id, DownReason.SILENT))
            if idle or not proved:
                verdicts += self._remove(peer)
        elif missed >= MISSES_SUSPECTED:
            peer.health = Health.SUSPECTED
        return verdicts

    def _remove(self, peer: Peer) -> list[PeerFailed | PeerGone]:
        self._peers.remove(peer.node_id)
        self._opening.pop(peer.node_id, None)
        return [PeerGone(peer.node_id, DownReason.EVICTED)]

    def _repeat_openings(self, now: float, out: Output) -> None:
        for node_id, opening in list(self._opening.items()):
            if now < opening.due:
                continue
            peer = self._peers.get(node_id)
            current = peer is not None and peer.link is opening.link
            if current and not opening.link.opener.window.next:
                self._beat(opening.link, out)
                if opening.repeat(now):
                    continue
            del self._opening[node_id]

    def _beat(self, link: Link, out: Output) -> None:
        if link.route:
            # No handled subprotocol, and no plain events: nothing to deliver, to grant or to answer.
            out.trains.append(
                link.seal(Header(subprotocol_id=Subprotocol.STREAM_WINDOW, stream_id=CONTROL_STREAM), b"")
            )
        if link.home is not None:
            # Also while packets take a detour: it ends when the straight way is heard to work again.
            out.send(link.home, link.sealer.heartbeat())


class _Opening:
    """The first heartbeats of a session."""

    __slots__ = ("_left", "due", "link")

    def __init__(self, link: Link, now: float) -> None:
        self.link = link
        self._left = list(REPEATS_S)
        self.due = now
        self.repeat(now)

    def repeat(self, now: float) -> bool:
        """Plan the next one; False when there is none."""
        if not self._left:
            return False
        self.due = now + self._left.pop(0)
        return True
