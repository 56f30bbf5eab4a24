"""The sending half of a reliable stream: keeps every packet until it is acknowledged, and sends lost ones again.

One `ReliableTx` is one direction of one stream to one peer. It belongs to the peer, not to a session: the packets that
it returns are plaintext, and the caller seals them with the current keys. The other half is engine/streams/reorder.py.
The messages are in wire/messages/reliable.py and docs/wire/profile.md, the packets are kept in
engine/streams/scoreboard.py, the speed comes from engine/streams/congestion.py, and byte credit is in
engine/session/stream.py.

How it is used, in this order for each batch:

1. `room()` returns how many packets may be sent now.
2. `number(pub_seq, now)` sets the number of the next event. At the start of a stream, and where the numbers jump, it
   returns a BASE to send, which uses one sequence.
3. `sent(first_sequence, packed, now)` keeps the batch, whose first sequence is `next_sequence`. The memory of the
   payloads must not change until they are acknowledged.
4. `on_ack`, and `due` when `next_timer` has passed, return a `Resend`: messages and packets to send at once.

Rules:

* Sequences start at a random number (`draw_start`), so that a receiver can tell a new stream from late packets of an
  old one.
* A BASE takes the sequence before the packet that it names. So it is acknowledged, detected as missing and sent again
  exactly like a packet, and no receiver can miss a jump of the numbers. Only the first BASE of a stream (`start`) may
  start a receiver without state.
* A packet is lost when three packets that were sent after it arrived, when three acknowledgements reported the first
  gap, or when the timeout passed. One acknowledgement may report many packets, so receivers may acknowledge rarely.
* Lost packets are sent before new ones, as the window allows, and at least one for each acknowledgement that brought
  news. After a timeout only the oldest two are sent: perhaps only an acknowledgement was lost, and the answer will show
  what else is missing. One loss event halves the window once.
* A packet that was sent again `MAX_RESENDS` times without an acknowledgement fails the stream: `failed` says why, and
  the peer gets a RESET.
* An acknowledgement of a packet that was never sent is counted and ignored. One from a receiver that does not know this
  stream (cumulative 0, or far away) is answered with a START for the oldest packet kept here. A receiver that reports
  less than before is believed, and the packets are sent again.
* Never more packets are on the way than the receiver's `free`. If that is 0 and nothing is on the way, the timer probes
  for room with a START for the next packet: it carries no data, and every receiver answers it.
* Acknowledgements also restore byte credit: `Resend.settled` says how much, and the caller passes it to
  `TxStream.settle`. Reliable streams have no grants.
* FIN is sent when everything is acknowledged, so every receiver can confirm it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from meshbus.engine.base.counters import Counters
from meshbus.engine.streams.congestion import MAX_WINDOW, MIN_WINDOW, NETWORK_WINDOW, RoundTrip, Window
from meshbus.engine.streams.scoreboard import REPORTS, Flight, Outstanding, Scoreboard, Settled
from meshbus.errors import LocalProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.frames import Packed
from meshbus.wire.messages.reliable import (
    NEW_STREAM_DISTANCE,
    Ack,
    Base,
    Fin,
    FinAck,
    ReliableMessage,
    Reset,
    ResetReason,
)

MAX_RESENDS = 12
"""Retransmissions of one packet before the stream fails (docs/wire/profile.md)."""
CLOCK_GRAIN_S = 0.0001
"""A packet this close to its timeout counts as timed out. Our choice: packets sent together should expire together."""


class Resend(msgspec.Struct, frozen=True, eq=False):
    """What to send at once, messages first, and what an acknowledgement settled."""

    messages: Sequence[ReliableMessage] = ()
    packets: Sequence[Outstanding] = ()
    settled: Settled = Settled()


_UNSETTLED = Settled()
_NOTHING = Resend()


def draw_start(entropy: Callable[[int], bytes]) -> int:
    """Draw a random first sequence for a new stream: never 0, and far from the largest 64-bit number."""
    return (int.from_bytes(entropy(8), "little") >> 2) + 1


class ReliableTx:
    """The sending half of one reliable stream."""

    __slots__ = (
        "_asking",
        "_astray",
        "_board",
        "_closing",
        "_counters",
        "_fin_tries",
        "_free",
        "_number",
        "_numbered",
        "_rebased_at",
        "_recover",
        "_reports",
        "_resent_at",
        "_round_trip",
        "_timer",
        "_window",
        "done",
        "failed",
        "node_id",
        "stream_id",
    )

    def __init__(
        self,
        stream_id: int,
        node_id: int,
        *,
        first_sequence: int,
        counters: Counters,
        window: int = NETWORK_WINDOW,
        round_trip_s: float | None = None,
    ) -> None:
        """Start a stream; `first_sequence` comes from `draw_start`, `round_trip_s` from the handshake if known."""
        if not 0 < first_sequence < 1 << 63:
            raise LocalProtocolError(f"first_sequence must be in (0, 2**63), got {first_sequence}; use draw_start")
        self.stream_id = stream_id
        self.node_id = node_id
        self.failed: str | None = None
        """Why the stream ended early, or None; a failed stream holds nothing any more."""
        self.done = False
        """Whether the receiver confirmed the end."""
        self._counters = counters
        self._board = Scoreboard(first_sequence)
        self._round_trip = RoundTrip(round_trip_s)
        self._window = Window(window)
        self._free = window
        self._recover = first_sequence
        """Losses below this sequence belong to the loss event that already halved the window."""
        self._reports = 0
        """Number of acknowledgements that reported the first gap."""
        self._astray = False
        """Whether the last acknowledgement was below the packets kept here: late, or from a receiver without state."""
        self._asking = False
        """Whether the timer probes for room: the receiver had none, and nothing is on the way."""
        self._rebased_at: float | None = None
        self._resent_at = float("-inf")
        self._numbered = False
        self._number: int | None = None
        """The number of the next event, if events are numbered."""
        self._closing = False
        self._fin_tries = 0
        self._timer: float | None = None

    @property
    def next_sequence(self) -> int:
        """The sequence of the next packet."""
        return self._board.next_sequence

    @property
    def acknowledged_to(self) -> int:
        """All packets below this sequence arrived."""
        return self._board.base

    @property
    def outstanding(self) -> int:
        """Number of packets of which no arrival is known."""
        return self._board.flying + self._board.lost

    @property
    def unacked_bytes(self) -> int:
        """Wire bytes of the data packets that are not acknowledged cumulatively."""
        return self._board.unacked_bytes

    @property
    def window(self) -> int:
        """The congestion window in packets, regardless of the receiver's `free`."""
        return self._window.packets

    @property
    def least_round_trip_s(self) -> float | None:
        """The shortest round trip in seconds; None before the first sample."""
        return self._round_trip.least

    @property
    def rto(self) -> float:
        """The retransmission timeout in seconds."""
        return self._round_trip.rto

    def room(self) -> int:  # hot: bench_stream
        """Return the number of packets that may be sent now."""
        if self._closing or self.failed is not None:
            return 0
        # Lost packets keep their place in the window, so that they are sent before new ones.
        room = min(self._window.packets, self._free) - self._board.flying - self._board.lost
        return max(min(room, MAX_WINDOW - len(self._board)), 0)

    def number(self, pub_seq: int | None, now: float) -> Base | None:
        """Set the number of the event that the next packet starts with; None if events are not numbered.

        Returns a BASE that must be sent and has used one sequence, or None if the numbers continue.
        """
        self._check_open()
        if self._numbered and pub_seq == self._number:
            return None
        base = Base(
            stream_id=self.stream_id, sequence=self.next_sequence + 1, pub_seq=pub_seq, start=not self._numbered
        )
        self._numbered, self._number = True, pub_seq
        self._keep(Flight.of_base(self.next_sequence, base, now))
        return base

    def sent(self, first_sequence: int, packed: Packed, now: float) -> None:  # hot: bench_stream
        """Keep packets that are being sent, starting with `next_sequence`; their memory must not change."""
        self._check_next(first_sequence)
        self._keep(
            Flight(
                first_sequence,
                packed.data.data,
                packed.bounds,
                packed.counts,
                pub_seq=self._number,
                now=now,
                stamp=packed.stamp,
            )
        )
        if self._number is not None:
            self._number += int(packed.counts.sum())

    def sent_one(self, sequence: int, payload: bytes, event_count: int, now: float, stamp: int = 0) -> None:
        """Keep a single packet that is being sent, with `next_sequence`."""
        self._check_next(sequence)
        bounds, counts = (0, len(payload)), (event_count,)
        self._keep(Flight(sequence, memoryview(payload), bounds, counts, pub_seq=self._number, now=now, stamp=stamp))
        if self._number is not None:
            self._number += event_count

    def on_ack(self, ack: Ack, now: float) -> Resend:  # hot: bench_stream
        """Handle an acknowledgement, and return what to send because of it."""
        if self.done or self.failed is not None:
            return _NOTHING
        board = self._board
        messages: list[ReliableMessage] = []
        # docs/wire/profile.md: cumulative 0 means that the receiver does not know the stream. Streams start at random
        # sequences, so one far away belongs to another stream under this id.
        if ack.cumulative == 0 or abs(ack.cumulative - board.base) > NEW_STREAM_DISTANCE:
            messages += self._restart_receiver(now)
            if ack.cumulative:
                return Resend(messages)
        elif ack.cumulative > board.next_sequence:
            self._counters.count(Reason.BAD_ACK)
            return _NOTHING
        elif ack.cumulative == board.base and board.oldest_arrived:
            # The receiver asks again for a packet that it had acknowledged above a gap: it dropped what it kept.
            board.lose_arrived()
        before = board.flying + board.lost
        settled, advanced = _UNSETTLED, ack.cumulative > board.base
        # An ACK that was overtaken by a later one must not set `free` back.
        self._astray = ack.cumulative < board.base
        if not self._astray:
            self._free = ack.free
        if advanced:
            settled = board.advance(ack.cumulative)
            self._reports = 0
        sent_at = settled.sent_at
        if ack.ranges:
            wrong, marked_at = board.mark(ack.ranges)
            if wrong:
                self._counters.count(Reason.BAD_ACK, wrong)
            sent_at = sent_at if marked_at is None else marked_at
        news = before - board.flying - board.lost
        if news or advanced:
            self._progress(news, before, sent_at, now)
        overtaken = self._detect_losses() if ack.ranges else False
        if not len(board):
            messages += self._settle_down(now)
        if not board.lost:
            return Resend(messages, (), settled)
        # At least one, even if the window is full: otherwise a loss could not be repaired before the timeout.
        most = max(self._window.packets - board.flying, 1 if overtaken or news else 0)
        again = self._send_again(most, "gap", now)
        return Resend([*messages, *again.messages], again.packets, settled)

    def due(self, now: float) -> Resend:
        """Handle the timeout if it has passed, and return what to send because of it."""
        if self._timer is None or now < self._timer:
            return _NOTHING
        # Before the backoff: what is overdue is decided by the timeout that passed.
        limit = now - self._round_trip.rto + CLOCK_GRAIN_S
        self._round_trip.timed_out()
        self._timer = now + self._round_trip.rto
        board = self._board
        if not len(board):
            self._asking = not self._closing
            return Resend([self._start_here()] if self._asking else self._close(now))
        self._shrink()
        board.lose_expired(limit)
        if not board.lost:
            board.lose_oldest()  # everything arrived above a gap, or was sent just now: probe with the oldest packet
        messages = [self._start_here()] if self._astray else []
        again = self._send_again(MIN_WINDOW, "timeout", now)
        return Resend([*messages, *again.messages], again.packets)

    def next_timer(self) -> float | None:
        """Return when to call `due`, or None."""
        return self._timer

    def finish(self, now: float) -> Resend:
        """Close the stream as soon as everything is acknowledged; nothing more can be sent on it."""
        if self._closing or self.failed is not None:
            return _NOTHING
        self._closing = True
        return _NOTHING if len(self._board) else Resend(self._close(now))

    def on_fin_ack(self, fin_ack: FinAck) -> None:
        """Handle the confirmation of the end."""
        if self._fin_tries and self.failed is None and fin_ack.total == self.next_sequence:
            self.done = True
            self._timer = None

    def on_reset(self, reset: Reset) -> None:
        """Handle a RESET by the receiver: the stream fails."""
        if self.done or self.failed is not None:
            return
        known = {reason.value: reason.name.lower() for reason in ResetReason}
        why = known.get(reset.reason, f"reason {reset.reason}")
        self._fail(f"peer {self.node_id:016x} reset stream {self.stream_id:#x} ({why})")

    def cancel(self) -> Resend:
        """End the stream now, drop what is not acknowledged, and return the RESET to send."""
        if self.done or self.failed is not None:
            return _NOTHING
        self._fail(f"stream {self.stream_id:#x} to peer {self.node_id:016x} was canceled")
        return Resend([Reset(stream_id=self.stream_id, reason=ResetReason.CANCELED)])

    def renew(self, now: float) -> None:
        """Continue in a new session: reset timeouts and tries, and make the oldest packets due at once."""
        self._round_trip.renew()
        self._board.forget_tries()
        # 1, not 0: FIN was sent, so its confirmation must still be accepted.
        self._fin_tries = min(self._fin_tries, 1)
        if self._timer is not None:
            self._timer = now

    def _check_open(self) -> None:
        if self._closing or self.failed is not None:
            raise LocalProtocolError(self.failed or f"stream {self.stream_id:#x} is closing; start another stream")

    def _check_next(self, sequence: int) -> None:
        self._check_open()
        if not self._numbered:
            raise LocalProtocolError(f"stream {self.stream_id:#x} has no first event number; call number() first")
        if sequence != self.next_sequence:
            raise LocalProtocolError(
                f"stream {self.stream_id:#x} expects sequence {self.next_sequence} next, got {sequence}"
            )

    def _keep(self, flight: Flight) -> None:
        self._board.add(flight)
        if self._timer is None and len(self._board):
            self._timer = flight.sent_at + self._round_trip.rto

    def _progress(self, news: int, before: int, sent_at: float | None, now: float) -> None:
        """Record progress of the receiver: `news` packets arrived while `before` were on the way."""
        # A sample from before the last resend is ambiguous: the receiver may answer only because of the resend.
        if sent_at is not None and sent_at >= self._resent_at:
            self._round_trip.sample(max(now - sent_at, 0.0))
        if self._board.base >= self._recover:
            self._window.grow(news, before)
        self._timer = now + self._round_trip.rto

    def _settle_down(self, now: float) -> Sequence[ReliableMessage]:
        """Handle that nothing is on the way any more: close the stream if it is to end, otherwise wait for room."""
        if self._closing:
            return () if self._fin_tries else self._close(now)
        if not self._free:
            if self._timer is None:
                self._timer = now + self._round_trip.rto
            return ()
        self._timer = None
        if self._asking:
            self._asking = False
            self._round_trip.renew()  # the timeouts were no losses: the receiver had no room
        return ()

    def _detect_losses(self) -> bool:
        """Mark the packets that an acknowledgement with a gap shows to be lost, and return whether there are any."""
        board = self._board
        lost = board.lost
        board.lose_overtaken()
        self._reports += 1
        if self._reports >= REPORTS:
            board.lose_first_gap()
        if board.lost == lost:
            return False
        # One loss event halves the window once: packets sent before the last halving do not count again.
        if board.base >= self._recover:
            self._shrink()
        return True

    def _shrink(self) -> None:
        self._window.shrink()
        self._recover = self.next_sequence

    def _restart_receiver(self, now: float) -> Sequence[ReliableMessage]:
        """Return a START for a receiver that does not know the stream, at most once per timeout."""
        self._astray = True
        if not len(self._board):
            return ()
        # Several acknowledgements may be under way; answering each would repeat the START.
        if self._rebased_at is not None and now - self._rebased_at < self._round_trip.rto:
            return ()
        self._rebased_at = now
        self._board.lose_arrived()
        return [self._start_here()]

    def _start_here(self) -> Base:
        """Build the START from which a receiver can follow everything that is kept here or will be sent."""
        board = self._board
        if len(board):
            return board.oldest.start_at(board.base, self.stream_id)
        return Base(stream_id=self.stream_id, sequence=board.next_sequence, pub_seq=self._number, start=True)

    def _send_again(self, most: int, why: str, now: float) -> Resend:
        """Return up to `most` lost packets to send again, oldest first."""
        messages: list[ReliableMessage] = []
        packets: list[Outstanding] = []
        for flight, sequence, resent in self._board.take_lost(most, now):
            if resent.tries > MAX_RESENDS:
                return self._give_up(f"packet {sequence}")
            if flight.base is None:
                packets.append(flight.packet(sequence))
            else:
                messages.append(flight.base)
        if packets or messages:
            self._resent_at = now
            self._counters.add("retransmit", why, len(messages) + len(packets))
        return Resend(messages, packets)

    def _close(self, now: float) -> Sequence[ReliableMessage]:
        """Return the FIN to send, for the first time or again."""
        self._fin_tries += 1
        if self._fin_tries > MAX_RESENDS + 1:
            return self._give_up("the end").messages
        self._timer = now + self._round_trip.rto
        return [Fin(stream_id=self.stream_id, total=self.next_sequence)]

    def _give_up(self, what: str) -> Resend:
        self._counters.add("fail", "unacknowledged")
        self._fail(
            f"peer {self.node_id:016x} did not acknowledge {what} of stream {self.stream_id:#x}, "
            f"sent again {MAX_RESENDS} times"
        )
        return Resend([Reset(stream_id=self.stream_id, reason=ResetReason.GAVE_UP)])

    def _fail(self, reason: str) -> None:
        self.failed = reason
        self._timer = None
        self._board.clear()
