"""Streams: packet sequences and byte credit, in both directions.

Credit is the 0.23 rule: a sender may have `window` wire bytes on the way; the receiver tells the running total of what
it took in (wire/messages/window.py), and totals never go backwards. Streams belong to the peer, so a new session
continues them. In-order, exactly-once delivery is engine/streams/retransmit.py and engine/streams/reorder.py.
"""

from __future__ import annotations

from meshbus.wire.constants import PACKET_COST, STREAM_WINDOW

GRANT_SHARE = 4
"""A grant is due when a window's fourth part was taken in since the last one."""
GRANT_DELAY_S = 0.005
"""…or this long after the first packet that was not granted yet."""


class TxStream:
    """The sending side of one stream."""

    __slots__ = ("best_seen", "credit", "next_sequence", "sent", "stalled", "stream_id", "window")

    def __init__(self, stream_id: int, window: int = STREAM_WINDOW) -> None:
        self.stream_id = stream_id
        self.window = window
        """Bytes that may be on the way; 0 is unlimited."""
        self.credit = window
        self.next_sequence = 0
        self.sent = 0
        self.best_seen = 0
        self.stalled = False
        """A send was refused for lack of credit, and none went out since."""

    def admits(self, cost: int) -> bool:
        """Say whether a send of `cost` wire bytes has credit."""
        return self.window == 0 or self.credit >= cost

    def take(self, packets: int, payload_bytes: int) -> int:
        """Use sequences and credit for packets that are sent; gives the first sequence."""
        cost = payload_bytes + PACKET_COST * packets
        self.credit -= cost
        self.sent += cost
        first = self.next_sequence
        self.next_sequence += packets
        return first

    def grant(self, total_consumed: int) -> bool:
        """Apply a grant; says whether it gave new credit. A peer cannot grant more than was sent."""
        total = min(total_consumed, self.sent)
        if total <= self.best_seen:
            return False
        self.credit = min(self.window, self.credit + total - self.best_seen)
        self.best_seen = total
        return True

    def settle(self, wire_bytes: int) -> None:
        """Give back the credit of packets that were acknowledged."""
        self.grant(self.best_seen + wire_bytes)

    def restart(self) -> None:
        """Start the credit anew, for a new session; the sequences go on."""
        self.credit, self.sent, self.best_seen = self.window, 0, 0

    def widen(self, window: int) -> None:
        """Change the window, keeping what is on the way."""
        self.credit += window - self.window
        self.window = window


class RxStream:
    """The receiving side of one stream."""

    __slots__ = ("consumed", "grant_due", "granted", "held", "stream_id", "window")

    def __init__(self, stream_id: int, window: int = STREAM_WINDOW) -> None:
        self.stream_id = stream_id
        self.window = window
        self.consumed = 0
        """Wire bytes taken in, the total that grants tell."""
        self.granted = 0
        """The total of the last grant."""
        self.grant_due: float | None = None
        """When the next grant must be sent at the latest."""
        self.held = False
        """The application cannot take more now, so nothing is granted."""

    def absorb(self, packets: int, payload_bytes: int) -> None:
        """Count packets that an acknowledgement confirms, so that totals stay right if the stream turns plain."""
        self.consumed += payload_bytes + PACKET_COST * packets
        self.granted = self.consumed

    def consume(self, packets: int, payload_bytes: int, now: float) -> None:
        """Count packets taken in, and plan the grant for them."""
        self.consumed += payload_bytes + PACKET_COST * packets
        if self.window and (self.consumed - self.granted) * GRANT_SHARE >= self.window:
            self.grant_due = now
        elif self.grant_due is None:
            self.grant_due = now + GRANT_DELAY_S

    def restart(self) -> None:
        """Start the totals anew, for a new session."""
        self.consumed, self.granted, self.grant_due = 0, 0, None

    def granting(self) -> int:
        """Note that a grant is being sent, and give its total."""
        self.granted = self.consumed
        self.grant_due = None
        return self.consumed
