"""Presence (0x4D08): the offset between a peer's clock and ours, publishers' times, and goodbyes in place of silence.

A probe is sent to every meshbus peer when both have agreed on presence, a few more within seconds, and then one a
minute. Its echo gives one sample, as in NTP: the peer's clock compared with the middle of the round trip, wrong by at
most half of it. Of the last few samples, the one with the shortest round trip counts, because it is the most exact.

    offset = clock of the peer − (sent + received) / 2        error ≤ (received − sent) / 2

Between peers that agreed on presence, packets carry the time when their events were published (wire/stamp.py). A
goodbye removes the peer at once, for every service, where silence would take `session_timeout_s`. It arrives inside
the session, so only the peer itself can send it. A 0.23 peer is never sent any of this.
"""

from __future__ import annotations

from collections import deque

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move, move_due
from meshbus.engine.session.peer import Peer, PeerClock
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.presence import Echo, Goodbye, PresenceMessage, Probe, decode_presence, encode_presence

SAMPLES = 4
"""Samples of a peer's clock that count: four minutes. Clocks of 50 ppm drift by 12 ms in that time."""
FIRST_PROBES_S = 1.0
"""Between the first probes, until there are SAMPLES of them: one alone may have met a slow moment."""
PROBE_S = 60.0
"""Between later ones: two small packets a minute keep an idle session as quiet as heartbeats do."""


class _ClockSamples:
    """The clock of one peer."""

    __slots__ = ("asked_ns", "samples")

    def __init__(self) -> None:
        self.asked_ns: int | None = None
        """What the last probe said, until its echo came."""
        self.samples: deque[PeerClock] = deque(maxlen=SAMPLES)


class Presence(Service):
    """Clock samples and goodbyes."""

    def __init__(self, context: Context) -> None:
        self._peers = context.peers
        self._services = context.services
        self._counters = context.counters
        self._wall = context.wall
        self._clocks: dict[int, _ClockSamples] = {}
        self._due: Deadlines[int] = Deadlines()

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Answer a probe, use an echo, or remove a peer that said goodbye."""
        try:
            decoded = decode_presence(message)
        except RemoteProtocolError:
            self._counters.count(Reason.PRESENCE_MALFORMED)
            return
        match decoded:
            case Probe(sent_ns=sent_ns):
                _send(peer, Echo(sent_ns, self._wall(now)), out)
            case Echo():
                self._on_echo(peer, decoded, now)
            case Goodbye():
                # Before the services are notified, so that none of them still finds the peer.
                self._peers.remove(peer.node_id)
                down = PeerGone(peer.node_id, DownReason.LEFT)
                out.control.append(down)
                self._services.peer_down(down, now, out)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Start to sample the clock of a peer that negotiated presence."""
        self._forget(peer.node_id)
        peer.link.stamped = peer.uses(Subprotocol.PRESENCE)
        if peer.link.stamped:
            self._clocks[peer.node_id] = _ClockSamples()
            self._probe(peer, now, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Continue to measure the clock of a peer that has another id."""
        move(self._clocks, old, new)
        move_due(self._due, old, new)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Stop with a peer that is gone; one that failed is probed on, and its answers are samples again."""
        if isinstance(down, PeerGone):
            self._forget(down.node_id)

    def next_timer(self) -> float | None:
        """Return when the next probe is due."""
        return self._due.next()

    def tick(self, now: float, out: Output) -> None:
        """Send the probes that are due."""
        for node_id in self._due.over(now):
            peer = self._peers.get(node_id)
            if peer is not None:
                self._probe(peer, now, out)

    def part_from(self, node_id: int, why: DownReason, now: float, out: Output) -> None:
        """Remove a peer, and tell it if it is a meshbus node."""
        # transport.md §16: there is no close message on the 0.23 wire.
        peer = self._peers.remove(node_id)
        if peer is not None:
            self.say_goodbye(peer, out)
            down = PeerGone(node_id, why)
            out.control.append(down)
            self._services.peer_down(down, now, out)

    def say_goodbye(self, peer: Peer, out: Output) -> None:
        """Send a Goodbye: the session ends now."""
        if peer.uses(Subprotocol.PRESENCE):
            _send(peer, Goodbye(), out)

    def closing(self, now: float, out: Output) -> None:
        """Send a Goodbye to all peers."""
        for peer in self._peers:
            self.say_goodbye(peer, out)

    def _probe(self, peer: Peer, now: float, out: Output) -> None:
        clock = self._clocks[peer.node_id]
        clock.asked_ns = self._wall(now)
        _send(peer, Probe(clock.asked_ns), out)
        # The sample of this probe is still to come.
        few = len(clock.samples) < SAMPLES - 1
        self._due.set(peer.node_id, now + (FIRST_PROBES_S if few else PROBE_S))

    def _on_echo(self, peer: Peer, echo: Echo, now: float) -> None:
        clock, received_ns = self._clocks.get(peer.node_id), self._wall(now)
        # Only the echo of the last probe counts, so a peer cannot choose how long ago it was sent. A clock that was
        # set back meanwhile makes the round trip negative.
        if clock is None or clock.asked_ns != echo.sent_ns or received_ns < echo.sent_ns:
            self._counters.count(Reason.PRESENCE_UNEXPECTED_ECHO)
            return
        clock.asked_ns = None
        # Half the round trip, rounded up: the bound must hold.
        error_ns = (received_ns - echo.sent_ns + 1) // 2
        clock.samples.append(PeerClock(echo.clock_ns - (echo.sent_ns + error_ns), error_ns))
        peer.clock = min(clock.samples, key=lambda sample: sample.error_ns)

    def _forget(self, node_id: int) -> None:
        self._clocks.pop(node_id, None)
        self._due.drop(node_id)
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.clock = None


def _send(peer: Peer, message: PresenceMessage, out: Output) -> None:
    peer.send_message(Subprotocol.PRESENCE, encode_presence(message), out)
