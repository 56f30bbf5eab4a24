"""The streams with all peers: their timers, their confirmations after each batch, and messages on reliable streams.

The streams of one peer are in engine/streams/traffic.py. Received events go through engine/streams/delivery.py.
"""

from __future__ import annotations

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move, move_due
from meshbus.engine.session.dialect import RANGES_TAG, Level
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.ordering import Released
from meshbus.engine.streams.partslice import PartSlice
from meshbus.engine.streams.traffic import Traffic
from meshbus.errors import LocalProtocolError
from meshbus.wire.constants import MAX_EVENT, ROUTED_PAYLOAD, STREAM_WINDOW, Subprotocol
from meshbus.wire.messages.large import PART_HEAD
from meshbus.wire.messages.revocation import Revocation, Revoked


class Streams(Service):
    """The traffic with every peer; handles credit grants (0x0B00, transport.md §14)."""

    def __init__(self, context: Context) -> None:
        self._counters = context.counters
        self._entropy = context.entropy
        self._settings = context.settings
        self._served_large = frozenset(row.id for row in context.services.table if row.large)
        """Subprotocols whose messages may be larger than a packet."""
        self.body_bytes = min(context.settings.max_payload, ROUTED_PAYLOAD) - PART_HEAD
        """Bytes of a large event in one part: so many that a relay can carry it, too."""
        self._traffic: dict[int, Traffic] = {}
        self._touched: dict[int, Traffic] = {}
        """Traffic that was used since the last refresh: its timers may have changed."""
        self._due: Deadlines[int] = Deadlines()
        self._slice = PartSlice()
        self.released: list[tuple[Peer, Released]] = []
        """What ordered streams released; delivery takes it (engine/streams/delivery.py)."""

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle a credit grant."""
        self.traffic_of(peer).on_grant(message, now, out)

    def traffic_of(self, peer: Peer) -> Traffic:
        """Return the traffic with a peer, to use it at once; create it on first use."""
        traffic = self._traffic.get(peer.node_id)
        if traffic is None:
            traffic = self._traffic[peer.node_id] = Traffic(
                peer, self._slice, counters=self._counters, entropy=self._entropy, loopback=self._settings.loopback
            )
            traffic.released = self.released
        # Any use may change its timers, so they are read again before the next tick.
        self._touched[peer.node_id] = traffic
        return traffic

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Continue the streams of a known peer in its new session."""
        known = peer.node_id in self._traffic
        traffic = self.traffic_of(peer)
        if known:
            traffic.renew(now, out)

    def vouched(self, peer: Peer, now: float, out: Output) -> None:
        """Learn from a peer's announcement that it is not of level A (dialects.md §3.1)."""
        if RANGES_TAG in peer.claims.capabilities.tags:
            peer.dialect.learn(Level.B)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Apply the negotiated set: reliable streams have a larger window than plain ones."""
        peer.widen(self._settings.window if peer.uses(Subprotocol.RELIABLE) else STREAM_WINDOW)
        self.traffic_of(peer).agreement_changed(now, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Continue the streams of a peer that goes on under another id."""
        move(self._traffic, old, new)
        move(self._touched, old, new)
        move_due(self._due, old, new)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End the traffic with a peer that was removed; one that failed may recover."""
        if not isinstance(down, PeerGone):
            return
        node_id = down.node_id
        self._touched.pop(node_id, None)
        self._due.drop(node_id)
        self.released[:] = [one for one in self.released if one[0].node_id != node_id]
        traffic = self._traffic.pop(node_id, None)
        if traffic is not None:
            traffic.close()

    def revoked(self, record: Revocation, now: float, out: Output) -> None:
        """Drop what waits for a subscriber that may not have it any more."""
        traffic = self._traffic.get(record.node_id)
        if record.what is Revoked.SUBSCRIBE and traffic is not None:
            traffic.withdraw_publications()
            self._touched[record.node_id] = traffic

    def send_reliable(self, peer: Peer, subprotocol_id: int, message: bytes, now: float, out: Output, /) -> None:
        """Send one message on the reliable stream of its subprotocol; one that does not fit a packet has its own stream.

        Raises Backpressure if too much waits, and LocalProtocolError if the message is too large for the subprotocol or
        for the peer.
        """
        traffic = self.traffic_of(peer)
        if len(message) <= MAX_EVENT or subprotocol_id not in self._served_large:
            traffic.send_reliable(subprotocol_id, message, now, out)
        elif peer.uses(Subprotocol.LARGE):
            traffic.send_large(subprotocol_id, message, self.body_bytes, now, out)
        else:
            raise LocalProtocolError(
                f"a message of {len(message)} bytes does not fit one packet of {MAX_EVENT}, and peer {peer.node_id:016x} did"
                " not agree on large events (0x4d0a); send a smaller one, or use meshbus there"
            )

    def hold(self, node_id: int, stream_id: int, now: float, *, held: bool) -> None:
        """Stop confirming a stream while the application cannot take more, or continue.

        What has to be sent because of it is due at once, with the next `tick`.
        """
        traffic = self._traffic.get(node_id)
        if traffic is not None:
            self._touched[node_id] = traffic
            traffic.hold(stream_id, now, held=held)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def received(self, now: float, out: Output) -> None:
        """Send the acknowledgements and grants that a batch of packets made due."""
        for traffic in list(self._touched.values()):
            traffic.confirm(now, out)

    def next_timer(self) -> float | None:
        """Return the earliest deadline of all streams, or None."""
        self._refresh()
        return self._due.next()

    def tick(self, now: float, out: Output) -> None:
        """Do what is due on the streams of all peers."""
        self._refresh()
        for node_id in self._due.over(now):
            traffic = self._touched[node_id] = self._traffic[node_id]
            traffic.tick(now, out)

    def _refresh(self) -> None:
        # Only traffic that was used can have other timers: the cost does not grow with the number of peers.
        for node_id, traffic in self._touched.items():
            timer = traffic.next_timer()
            if timer is None:
                self._due.drop(node_id)
            else:
                self._due.set(node_id, timer)
        self._touched.clear()
