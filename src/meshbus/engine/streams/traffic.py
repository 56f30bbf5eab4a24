"""All streams with one peer: sends packets as credit and acknowledgements allow, and confirms received packets.

A stream is reliable if its packets carry the RELIABLE flag and both sides negotiated 0x4D01
(engine/streams/reliable.py); acknowledgements then restore the credit. Otherwise it is plain: packets are delivered in
the order of arrival, and grants restore the credit (transport.md §14, §15). One stream id may carry both kinds at a
time; their sequences differ (docs/wire/profile.md). With net-mesh peers of 0.27 and later, a plain stream with the flag
is repeated when it is sent (engine/streams/repeating.py) and put in order when it is received (streams/ordering.py).

Sending goes one way: `send` queues a leg in the outbox, `pump` takes the turns of the outbox, seals the packets with
the link and appends the trains to the output. Confirmations are collected and sent once per batch of received packets
(`confirm`). Traffic belongs to the peer and outlives its sessions.

Large events must not hold up small ones: few of their parts are on the way to a peer while small events are sent to it, they
leave a part of the credit of their stream, and one call sends a slice of them (engine/streams/partslice.py). They go to peers
that agreed on 0x4D0A, and to no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import msgspec
import numpy as np

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.stream import RxStream
from meshbus.engine.streams.largeload import LargeLoad
from meshbus.engine.streams.ordering import Ordering, Released
from meshbus.engine.streams.outbox import TURN_PACKETS, Leg, Load, Outbox, side_lane
from meshbus.engine.streams.partslice import SLICE_S, PartSlice
from meshbus.engine.streams.reliable import Ready, Reliable
from meshbus.engine.streams.reorder import ACK_PACKETS
from meshbus.engine.streams.repeating import RepeatedStream, Repeating
from meshbus.errors import Backpressure, LocalProtocolError, RemoteProtocolError
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.names.identity import Entropy
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import (
    CONTROL_STREAM,
    FRAME_PREFIX_BYTES,
    MAX_EVENT,
    PACKET_COST,
    STREAM_WINDOW,
    Flags,
    Subprotocol,
)
from meshbus.wire.frames import columns_of, encode_frames, pack_frames
from meshbus.wire.header import Buffer, Header
from meshbus.wire.messages.large import Refused
from meshbus.wire.messages.streamrepair import StreamNack, StreamRanges
from meshbus.wire.messages.window import Grant, decode_grant, encode_grant

_RELIABLE, _RELIABLE_ID = int(Flags.RELIABLE), int(Subprotocol.RELIABLE)
_UNLIMITED = 1 << 30
MAX_GRANTS = 160
"""Streams granted in one packet: they take 48 bytes each in both forms. transport.md §14 allows several per packet."""
_ALWAYS_HANDLED = frozenset({Subprotocol.MEMBERSHIP, Subprotocol.CAPABILITY})
"""Subprotocols for whose messages only net-mesh 0.37 and later send grants (dialects.md §3.1)."""
QUIET_S = 0.2
"""How long a plain stream with losses is silent before its sender's window is freed (dialects.md §3.2, rule 7)."""
SETTLE_CHECK_S = 0.05
"""How often to look whether a negotiation has ended without an agreement; an agreement is reported at once."""
MAX_MESSAGES = 4096
"""Messages that may wait on the reliable stream of their subprotocol. Our choice, to bound memory."""
MAX_LARGE_BYTES = 64 << 20
"""Bytes of large messages that may wait for a peer, besides the first one. Our choice: one of the largest size."""
LARGE_FLIGHT, SHARED_FLIGHT = 64, ACK_PACKETS
"""Parts that may be on the way to one peer, alone and beside small events. Our choice: as many as a stream begins with on
loopback, and as many as a receiver acknowledges at once, so that a small event waits for 65 KB at most. On a long way it is
so many for each `TRIP_S`, because most of them are then not in a queue, but on the way; credit and congestion control limit
them as everything else."""
TRIP_S = 0.001
SHARED_S = 0.1
"""How long after a small event parts make room for the next one. Our choice: ten a second count as a stream of them."""
CREDIT_LEFT = 4
"""Parts leave this fraction of a stream's window (one in four) to the small events of their channel."""


