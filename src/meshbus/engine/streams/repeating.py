"""Repeated streams: reliable streams to a net-mesh peer that acknowledges (dialects.md §3.2, rules 5 and 6).

A packet is kept until a grant of 24 bytes acknowledges it, and is sent again when a NACK names it. Nothing of this is
seen by a peer of level A, which neither acknowledges nor repeats: its streams only carry the flag, as ever.

* A stream is repeated if its first packet of the session is reliable. From then on all its packets are, because the
  receiver waits for every sequence. If the first packet was plain, the stream stays plain, without the flag: a receiver
  of level B decides by the first packet.
* Sequences start at 0 in every session. Level B expects that.
* At most `MAX_AHEAD` packets are on the way: level B credits nothing that is more than 64 ahead of a gap.
* A timeout sends an empty packet with a new sequence, not data. The receiver answers it with what it has and what is
  missing; repeated data would reach applications of levels A and B twice.
* A packet that is sent again keeps its sequence, flags and plaintext; the flag of a start stays with its packet.
* A NACK repeats a packet that was sent once if it is older than a round trip: the receiver has a later one.
* NACKs come faster than repairs, and may be old when they are read. So a packet that was sent again is repeated only if the
  NACK shows that a packet arrived which was sent after that copy: the copy then is lost, unless the network changed the
  order. An application of level B would see a packet that arrives twice two times.
* A NACK does not name the highest packet that arrived. So if the last copy of a packet is in doubt, or a question was not
  answered, the empty packet leaves out one sequence, the *hole*. A NACK that names the hole was sent after the empty packet
  had arrived, and it comes again until the hole is filled: by another empty packet, of which a second copy harms nobody.
* If nothing is acknowledged for `GIVE_UP_S`, what is kept is given up and the failure reported. The stream continues:
  on level C with the start flag, on level B with a RESET and from 0.

The profile's own reliable streams are in engine/streams/reliable.py, the receiving side in engine/streams/ordering.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import StreamFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import MAX_STREAMS, Peer
from meshbus.engine.session.stream import TxStream
from meshbus.engine.streams.congestion import RoundTrip
from meshbus.engine.streams.scoreboard import Flight, Outstanding, Scoreboard
from meshbus.policy.reason import Reason
from meshbus.wire.constants import CONTROL_STREAM, Flags, Subprotocol
from meshbus.wire.frames import Packed
from meshbus.wire.header import Header
from meshbus.wire.messages.streamrepair import StreamNack, StreamRanges, StreamReset, encode_reset

MAX_AHEAD = 48
"""Packets of data on the way. Our choice: with the empty packets it stays below the 64 that level B accepts."""
MAX_KEPT = 62
"""Packets kept with the empty ones; then a timeout only waits. One less than the receiver accepts ahead of a gap."""
MIN_TIMEOUT_S = 0.05
"""The shortest timeout: that of the peer's own sender (dialects.md §1)."""
GIVE_UP_S = 30.0
"""How long nothing may be acknowledged. Our choice: as long as a silent peer counts as alive by default."""

_RELIABLE, _START = int(Flags.RELIABLE), int(Flags.START)


