"""Streams: packet sequences and byte credit, in both directions.

The credit rule is that of the 0.23 wire (transport.md §14). A sender may have `window` wire bytes on the way. The
receiver sends grants with the running total of what it consumed (wire/messages/window.py); totals never decrease. Wire
bytes are the plaintext plus 84 for each packet.

Streams belong to the peer; in a new session they count from 0 again. In-order, exactly-once delivery is in
engine/streams/retransmit.py and engine/streams/reorder.py.
"""

from __future__ import annotations

from meshbus.wire.constants import MAX_REPLAY_JUMP, PACKET_COST, STREAM_WINDOW

GRANT_SHARE = 4
"""A grant is due at once when this fraction of the window (one in four) was consumed since the last grant.

Our choice: transport.md §14 allows several packets to share a grant, and a quarter keeps the sender from stalling."""
GRANT_DELAY_S = 0.005
"""Otherwise a grant is due this long after the first packet that is not granted yet; the delay of an ACK, too."""

PROBE_S = 0.1
"""How long a plain stream waits for a grant before it sends an empty packet without credit (dialects.md §3.2, rule 7)."""
MAX_PROBE_S = 600.0
"""The longest wait between probes: each unanswered one doubles it, because a blocked subscriber answers none."""

MAX_JUMP = MAX_REPLAY_JUMP
"""A jump of the sequence beyond this is a new count, not a loss: no session loses so many packets in a row and lives."""


class TxStream:
    """The sending side of one stream."""

    __slots__ = (
        "_forgiven",
        "_probe_s",
        "_probed",
        "best_seen",
        "credit",
        "next_sequence",
        "sent",
        "stalled_at",
        "stream_id",
        "window",
    )

    def __init__(self, stream_id: int, window: int = STREAM_WINDOW) -> None:
        self.stream_id = stream_id
        self.window = window
        """Wire bytes that may be on the way; 0 means unlimited."""
        self.credit = window
        self.next_sequence = 0
        self.sent = 0
        """Wire bytes sent in this session."""
        self.best_seen = 0
        """The highest total that the receiver granted."""
        self.stalled_at: float | None = None
        """Since when packets have to wait for credit, or when the last probe was sent; None if the last send did not."""
        self._probe_s = PROBE_S
        """How long to wait for a grant before the next probe."""
        self._probed: int | None = None
        """`sent` after the probe whose grant is awaited."""
        self._forgiven = 0
        """Wire bytes that were lost on the way, so that no grant will cover them."""

    def admits(self, cost: int) -> bool:
        """Return whether there is credit for `cost` wire bytes."""
        return self.window == 0 or self.credit >= cost

    def take(self, packets: int, payload_bytes: int) -> int:
        """Spend sequences and credit on packets that are being sent, and return the first sequence."""
        cost = payload_bytes + PACKET_COST * packets
        # transport.md §14: a packet costs its plaintext plus 84, on both sides.
        self.credit -= cost
        self.sent += cost
        first = self.next_sequence
        self.next_sequence += packets
        return first

    def take_one(self, payload_bytes: int) -> int | None:  # hot: bench_publish
        """Do the same for one packet if there is credit for it; return its sequence, or None without credit."""
        cost = payload_bytes + PACKET_COST
        if self.credit < cost and self.window:
            return None
        self.credit -= cost
        self.sent += cost
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        return sequence

    def grant(self, total_consumed: int) -> bool:
        """Apply a grant, and return whether it gave new credit."""
        # transport.md §14: a total above what was sent counts as what was sent, and one that is not new is ignored.
        if self._probed is not None and total_consumed + self._forgiven > self.best_seen:
            # The probe was consumed, so what was sent before it and is not in the total will never be.
            self._forgiven = max(self._forgiven, self._probed - total_consumed)
            self._probed = None
        total = min(total_consumed + self._forgiven, self.sent)
        if total <= self.best_seen:
            return False
        # transport.md §14: never above the window, however often a total is reported.
        self.credit = min(self.window, self.credit + total - self.best_seen)
        self.best_seen = total
        self._probe_s = PROBE_S
        return True

    def may_probe(self, now: float) -> bool:
        """Return whether an empty packet may be sent without credit, because nothing was granted for `PROBE_S`.

        Lost packets are never granted. Without probes, a plain stream would stop for good when as much as its window
        was lost.
        """
        return self.probe_at is not None and now >= self.probe_at

    @property
    def probe_at(self) -> float | None:
        """When an empty packet may be sent without credit, or None if nothing waits."""
        return None if self.stalled_at is None else self.stalled_at + self._probe_s

    def probed(self, now: float) -> None:
        """Record that the packet which was sent last is a probe: a grant for it shows what was lost before it."""
        self.stalled_at, self._probed = now, self.sent
        self._probe_s = min(2 * self._probe_s, MAX_PROBE_S)

    def settle(self, wire_bytes: int) -> None:
        """Restore the credit of packets that were acknowledged; reliable streams have no grants."""
        # docs/decisions/0006: acknowledgements return the credit of reliable streams.
        self.grant(self.best_seen + wire_bytes)

    def restart(self) -> None:
        """Reset credit and sequences for a new session."""
        # dialects.md §3.2: from 0.27 on, net-mesh expects a reliable stream to begin at 0 in every session.
        self.next_sequence = 0
        self.credit, self.sent, self.best_seen = self.window, 0, 0
        self.stalled_at, self._probe_s, self._probed, self._forgiven = None, PROBE_S, None, 0

    def widen(self, window: int) -> None:
        """Change the window without changing how much is on the way."""
        self.credit += window - self.window
        self.window = window