BOUNDS = (
    Bound(
        name="messages",
        what="messages that wait for the reliable stream of their subprotocol",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_MESSAGES},
        full="the message is refused",
        counter="raises Backpressure",
    ),
    Bound(
        name="large_messages",
        what="bytes of large requests and replies that wait for a peer, besides one",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_LARGE_BYTES},
        unit="bytes",
        full="the message is refused",
        counter="raises Backpressure",
    ),
)


class Traffic:
    """The streams of one peer."""

    def __init__(
        self, peer: Peer, part_slice: PartSlice, *, counters: Counters, entropy: Entropy, loopback: bool
    ) -> None:
        """Begin; `part_slice` is shared with the traffic of all other peers."""
        self.peer = peer
        self._slice = part_slice
        self.outbox = Outbox()
        self.reliable = Reliable(peer, counters=counters, entropy=entropy, loopback=loopback)
        self.repeating = Repeating(peer, counters)
        self.ordering = Ordering(peer, counters)
        self.released: list[tuple[Peer, Released]] = []
        """What ordered streams released without a packet that came for them; engine/streams/streams.py collects it."""
        self._counters = counters
        self._grants: Deadlines[int] = Deadlines()
        """When the next grant of each plain stream is due."""
        self._stalls: Deadlines[int] = Deadlines()
        """When to ask the receivers of plain streams that get no credit what they have."""
        self._quiet: Deadlines[int] = Deadlines()
        """When plain streams with losses have been silent for long enough to free what their senders still wait for."""
        self._look_again_at: float | None = None
        """When to try again what waits for the end of the negotiation, or for the next slice of parts."""
        self._ending: dict[int, None] = {}
        """Reliable streams that end when nothing in the outbox waits for them any more."""
        self._large_bytes = 0
        """Bytes of the large messages that wait."""
        self._large_sent = 0
        """Number of large messages so far; each has its own stream."""
        self._large_streams: dict[int, None] = {}
        """Streams whose parts may be on the way."""
        self._small_at = -inf
        """When a packet was sent last that is no part."""

    # ── sending ─────────────────────────────────────────────────────────────────────────────

    def send(self, leg: Leg, now: float, out: Output) -> None:
        """Send a leg, or as much of it as credit and acknowledgements allow; the rest waits in the outbox."""
        self.outbox.add(leg)
        self.pump(now, out)

    def admits(self, header: Header, payload_bytes: int, now: float) -> bool:
        """Return whether a single packet can be sent at once: its stream has credit and room, and nothing waits for it.

        What waits for other streams lacks their credit, so it cannot use the turn.
        """
        if (
            self.peer.link.holds
            or self.outbox.waiting(header.stream_id)
            or not self.peer.tx_stream(header.stream_id).admits(payload_bytes + PACKET_COST)
        ):
            return False
        return self._room(header, now) > 0

    def send_plain(
        self, header: Header, payload: bytes, stamp: int, now: float, out: Output
    ) -> bool:  # hot: bench_publish
        """Send one event on a best-effort stream to a meshbus peer, if nothing is in its way; return whether it was sent.

        Most single events are of this kind. For all others, `admits` and `send_one` decide what they need.
        """
        peer, stream_id = self.peer, header.stream_id
        stream = peer.tx.get(stream_id)
        if stream is None or header.flags & _RELIABLE or stream_id in self.outbox.queues or not peer.uses(_RELIABLE_ID):
            return False
        sequence = stream.take_one(len(payload))
        if sequence is None:
            return False
        self._small_at = now
        out.trains.append(peer.link.seal_one(header, payload, sequence, stamp))
        return True

    def send_one(self, header: Header, payload: bytes, pub_seq: int, stamp: int, now: float, out: Output) -> None:
        """Send one event as a packet of its own; call it only if `admits` returned True."""
        stream_id = header.stream_id
        self._small_at = now
        repeated = self._repeated(header, now)
        header = self._as_sent(header, repeated)
        # Credit is spent for both kinds of stream; a reliable one then replaces the plain sequence by its own.
        sequence = self.peer.tx_stream(stream_id).take(1, len(payload))
        reliable = self._is_reliable(header)
        if reliable:
            sequence = self.reliable.prepare(header, pub_seq, now, out)
        out.trains.append(self.peer.link.seal_one(header, payload, sequence, stamp))
        if reliable:
            self.reliable.sent_one(stream_id, sequence, payload, stamp, now)
        elif repeated is not None:
            self.repeating.sent_one(repeated, sequence, payload, now)

    def send_reliable(self, subprotocol_id: int, message: bytes, now: float, out: Output) -> None:
        """Send one message on the reliable stream of its subprotocol; it is retransmitted until it arrives.

        Raises Backpressure if `MAX_MESSAGES` wait already.
        """
        if self.outbox.waiting(subprotocol_id) >= MAX_MESSAGES:
            cost = FRAME_PREFIX_BYTES + len(message) + PACKET_COST
            raise Backpressure(self.peer.tx_stream(subprotocol_id).credit, cost)
        self.send_messages(subprotocol_id, subprotocol_id, [message], _forget, now, out)

    def send_messages(
        self,
        subprotocol_id: int,
        stream_id: int,
        messages: Sequence[bytes],
        done: Callable[[Leg, bool], None],
        now: float,
        out: Output,
    ) -> None:
        """Send messages on a reliable stream, one per packet; call `done` when the last one was sent or dropped."""
        # A packing target of one byte puts each message into a packet of its own.
        header = Header(flags=_RELIABLE, subprotocol_id=subprotocol_id, stream_id=stream_id)
        self.send(Leg(Load(header, encode_frames(*columns_of(messages), max_payload=1)), inf, done), now, out)

    def send_large(self, subprotocol_id: int, message: bytes, body_bytes: int, now: float, out: Output) -> None:
        """Send a message that does not fit a packet on a reliable stream of its own, which ends with it.

        Raises Backpressure if more than `MAX_LARGE_BYTES` wait already.
        """
        # Behind it, small messages of the subprotocol would wait. A stream id that was used before begins anew.
        stream_id = subprotocol_id << 32 | self._large_sent & 0xFFFFFFFF
        if self._large_bytes > MAX_LARGE_BYTES:
            raise Backpressure(self.peer.tx_stream(stream_id).credit, len(message))
        self._large_sent += 1
        self._large_bytes += len(message)

        def done(_leg: Leg, _sent: bool) -> None:
            self._large_bytes -= len(message)

        header = Header(flags=_RELIABLE, subprotocol_id=subprotocol_id, stream_id=stream_id)
        self.send(Leg(LargeLoad(header, np.frombuffer(message, np.uint8), body_bytes), inf, done), now, out)
        self.finish(stream_id, now, out)

    def finish(self, stream_id: int, now: float, out: Output) -> None:
        """End a reliable stream as soon as everything that waits for it was sent and acknowledged."""
        self._ending[stream_id] = None
        self._end_streams(now, out)

    def uses(self, stream_id: int) -> bool:
        """Return whether something on a reliable stream still waits to be sent or acknowledged."""
        return self.outbox.waiting(stream_id) > 0 or self.reliable.sends(stream_id)

    def withdraw_publications(self) -> None:
        """Drop the events of channels that wait; packets that were sent are still retransmitted until they arrive."""
        self.outbox.clear(lambda leg: bool(leg.load.header.stream_id & PUBLISH_STREAM_BIT))

    def withdraw(self, stream_id: int) -> None:
        """Drop what waits for a stream; packets that were sent are still retransmitted until they arrive."""
        self.outbox.clear(lambda leg: leg.load.header.stream_id == stream_id)

    def abandon(self, stream_id: int, out: Output) -> None:
        """End a reliable stream at once; drop what waits and what is not acknowledged."""
        self._ending.pop(stream_id, None)
        self.withdraw(stream_id)
        self.reliable.abandon(stream_id, out)

    def pump(self, now: float, out: Output) -> None:
        """Send what credit and acknowledgements allow, in the order of the outbox; end streams that are empty now."""
        if self.outbox.queues and not self.peer.link.holds:
            for lane in self.outbox.turns():
                self._take_turn(lane, now, out)
            if self._ending:
                self._end_streams(now, out)

    def _take_turn(self, lane: int, now: float, out: Output) -> None:
        """Send the packets of one turn of a lane."""
        left = TURN_PACKETS
        while left > 0 and (leg := self.outbox.head(lane)) is not None:
            header, large = leg.load.header, leg.load.needs is not None
            stream = self.peer.tx_stream(header.stream_id)
            # Also if a large event comes later: a peer that does not take it gets nothing of the batch.
            if (large or any(load.needs is not None for load in leg.rest)) and not self._takes_large(leg, now):
                return
            room = min(left, self._room(header, now), self._large_room(header.stream_id, now) if large else left)
            if room <= 0:
                return
            credit = stream.credit - (stream.window // CREDIT_LEFT if large else 0)
            part = leg.next_part(credit if stream.window else None, room)
            reliable, repeated = self._is_reliable(header), self._repeated(header, now)
            if part is None:
                # Parts leave credit to small events, so that a stream which is short of it for them is not stalled.
                if stream.stalled_at is None and not large:
                    stream.stalled_at = now
                    self._counters.add("stall", "credit")
                if not reliable and repeated is None and stream.probe_at is not None:
                    self._stalls.set(header.stream_id, stream.probe_at)
                return
            if large:
                self._large_streams[header.stream_id] = None
                self._slice.take(len(part))
            else:
                self._small_at = now
                stream.stalled_at = None
            header = self._as_sent(header, repeated)
            # A reliable stream has sequences of its own. The plain ones are spent all the same, with the credit.
            numbered = self.reliable.prepare(header, leg.next_number, now, out) if reliable else None
            own = stream.take(len(part), int(part.bounds[-1] - part.bounds[0]))
            first = own if numbered is None else numbered
            out.trains += self.peer.link.seal_batch(header, part, first)
            if reliable:
                self.reliable.sent(header.stream_id, first, part, now)
            elif repeated is not None:
                self.repeating.sent(repeated, first, part, now)
            self.outbox.sent(leg, len(part), now)
            left -= len(part)

    def _probe_stalled(self, now: float, out: Output) -> None:
        """Send an empty packet on plain streams that get no credit: its grant shows what was lost before it.

        dialects.md §3.2, rule 7: every version grants it, and it reaches no application.
        """
        for stream_id in self._stalls.over(now):
            stream = self.peer.tx_stream(stream_id)
            if self.outbox.waiting(stream_id) and stream.may_probe(now) and not self.peer.link.holds:
                header = Header(stream_id=stream_id, sequence=stream.take(1, 0))
                out.trains.append(self.peer.link.seal(header, b""))
                stream.probed(now)
                self._counters.add("stall", "probe")

    def _room(self, header: Header, now: float) -> int:
        """Return how many packets a stream may send now, apart from its credit."""
        if not header.flags & _RELIABLE:
            repeated = self._repeated(header, now)
            return _UNLIMITED if repeated is None else repeated.room
        room = self.reliable.room(header.stream_id)
        if room is None:
            # Without an agreement, events are sent as to a plain peer, which gets no numbers. So they wait until it is
            # decided that the peer is one; messages of the profile wait as long as it takes.
            if header.subprotocol_id == Subprotocol.EVENTS and now >= self.peer.settles_at:
                repeated = self._repeated(header, now)
                return _UNLIMITED if repeated is None else repeated.room
            self._look_again(now + SETTLE_CHECK_S)
            return 0
        return room

    def _takes_large(self, leg: Leg, now: float) -> bool:
        """Return whether the peer takes parts; end the leg if it is decided that the peer does not."""
        peer = self.peer
        if peer.uses(Subprotocol.LARGE) and self.reliable.agreed:
            return True
        # The agreement may come: then parts can be sent. A plain peer must never get one.
        if now >= peer.settles_at and not self.reliable.sends(leg.load.header.stream_id):
            self.outbox.end(
                leg,
                LocalProtocolError(
                    f"peer {peer.node_id:016x} takes events of at most {MAX_EVENT} bytes, because it did not agree on large"
                    " events (0x4d0a); send smaller ones, or use meshbus there"
                ),
            )
        else:
            self._look_again(now + SETTLE_CHECK_S)
        return False

    def _large_room(self, sending: int, now: float) -> int:
        """Return how many parts of a stream may be sent now; what is on the way of all large events counts."""
        flying = 0
        for stream_id in list(self._large_streams):
            outstanding = self.reliable.outstanding(stream_id)
            if outstanding:
                flying += outstanding
            else:
                del self._large_streams[stream_id]
        most = SHARED_FLIGHT if now - self._small_at < SHARED_S else LARGE_FLIGHT
        room = int(most * max(self.reliable.least_round_trip_s(sending) / TRIP_S, 1.0)) - flying
        left = self._slice.left(now)
        if room > 0 and not left:
            self._look_again(now + SLICE_S)
        return min(room, left)

    def _look_again(self, at: float) -> None:
        """Pump again at a time, if not earlier."""
        self._look_again_at = at if self._look_again_at is None else min(self._look_again_at, at)

    def on_refused(self, refused: Refused) -> None:
        """End the leg of a large event that the peer does not take."""
        for lane in (refused.stream_id, side_lane(refused.stream_id)):
            leg = self.outbox.head(lane)
            if leg is not None and leg.load.needs is not None and leg.next_number == refused.number:
                problem = (
                    f"peer {self.peer.node_id:016x} takes events of at most {refused.limit} bytes on this channel, got"
                    f" {refused.size}; raise max_event_bytes there, or send smaller ones"
                )
                self.outbox.end(leg, LocalProtocolError(problem))

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    def consumed(self, stream: RxStream, packets: int, payload_bytes: int, now: float) -> None:
        """Count received packets of a plain stream, and schedule the grant for them."""
        before = stream.grant_due
        stream.consume(packets, payload_bytes, now)
        if stream.grant_due != before:
            self._schedule_grant(stream)

    def consume_one(self, stream_id: int, sequence: int, payload_bytes: int, now: float) -> int:  # hot: bench_publish
        """Do the same for one packet, and return by how many packets its stream's `lost` changed."""
        stream = self.peer.rx.get(stream_id) or self.peer.rx_stream(stream_id)
        before = stream.grant_due
        lost = stream.take_one(sequence, payload_bytes, now)
        if stream.grant_due != before:
            self._schedule_grant(stream)
        return lost

    def order(self, came: Ready, now: float, *, start: bool) -> Released:
        """Pass packets of a net-mesh peer's reliable stream through it, and return what it releases."""
        released = self.ordering.receive(came, now, start=start)
        self._count_released(released, now)
        return released

    def hold(self, stream_id: int, now: float, *, held: bool) -> None:
        """Stop confirming a stream while the application cannot take more, or continue."""
        stream = self.peer.rx_stream(stream_id)
        released = stream.held and not held
        stream.held = held
        # The sender stopped for lack of credit or room: tell it at once, not after the usual delay.
        if released:
            self.reliable.release(stream_id, now)
            if stream.grant_due is not None:
                stream.grant_due = now
                self._grants.set(stream_id, now)

    def on_grant(self, message: Buffer, now: float, out: Output) -> None:
        """Handle a credit grant, and send what it allows."""
        try:
            grant = decode_grant(message)
        except RemoteProtocolError:
            self._counters.count(Reason.GRANT_MALFORMED)
            return
        self._learn(grant, now, out)
        stream = self.peer.tx.get(grant.stream_id)
        # dialects.md §5.9: messages that need no credit are granted by some versions, which says nothing.
        if stream is not None and not stream.sent:
            return
        if stream is None:
            self._counters.count(Reason.GRANT_UNKNOWN_STREAM)
            return
        if grant.total_consumed > stream.sent:
            self._counters.count(Reason.GRANT_EXCESS)  # what goes beyond; all that was sent may have arrived
        if grant.ack_seq is not None:
            self.repeating.on_ack(grant.stream_id, grant.ack_seq, now)
        # An acknowledgement may give room even if the total is not new.
        if stream.grant(grant.total_consumed) or grant.ack_seq is not None:
            self.pump(now, out)

    def on_nack(self, nack: StreamNack, now: float, out: Output) -> None:
        """Handle a NACK: repeat what is missing, and send what it makes room for."""
        self.repeating.on_nack(nack, now, out)
        self.pump(now, out)

    def on_ranges(self, ranges: StreamRanges, now: float, out: Output) -> None:
        """Handle ranges that arrived above a gap."""
        self.repeating.on_ranges(ranges, now)
        self.pump(now, out)

    def on_reset(self, stream_id: int, now: float) -> None:
        """Handle a RESET: the peer gave up packets of its stream."""
        released = self.ordering.reset(stream_id, now)
        if released is not None:
            self._release([released], now)

    def on_reliable(self, message: Buffer, now: float, out: Output) -> Ready:
        """Handle a message about a reliable stream, and return what can be delivered because of it."""
        ready = self.reliable.on_message(message, now, out)
        self.pump(now, out)
        return ready

    def confirm(self, now: float, out: Output) -> None:
        """Send the acknowledgements and grants that are due."""
        # Asked after every packet, when usually nothing is due.
        if self.reliable.acks.first <= now:
            self.reliable.confirm(now, out)
        if self._grants.first > now and self._quiet.first > now:
            return
        due = [stream_id for stream_id in self._grants.over(now) if self._owes(stream_id)]
        for start in range(0, len(due), MAX_GRANTS):
            self._send_grants(due[start : start + MAX_GRANTS], out)
        # What a silent sender has on the way is lost, the last packets and their grants included. So it gets its whole
        # window, once; it limits the total to what it sent (dialects.md §3.2, rule 7).
        silent = [stream_id for stream_id in self._quiet.over(now) if self._is_quiet(stream_id)]
        for start in range(0, len(silent), MAX_GRANTS):
            self._send_grants(silent[start : start + MAX_GRANTS], out, freed=STREAM_WINDOW)
        if not self.reliable.agreed:
            for stream_id in due:
                if self.peer.rx_stream(stream_id).lost:
                    self._quiet.set(stream_id, now + QUIET_S)

    # ── time and sessions ───────────────────────────────────────────────────────────────────

    def next_timer(self) -> float | None:
        """Return the earliest deadline of the outbox, the reliable streams and the grants, or None."""
        times = (
            self.outbox.next_timer(),
            self.reliable.next_timer(),
            self.repeating.next_timer(),
            self.ordering.next_timer(),
            self._grants.next(),
            self._quiet.next(),
            self._stalls.next(),
            self._look_again_at,
        )
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Expire, retransmit and confirm what is due."""
        self.outbox.expire(now)
        self._look_again_at = None
        # Messages of the profile can only go on reliable streams; events may still go as plain ones.
        if self.reliable.overdue(now, out):
            self.outbox.clear(lambda leg: leg.load.header.subprotocol_id != Subprotocol.EVENTS)
        self.reliable.tick(now, out)
        self.repeating.tick(now, out)
        self._probe_stalled(now, out)
        self._release(self.ordering.tick(now, out), now)
        self.confirm(now, out)
        self.pump(now, out)

    def renew(self, now: float, out: Output) -> None:
        """Continue the streams in a new session; those of net-mesh peers begin again."""
        self.reliable.renew(now)
        self.repeating.stop(out, f"the session with peer {self.peer.node_id:016x} was replaced")
        self._release(self.ordering.close(now), now)

    def agreement_changed(self, now: float, out: Output) -> None:
        """Apply a change of what was negotiated with the peer."""
        self.reliable.agreement_changed(now)
        self.tick(now, out)

    def close(self) -> None:
        """End everything that waits, because the peer was removed."""
        self.outbox.clear()
        self.reliable.close()

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _is_reliable(self, header: Header) -> bool:
        return bool(header.flags & _RELIABLE) and self.reliable.agreed

    def _repeated(self, header: Header, now: float) -> RepeatedStream | None:
        """Return the repeated stream that packets belong to, or None."""
        if self.reliable.agreed or header.subprotocol_id != Subprotocol.EVENTS:
            return None
        return self.repeating.stream(header, now)

    def _as_sent(self, header: Header, repeated: RepeatedStream | None) -> Header:
        """Return the header with the flags that the peer can bear.

        dialects.md §3.2, rule 5: a receiver of level B or C waits for packets that nobody repeats, if they carry the flag.
        """
        if repeated is not None:
            return repeated.header(header)
        bare = header.flags & _RELIABLE and not self.reliable.agreed and self.peer.dialect.level is not Level.A
        return msgspec.structs.replace(header, flags=header.flags & ~_RELIABLE) if bare else header

    def _learn(self, grant: Grant, now: float, out: Output) -> None:
        """Learn from a grant what level the peer has."""
        if self.reliable.agreed:
            return
        later = Level.C if grant.stream_id in _ALWAYS_HANDLED else Level.B
        level = Level.A if grant.ack_seq is None else later
        if self.peer.dialect.learn(level) and level is Level.A:
            # It neither acknowledges nor repeats.
            self.repeating.stop(out)
            self._release(self.ordering.close(now), now)

    def _release(self, released: Sequence[Released], now: float) -> None:
        for one in released:
            self._count_released(one, now)
        self.released += [(self.peer, one) for one in released]

    def _count_released(self, released: Released, now: float) -> None:
        """Count what was released for a grant; without any, the last grant was lost and is sent again."""
        ready = released.ready
        packets = sum(len(payloads) for payloads in ready.payloads)
        nbytes = sum(int(payloads.lengths.sum()) for payloads in ready.payloads)
        self.consumed(self.peer.rx_stream(ready.stream_id), packets, nbytes, now)

    def _end_streams(self, now: float, out: Output) -> None:
        for stream_id in [stream_id for stream_id in self._ending if not self.outbox.waiting(stream_id)]:
            del self._ending[stream_id]
            self.reliable.finish(stream_id, now, out)

    def _owes(self, stream_id: int) -> bool:
        """Return whether a grant may be sent: not for a stream that is held or evicted, or of an earlier session."""
        stream = self.peer.rx.get(stream_id)
        return stream is not None and stream.grant_due is not None and not stream.held

    def _is_quiet(self, stream_id: int) -> bool:
        stream = self.peer.rx.get(stream_id)
        return stream is not None and stream.grant_due is None and not stream.held

    def _schedule_grant(self, stream: RxStream) -> None:
        if stream.grant_due is not None and not stream.held:
            self._grants.set(stream.stream_id, stream.grant_due)

    def _send_grants(self, stream_ids: list[int], out: Output, freed: int = 0) -> None:
        # transport.md §14: grants travel on the control stream, several may share a packet, and they cost no credit.
        # dialects.md §3.2, rule 1: both forms while the level is unknown. The longer one first, so that a meshbus node
        # that learns from it never takes this one for level A.
        dialect, grants = self.peer.dialect, []
        for stream_id in stream_ids:
            total = self.peer.rx_stream(stream_id).granting() + freed
            if dialect.reads_long_grants and not self.reliable.agreed:
                ack_seq = self._ack_of(stream_id)
                grants.append(encode_grant(Grant(stream_id=stream_id, total_consumed=total, ack_seq=ack_seq)))
            if dialect.reads_short_grants or self.reliable.agreed:
                grants.append(encode_grant(Grant(stream_id=stream_id, total_consumed=total)))
        stream = self.peer.tx_stream(CONTROL_STREAM)
        header = Header(
            subprotocol_id=Subprotocol.STREAM_WINDOW,
            stream_id=CONTROL_STREAM,
            sequence=stream.next_sequence,
            event_count=len(grants),
        )
        stream.next_sequence += 1
        out.trains.append(self.peer.link.seal(header, pack_frames(grants)))

    def _ack_of(self, stream_id: int) -> int:
        return self.ordering.ack_of(stream_id) or self.peer.rx_stream(stream_id).acknowledged


def _forget(_leg: Leg, _arrived: bool) -> None:
    """Ignore the outcome of a leg that nobody waits for."""