class RepeatedStream:
    """One stream: what is not acknowledged, and when to ask."""

    __slots__ = (
        "_asked",
        "_board",
        "_header",
        "_heard_at",
        "_hole",
        "_pattern",
        "_round_trip",
        "_started_at",
        "_starts",
        "stream_id",
        "timer",
    )

    def __init__(self, stream_id: int, now: float) -> None:
        self.stream_id = stream_id
        self.timer: float | None = None
        """When to call `due`, or None if everything is acknowledged."""
        self._board = Scoreboard(0)
        self._round_trip = RoundTrip()
        self._heard_at = now
        """When something was acknowledged, or nothing was on the way."""
        self._header = Header(stream_id=stream_id)
        self._pattern: Header | None = None
        """The header that the caller passed last, from which `_header` was made."""
        self._starts = False
        """Whether the next packet carries the start flag."""
        self._started_at: int | None = None
        """The sequence of the packet that carried it, which keeps it when it is sent again."""
        self._asked = False
        """Whether a question was sent since something was acknowledged."""
        self._hole: int | None = None
        """The sequence that the last question left out, until it is sent."""

    @property
    def next_sequence(self) -> int:
        """The sequence of the next packet."""
        return self._board.next_sequence

    @property
    def room(self) -> int:
        """How many packets may be sent now."""
        # The start flag gives up everything below its packet, so no other packet may carry it.
        return 1 if self._starts else max(MAX_AHEAD - len(self._board), 0)

    @property
    def outstanding(self) -> int:
        """How many packets are kept."""
        return len(self._board)

    def header(self, pattern: Header) -> Header:  # hot: bench_stream
        """Return the header of the next packets: the pattern, made reliable, and marked if the stream starts anew."""
        if self._starts:
            self._starts, self._started_at, self._pattern = False, self.next_sequence, None
            self._header = msgspec.structs.replace(pattern, flags=pattern.flags | _RELIABLE)
            return msgspec.structs.replace(self._header, flags=self._header.flags | _START)
        # The same object as long as the pattern is: the link finds what it prepared by identity.
        if self._pattern is not pattern:
            self._pattern = pattern
            self._header = msgspec.structs.replace(pattern, flags=pattern.flags | _RELIABLE)
        return self._header

    def sent(self, first_sequence: int, packed: Packed, now: float) -> None:
        """Keep packets that are being sent; their memory must not change."""
        data, bounds = packed.data.data, packed.bounds
        self._keep(Flight(first_sequence, data, bounds, packed.counts, pub_seq=None, now=now, stamp=packed.stamp))

    def sent_one(self, sequence: int, payload: bytes, now: float) -> None:
        """Keep one packet that is being sent."""
        self._keep(Flight(sequence, memoryview(payload), (0, len(payload)), (1,), pub_seq=None, now=now))

    def acknowledge(self, ack_seq: int, now: float) -> bool:
        """Drop what lies below a sequence; return False if some of that was never sent."""
        board = self._board
        if ack_seq > (board.next_sequence if self._hole is None else self._hole):
            return False
        if ack_seq > board.base:
            settled = board.advance(ack_seq)
            if settled.sent_at is not None:
                self._round_trip.sample(max(now - settled.sent_at, 0.0))
            self._progress(now)
        return True

    def mark(self, ranges: Iterable[tuple[int, int]], now: float) -> int:
        """Mark what arrived above a gap; return how many ranges name packets that were never sent."""
        wrong, _ = self._board.mark([(start, end - start) for start, end in ranges])
        return wrong

    def missing(self, nack: StreamNack, now: float) -> list[Outstanding]:
        """Return the packets that a NACK names and that are not on the way again already."""
        # Something above the last packet that is missing has arrived, or the NACK would not name it.
        shown = min(nack.last + 1, self.next_sequence - 1)
        self._board.lose(nack.missing(), now - self._again_s, now - MIN_TIMEOUT_S, shown)
        again = [flight.packet(sequence) for flight, sequence, _ in self._board.take_lost(MAX_KEPT, now)]
        if any(packet.sequence == self._hole for packet in again):
            self._hole = None
        if again:
            self.timer = now + self._timeout_s
        return again

    def due(self, now: float) -> None:
        """Handle a timeout that has passed."""
        self._round_trip.timed_out()
        self.timer = now + self._timeout_s

    def question(self, sending: TxStream, now: float, *, repairs: bool) -> Outstanding | None:
        """Return an empty packet that the receiver answers with what it has; None if too much is on the way.

        `repairs` is whether the receiver is known to ask for holes.
        """
        board = self._board
        if self._hole is not None:
            # If it had arrived, the receiver would ask for the hole; so it, or every answer so far, was lost.
            return board.repeat(self._hole + 1, now)
        hole = repairs and (self._asked or board.repeated)
        if len(board) + hole >= MAX_KEPT:
            return None
        if hole:
            self._hole = sending.take(1, 0)
            # It was never sent, so that it is never too young to be asked for.
            board.add(_empty(self._hole, -inf))
        flight = _empty(sending.take(1, 0), now)
        self._keep(flight)
        self._asked = True
        return flight.packet(flight.first)

    def hopeless(self, now: float) -> bool:
        """Return whether nothing was acknowledged for too long."""
        return len(self._board) > 0 and now - self._heard_at >= GIVE_UP_S

    def restart(self, now: float, *, at_zero: bool) -> int:
        """Drop what is kept, and mark the next packet as a start; return how many packets were given up."""
        given_up = len(self._board)
        if at_zero:
            self._board = Scoreboard(0)
        else:
            self._board.clear()
        self._starts, self._asked, self._hole = True, False, None
        self.timer, self._heard_at = None, now
        return given_up

    def reply_to(self, packet: Outstanding) -> Header:
        """Return the header with which a packet is sent again."""
        flags = self._header.flags | _RELIABLE | (_START if packet.sequence == self._started_at else 0)
        return msgspec.structs.replace(
            self._header, flags=flags, sequence=packet.sequence, event_count=packet.event_count
        )

    @property
    def _timeout_s(self) -> float:
        return max(self._round_trip.rto, MIN_TIMEOUT_S)

    @property
    def _again_s(self) -> float:
        """How old the last copy of a packet must be before a NACK repeats it."""
        return self._timeout_s / 2 if self._round_trip.smoothed is None else self._round_trip.smoothed

    def _keep(self, flight: Flight) -> None:
        if not len(self._board):
            self._heard_at = flight.sent_at
        self._board.add(flight)
        if self.timer is None:
            self.timer = flight.sent_at + self._timeout_s

    def _progress(self, now: float) -> None:
        self._heard_at = now
        self._asked = False
        self._round_trip.renew()
        self.timer = now + self._timeout_s if len(self._board) else None


