"""The sending half of a reliable stream: keep every packet until it is acknowledged, send again what was lost.

One `ReliableTx` is one direction of one stream to one peer. It belongs to the peer, not to a session: what it gives
back to send is plaintext, which the caller seals with whatever keys are current. The other half is engine/streams/reorder.py,
the bytes are wire/messages/reliable.py, the packets are kept in engine/streams/scoreboard.py, the speed comes from
engine/streams/congestion.py, and byte credit stays in engine/session/stream.py.

How it is used, in this order for each batch:

1. `room()` says how many packets may go now.
2. `number(pub_seq, now)` says which event comes next. At the start of a stream and where the numbers jump it gives a
   BASE to send, which uses up one sequence.
3. `sent(first_sequence, packed, now)` keeps the batch, from `next_sequence` on. The payload memory must not change
   until it is acknowledged.
4. `on_ack`, and `due` when `next_timer` has passed, give a `Resend`: messages and packets to send at once.

The rules:

* Sequences start at a random number (`draw_start`), so a receiver tells a new stream from late packets of an old one.
* A BASE takes the sequence before the packet it names. So it is acknowledged, missed and sent again exactly as a
  packet is, and no receiver can go past a jump of the numbers without having seen it. Only the first one of a stream
  may start a receiver that knows nothing (`start`).
* A packet is lost when three packets that left after it arrived, when three acknowledgements reported the first gap,
  or when the timeout passed. An acknowledgement that stands for many packets counts as many reports, so that receivers
  may acknowledge rarely.
* Lost packets go first, as the window has room, at least one per acknowledgement that brought news. After a timeout
  only the oldest two go: perhaps nothing but an acknowledgement was lost, and the answer will tell about the rest.
  One loss event halves the window once.
* A packet that was sent again `MAX_RESENDS` times in vain fails the stream: `failed` says why, and the peer is told.
* An acknowledgement of something that was never sent is counted and ignored. One from a receiver that does not know
  this stream (cumulative 0, or far away) is answered with a BASE for the oldest packet we still hold; a receiver that
  takes back what it had is believed, and the packets are sent again.
* Never more is on the way than the receiver's `free`. When that is 0 and nothing is on the way, the timer asks whether
  there is room again, with a BASE for the next packet: it brings no data, and every receiver answers it.
* Credit is settled by the acknowledgement too: all but `unacked_bytes` of what was sent was consumed, so
  `stream.grant(stream.sent - unacked_bytes)` restores what grants alone would lose.
* FIN goes out when everything is acknowledged, so any receiver can confirm it.
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
CLOCK_GRAIN_S = 0.0001
"""A packet this close to its timeout has reached it."""


class Resend(msgspec.Struct, frozen=True, eq=False):
    """What to send at once, messages first; and what an acknowledgement settled."""

    messages: Sequence[ReliableMessage] = ()
    packets: Sequence[Outstanding] = ()
    settled: Settled = Settled()


_UNSETTLED = Settled()
_NOTHING = Resend()


def draw_start(entropy: Callable[[int], bytes]) -> int:
    """Draw the first sequence of a new stream: never 0, and far from the end of 64 bits."""
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
            raise LocalProtocolError(f"a reliable stream cannot start at sequence {first_sequence}")
        self.stream_id = stream_id
        self.node_id = node_id
        self.failed: str | None = None
        """Why the stream ended early; everything it held is gone then."""
        self.done = False
        """The receiver confirmed the end."""
        self._counters = counters
        self._board = Scoreboard(first_sequence)
        self._round_trip = RoundTrip(round_trip_s)
        self._window = Window(window)
        self._free = window
        self._recover = first_sequence
        """Losses below this sequence belong to the loss event that already halved the window."""
        self._reports = 0
        """Acknowledgements that reported the first gap."""
        self._astray = False
        """The last acknowledgement was not about what we hold: late, or from a receiver that needs a new start."""
        self._asking = False
        """The timer asks for room: the receiver had none, and nothing is on the way."""
        self._rebased_at: float | None = None
        self._resent_at = float("-inf")
        self._numbered = False
        self._number: int | None = None
        """The number of the next event, where events are numbered."""
        self._closing = False
        self._fin_tries = 0
        self._timer: float | None = None

    @property
    def next_sequence(self) -> int:
        """The sequence of the next packet."""
        return self._board.next_sequence

    @property
    def outstanding(self) -> int:
        """Packets that did not arrive yet, as far as we know."""
        return self._board.flying + self._board.lost

    @property
    def unacked_bytes(self) -> int:
        """Wire bytes of the data packets that are not acknowledged with everything before them."""
        return self._board.unacked_bytes

    @property
    def window(self) -> int:
        """Packets that may be on the way, whatever the receiver says."""
        return self._window.packets

    @property
    def rto(self) -> float:
        """Seconds after which a packet without an answer counts as lost."""
        return self._round_trip.rto

    def room(self) -> int:  # hot: bench_stream
        """Give the number of packets that may be sent now."""
        if self._closing or self.failed is not None:
            return 0
        room = min(self._window.packets, self._free) - self._board.flying - self._board.lost
        return max(min(room, MAX_WINDOW - len(self._board)), 0)

    def number(self, pub_seq: int | None, now: float) -> Base | None:
        """Say which event the next packet starts with, None where events have no numbers.

        A BASE that it gives must be sent, and has used up one sequence.
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
        """Keep packets that are being sent, the first with `next_sequence`; their memory must not change."""
        self._check_next(first_sequence)
        self._keep(
            Flight(first_sequence, packed.data.data, packed.bounds, packed.counts, pub_seq=self._number, now=now)
        )
        if self._number is not None:
            self._number += int(packed.counts.sum())

    def sent_one(self, sequence: int, payload: bytes, event_count: int, now: float) -> None:
        """Keep a single packet that is being sent, with `next_sequence`."""
        self._check_next(sequence)
        bounds, counts = (0, len(payload)), (event_count,)
        self._keep(Flight(sequence, memoryview(payload), bounds, counts, pub_seq=self._number, now=now))
        if self._number is not None:
            self._number += event_count

    def on_ack(self, ack: Ack, now: float) -> Resend:  # hot: bench_stream
        """Take in an acknowledgement."""
        if self.done or self.failed is not None:
            return _NOTHING
        board = self._board
        messages: list[ReliableMessage] = []
        if ack.cumulative == 0 or abs(ack.cumulative - board.base) > NEW_STREAM_DISTANCE:
            messages += self._restart_receiver(now)
            if ack.cumulative:
                return Resend(messages)
        elif ack.cumulative > board.next_sequence:
            self._counters.count(Reason.BAD_ACK)
            return _NOTHING
        elif ack.cumulative == board.base and board.oldest_arrived:
            board.lose_arrived()
        before = board.flying + board.lost
        settled, advanced = _UNSETTLED, ack.cumulative > board.base
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
        most = max(self._window.packets - board.flying, 1 if overtaken or news else 0)
        again = self._send_again(most, "gap", now)
        return Resend([*messages, *again.messages], again.packets, settled)

    def due(self, now: float) -> Resend:
        """Give what the timeout makes necessary, when it has passed."""
        if self._timer is None or now < self._timer:
            return _NOTHING
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
            board.lose_oldest()  # Everything arrived, or left just now: ask again with the oldest packet.
        messages = [self._start_here()] if self._astray else []
        again = self._send_again(MIN_WINDOW, "timeout", now)
        return Resend([*messages, *again.messages], again.packets)

    def next_timer(self) -> float | None:
        """Give the time at which `due` wants to be called."""
        return self._timer

    def finish(self, now: float) -> Resend:
        """Close the stream when everything is acknowledged; nothing more can be sent on it."""
        if self._closing or self.failed is not None:
            return _NOTHING
        self._closing = True
        return _NOTHING if len(self._board) else Resend(self._close(now))

    def on_fin_ack(self, fin_ack: FinAck) -> None:
        """Take in the confirmation of the end."""
        if self._fin_tries and self.failed is None and fin_ack.total == self.next_sequence:
            self.done = True
            self._timer = None

    def on_reset(self, reset: Reset) -> None:
        """Take in that the receiver ended the stream."""
        if self.done or self.failed is not None:
            return
        known = {reason.value: reason.name.lower() for reason in ResetReason}
        why = known.get(reset.reason, f"reason {reset.reason}")
        self._fail(f"peer {self.node_id:016x} ended stream {self.stream_id:#x}: {why}")

    def cancel(self) -> Resend:
        """End the stream now, and drop what is not acknowledged."""
        if self.done or self.failed is not None:
            return _NOTHING
        self._fail(f"stream {self.stream_id:#x} to peer {self.node_id:016x} was canceled")
        return Resend([Reset(stream_id=self.stream_id, reason=ResetReason.CANCELED)])

    def renew(self, now: float) -> None:
        """Take in that a new session began: patience starts anew, and the oldest packets are due at once."""
        self._round_trip.renew()
        self._board.forget_tries()
        self._fin_tries = min(self._fin_tries, 1)
        if self._timer is not None:
            self._timer = now

    def _check_open(self) -> None:
        if self._closing or self.failed is not None:
            raise LocalProtocolError(self.failed or f"stream {self.stream_id:#x} is closing: nothing more can be sent")

    def _check_next(self, sequence: int) -> None:
        self._check_open()
        if not self._numbered:
            raise LocalProtocolError(f"stream {self.stream_id:#x}: the receiver must be told the first number")
        if sequence != self.next_sequence:
            raise LocalProtocolError(
                f"stream {self.stream_id:#x}: sequence {sequence} does not follow, expected {self.next_sequence}"
            )

    def _keep(self, flight: Flight) -> None:
        self._board.add(flight)
        if self._timer is None and len(self._board):
            self._timer = flight.sent_at + self._round_trip.rto

    def _progress(self, news: int, before: int, sent_at: float | None, now: float) -> None:
        """Note that the receiver got on; `news` arrived while `before` were on the way."""
        # After a resend it is not clear what the receiver answers: it may have been silent until then.
        if sent_at is not None and sent_at >= self._resent_at:
            self._round_trip.sample(max(now - sent_at, 0.0))
        if self._board.base >= self._recover:
            self._window.grow(news, before)
        self._timer = now + self._round_trip.rto

    def _settle_down(self, now: float) -> Sequence[ReliableMessage]:
        """Nothing is on the way any more: close the stream if it is to end, else wait only for room."""
        if self._closing:
            return () if self._fin_tries else self._close(now)
        if not self._free:
            if self._timer is None:
                self._timer = now + self._round_trip.rto
            return ()
        self._timer = None
        if self._asking:
            self._asking = False
            self._round_trip.renew()  # Nothing was lost: the receiver had no room.
        return ()

    def _detect_losses(self) -> bool:
        """Find packets that an acknowledgement with a gap shows to be lost; says whether there are new ones."""
        board = self._board
        lost = board.lost
        board.lose_overtaken()
        self._reports += 1
        if self._reports >= REPORTS:
            board.lose_first_gap()
        if board.lost == lost:
            return False
        if board.base >= self._recover:
            self._shrink()
        return True

    def _shrink(self) -> None:
        self._window.shrink()
        self._recover = self.next_sequence

    def _restart_receiver(self, now: float) -> Sequence[ReliableMessage]:
        """Tell a receiver that does not know the stream where to start, once per timeout."""
        self._astray = True
        if not len(self._board):
            return ()
        if self._rebased_at is not None and now - self._rebased_at < self._round_trip.rto:
            return ()
        self._rebased_at = now
        self._board.lose_arrived()
        return [self._start_here()]

    def _start_here(self) -> Base:
        """Make the BASE from which a receiver can follow everything that we hold or will send."""
        board = self._board
        if len(board):
            return board.oldest.start_at(board.base, self.stream_id)
        return Base(stream_id=self.stream_id, sequence=board.next_sequence, pub_seq=self._number, start=True)

    def _send_again(self, most: int, why: str, now: float) -> Resend:
        """Send lost packets again, oldest first."""
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
        """Send FIN, for the first time or again."""
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