class RxStream:
    """The receiving side of one stream."""

    __slots__ = (
        "_first",
        "_next",
        "_received",
        "acknowledges",
        "consumed",
        "grant_due",
        "granted",
        "held",
        "lost",
        "stream_id",
        "window",
    )

    def __init__(self, stream_id: int, window: int = STREAM_WINDOW) -> None:
        self.stream_id = stream_id
        self.window = window
        self.consumed = 0
        """Wire bytes consumed in this session; grants carry this total."""
        self.granted = 0
        """The total that the last grant carried."""
        self.grant_due: float | None = None
        """When the next grant is due at the latest, or None."""
        self.held = False
        """Whether the application cannot take more now; then nothing is granted."""
        self.lost = 0
        """Packets of this session that are missing, of those sent since the first that arrived."""
        self.acknowledges = False
        """Whether the sender wants its packets acknowledged, although it never repeats them."""
        self._first: int | None = None
        self._next = 0
        """One past the highest sequence that arrived."""
        self._received = 0

    def absorb(self, packets: int, payload_bytes: int) -> None:
        """Count packets that are confirmed by an ACK instead of a grant.

        The total stays right if the stream continues as a plain one.
        """
        self.consumed += payload_bytes + PACKET_COST * packets
        self.granted = self.consumed

    def consume(self, packets: int, payload_bytes: int, now: float) -> None:
        """Count consumed packets, and schedule the grant for them."""
        self.consumed += payload_bytes + PACKET_COST * packets
        # transport.md §14: 0.23 nodes send a grant per packet, but totals are absolute, so one grant may cover many.
        if self.window and (self.consumed - self.granted) * GRANT_SHARE >= self.window:
            self.grant_due = now
        elif self.grant_due is None:
            self.grant_due = now + GRANT_DELAY_S

    def take_one(self, sequence: int, payload_bytes: int, now: float) -> int:  # hot: bench_publish
        """Do both `consume` and `observe` for one packet, and return by how many packets `lost` changed."""
        self.consumed += payload_bytes + PACKET_COST
        if (self.consumed - self.granted) * GRANT_SHARE >= self.window or self.grant_due is None:
            self.consume(0, 0, now)
        if sequence != self._next or self._first is None:
            return self.observe(sequence, sequence, 1)
        self._next = sequence + 1  # the next one, as nearly always
        self._received += 1
        return 0

    def observe(self, lowest: int, highest: int, packets: int) -> int:  # hot: bench_stream
        """Count the sequences of packets that arrived, and return by how many packets `lost` changed.

        A sender numbers the packets of a stream without holes, so what is missing was lost or is late.
        """
        if lowest == self._next and highest - lowest == packets - 1 and self._first is not None:
            self._next = highest + 1  # the next ones, as nearly always
            self._received += packets
            return 0
        # A restarted peer counts from another number; the gap in between is not a loss.
        if self._first is None or highest - self._next > MAX_JUMP:
            self._first, self._next, self._received, self.lost = lowest, lowest, 0, 0
        self._first = min(self._first, lowest)
        self._next = max(self._next, highest + 1)
        self._received += packets
        # Late packets lower the number again, so a reordered batch ends with 0.
        before, self.lost = self.lost, self._next - self._first - self._received
        return self.lost - before

    def forgive(self, missing: int, cost: int) -> None:
        """Count packets that are missing as consumed; a negative number counts some that came late after all.

        No version grants credit for a lost packet, so that a plain stream would lose it for ever (dialects.md §3.2,
        rule 7). `cost` is that of the packets around the gap.
        """
        self.consumed += min(missing * cost, self.window)

    @property
    def acknowledged(self) -> int:
        """What a grant of 24 bytes acknowledges: one past the highest sequence, as nobody waits for gaps; or 0."""
        return self._next if self.acknowledges else 0

    def restart(self) -> None:
        """Reset the totals for a new session."""
        self.acknowledges = False
        self.consumed, self.granted, self.grant_due = 0, 0, None
        self.lost, self._first, self._next, self._received = 0, None, 0, 0

    def granting(self) -> int:
        """Record that a grant is being sent, and return its total."""
        self.granted = self.consumed
        self.grant_due = None
        return self.consumed