class Repeating:
    """The repeated streams to one peer."""

    def __init__(self, peer: Peer, counters: Counters) -> None:
        self._peer = peer
        self._counters = counters
        self._streams: dict[int, RepeatedStream] = {}
        self._timers: Deadlines[int] = Deadlines()

    def stream(self, header: Header, now: float) -> RepeatedStream | None:
        """Return the repeated stream that a packet belongs to; None if its stream is plain.

        The first packet of the session on a stream decides: if it is reliable, the stream is repeated.
        """
        if self._peer.dialect.level is Level.A:
            return None
        stream, sending = self._streams.get(header.stream_id), self._peer.tx_stream(header.stream_id)
        if stream is None:
            if not header.flags & _RELIABLE or sending.next_sequence or len(self._streams) >= MAX_STREAMS:
                return None
            stream = self._streams[header.stream_id] = RepeatedStream(header.stream_id, now)
        return stream

    def sent(self, stream: RepeatedStream, first_sequence: int, packed: Packed, now: float) -> None:
        """Keep packets that are being sent."""
        stream.sent(first_sequence, packed, now)
        self._time(stream)

    def sent_one(self, stream: RepeatedStream, sequence: int, payload: bytes, now: float) -> None:
        """Keep one packet that is being sent."""
        stream.sent_one(sequence, payload, now)
        self._time(stream)

    def on_ack(self, stream_id: int, ack_seq: int, now: float) -> None:
        """Handle an acknowledgement."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            if not stream.acknowledge(ack_seq, now):
                self._counters.count(Reason.BAD_ACK)
            self._time(stream)

    def on_nack(self, nack: StreamNack, now: float, out: Output) -> None:
        """Repeat what a receiver misses."""
        stream = self._streams.get(nack.stream_id)
        if stream is None:
            self._counters.count(Reason.REPAIR_UNKNOWN_STREAM)
            return
        # What it does not name below the first missing sequence has arrived.
        self.on_ack(nack.stream_id, nack.next_expected, now)
        again = stream.missing(nack, now)
        self._time(stream)
        for packet in again:
            out.trains.append(self._peer.link.seal(stream.reply_to(packet), bytes(packet.payload)))
        if again:
            self._counters.add("retransmit", "nack", len(again))

    def on_ranges(self, ranges: StreamRanges, now: float) -> None:
        """Record what arrived above a gap, so that it is not sent again."""
        stream = self._streams.get(ranges.stream_id)
        if stream is None:
            self._counters.count(Reason.REPAIR_UNKNOWN_STREAM)
            return
        self.on_ack(ranges.stream_id, ranges.ack_seq, now)
        self._counters.count(Reason.BAD_ACK, stream.mark(ranges.ranges, now))

    def next_timer(self) -> float | None:
        """Return when `tick` is due, or None."""
        return self._timers.next()

    def tick(self, now: float, out: Output) -> None:
        """Ask receivers that have not acknowledged in time, or give up."""
        for stream_id in self._timers.over(now):
            stream = self._streams[stream_id]
            if stream.hopeless(now):
                self._give_up(stream, now, out)
            else:
                stream.due(now)
                self._ask(stream, now, out)
            self._time(stream)

    def stop(self, out: Output, why: str | None = None) -> None:
        """Keep nothing any more: the peer does not acknowledge, or a new session begins.

        With `why`, report the streams that still had packets as failed.
        """
        for stream in self._streams.values():
            if why is not None and stream.outstanding:
                self._fail(stream.stream_id, stream.outstanding, why, out)
            self._timers.drop(stream.stream_id)
        self._streams.clear()

    def _ask(self, stream: RepeatedStream, now: float, out: Output) -> None:
        """Send an empty packet, which the receiver answers with what it has."""
        sending = self._peer.tx_stream(stream.stream_id)
        question = stream.question(sending, now, repairs=self._peer.dialect.repairs)
        if question is not None:
            # Not the header of the data, which belongs to what is sent again.
            header = Header(flags=_RELIABLE, stream_id=stream.stream_id, sequence=question.sequence)
            out.trains.append(self._peer.link.seal(header, b""))
            self._counters.add("retransmit", "question")

    def _give_up(self, stream: RepeatedStream, now: float, out: Output) -> None:
        peer, at_zero = self._peer, self._peer.dialect.level is not Level.C
        given_up = stream.restart(now, at_zero=at_zero)
        if at_zero:
            # dialects.md §3.2, rule 5: level B then counts sequences and credit from 0 again.
            peer.tx_stream(stream.stream_id).restart()
            if peer.dialect.repairs:
                reset = encode_reset(StreamReset(stream_id=stream.stream_id))
                peer.send_message(Subprotocol.STREAM_RESET, reset, out, stream_id=CONTROL_STREAM)
        why = f"peer {peer.node_id:016x} did not acknowledge stream {stream.stream_id:#x} for {GIVE_UP_S:g} s"
        self._fail(stream.stream_id, given_up, why, out)

    def _fail(self, stream_id: int, packets: int, why: str, out: Output) -> None:
        self._counters.add("fail", "reliable_stream")
        self._counters.add("loss", "unacknowledged_packets", packets)
        out.control.append(StreamFailed(self._peer.node_id, stream_id, why))

    def _time(self, stream: RepeatedStream) -> None:
        if stream.timer is None:
            self._timers.drop(stream.stream_id)
        elif self._timers.get(stream.stream_id) != stream.timer:
            self._timers.set(stream.stream_id, stream.timer)


def _empty(sequence: int, now: float) -> Flight:
    """Build the flight of a packet without events."""
    return Flight(sequence, memoryview(b""), (0, 0), (0,), pub_seq=None, now=now)
