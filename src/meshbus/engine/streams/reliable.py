"""The reliable streams with one peer (0x4D01), in both directions (docs/wire/profile.md).

A single stream is engine/streams/retransmit.py on the sending side and engine/streams/reorder.py on the receiving side.
This file keeps them by stream id, sends their messages and retransmissions, and collects acknowledgements, so that one
is sent per stream and batch.

Streams belong to the peer and outlive its sessions. A new session has to agree on 0x4D01 again. Until then the streams
wait, so that nothing is delivered twice, and a peer that came back without the profile never receives any of it. After
`RESUME_S` without an agreement they are given up. Credit and plain streams are in engine/streams/traffic.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

import msgspec

from meshbus.engine.base.batch import Stamp
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import StreamFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import MAX_STREAMS, Peer
from meshbus.engine.streams.congestion import LOOPBACK_WINDOW, NETWORK_WINDOW
from meshbus.engine.streams.reorder import ACK_DELAY_S, Budget, Payloads, ReliableRx
from meshbus.engine.streams.retransmit import ReliableTx, Resend, draw_start
from meshbus.errors import RemoteProtocolError
from meshbus.names.identity import Entropy
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import Packed
from meshbus.wire.header import Buffer, Header
from meshbus.wire.messages.reliable import (
    FIRST_SEQUENCE,
    Ack,
    Base,
    Fin,
    FinAck,
    ReliableMessage,
    Reset,
    decode_reliable,
    encode_reliable,
)

RESUME_S = 15.0
"""How long streams wait for the agreement of a new session. Our choice: more than the 5 s in which both sides announce
themselves again plus the 3 s of the negotiation (session/negotiate.py)."""
MAX_ACKS = 64
"""Streams that are acknowledged at once; more have to wait for ACK_DELAY_S. Our choice: a small packet may name hundreds of
streams, and must not cause as many answers."""


BOUNDS = (
    Bound(
        name="reliable_streams",
        what="reliable streams of a peer, in each direction",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_STREAMS},
        full="of those received, the one that was idle longest goes; sending waits",
        counter=Reason.TOO_MANY_STREAMS,
    ),
)


class Ready(NamedTuple):
    """Packets of one stream: as they arrived, or what the stream releases for delivery, in order."""

    subprotocol_id: int
    stream_id: int
    origin_hash: int
    payloads: list[Payloads]
    stamp: Stamp = Stamp()


_NOTHING = Ready(Subprotocol.EVENTS, 0, 0, [])


class _Sending:
    """The sending half of a stream, and the pattern of its packet headers."""

    __slots__ = ("header", "tx")

    def __init__(self, tx: ReliableTx, header: Header) -> None:
        self.tx = tx
        self.header = header


class _Receiving:
    """The receiving half of a stream, and what its packets have in common."""

    __slots__ = ("origin_hash", "rx", "stamp", "subprotocol_id")

    def __init__(self, rx: ReliableRx) -> None:
        self.rx = rx
        self.subprotocol_id: int | None = None
        """None before the first packet."""
        self.origin_hash = 0
        self.stamp = Stamp()


class Reliable:
    """The reliable streams of one peer."""

    def __init__(self, peer: Peer, *, counters: Counters, entropy: Entropy, loopback: bool) -> None:
        self._peer = peer
        self._counters = counters
        self._entropy = entropy
        self._start_window = LOOPBACK_WINDOW if loopback else NETWORK_WINDOW
        self._sending: dict[int, _Sending] = {}
        self._timers: Deadlines[int] = Deadlines()
        """Retransmission deadlines of the sending streams."""
        self._receiving: OrderedDict[int, _Receiving] = OrderedDict()
        """Receiving streams; the one that was used last is at the end."""
        self.acks: Deadlines[int] = Deadlines()
        """When the next acknowledgement of each receiving stream is due."""
        self._acks_from = -inf
        """Before this time no acknowledgement is sent, because too many were due at once."""
        self._awaited: dict[int, list[tuple[int, Callable[[str | None], None]]]] = {}
        """By sending stream: which sequences are to be acknowledged, and what to call then."""
        self._budget = Budget()
        self._resume_by: float | None = None
        """When the streams that wait for an agreement are given up."""

    @property
    def agreed(self) -> bool:
        """Whether reliable streams were negotiated in this session."""
        return self._peer.uses(Subprotocol.RELIABLE)

    # ── sending ─────────────────────────────────────────────────────────────────────────────

    def room(self, stream_id: int) -> int | None:
        """Return how many packets a stream may send now, or None if there is neither an agreement nor such a stream."""
        sending = self._sending.get(stream_id)
        # A stream that exists waits for the agreement, because the receiver may have part of it already.
        if not self.agreed:
            return None if sending is None else 0
        if sending is not None:
            return sending.tx.room()
        # A full table without an idle stream: what waits starts its stream when another one has ended.
        full = len(self._sending) >= MAX_STREAMS and len(self._timers) >= len(self._sending)
        return 0 if full else self._start_window

    def prepare(self, header: Header, pub_seq: int | None, now: float, out: Output) -> int:
        """Prepare a stream for packets that start with event `pub_seq`, and return the sequence of the first one.

        Creates the stream on first use, and sends a BASE if the receiver needs one to number the events.
        """
        sending = self._sending.get(header.stream_id)
        if sending is None:
            sending = self._start(header)
        sending.header = header
        base = sending.tx.number(pub_seq, now)
        if base is not None:
            self._say([base], out)
        return sending.tx.next_sequence

    def sent(self, stream_id: int, first_sequence: int, part: Packed, now: float) -> None:
        """Keep packets that are being sent, for retransmission; `prepare` returned their first sequence."""
        tx = self._sending[stream_id].tx
        tx.sent(first_sequence, part, now)
        self._time(tx)

    def sent_one(self, stream_id: int, sequence: int, payload: bytes, stamp: int, now: float) -> None:
        """Keep a packet with one event that is being sent, for retransmission."""
        tx = self._sending[stream_id].tx
        tx.sent_one(sequence, payload, 1, now, stamp)
        self._time(tx)

    def sends(self, stream_id: int) -> bool:
        """Return whether there is such a stream to send on."""
        return stream_id in self._sending

    def outstanding(self, stream_id: int) -> int:
        """Return how many packets of a stream were sent and are not known to have arrived."""
        sending = self._sending.get(stream_id)
        return 0 if sending is None else sending.tx.outstanding

    def least_round_trip_s(self, stream_id: int) -> float:
        """Return the shortest round trip of a stream in seconds; 0 if it is not known yet."""
        sending = self._sending.get(stream_id)
        return 0.0 if sending is None else sending.tx.least_round_trip_s or 0.0

    def await_acknowledgement(self, stream_id: int, call: Callable[[str | None], None]) -> None:
        """Call back with None when all that was sent on a stream is acknowledged, or with the reason if it never will be."""
        tx = self._sending[stream_id].tx
        self._awaited.setdefault(stream_id, []).append((tx.next_sequence, call))
        self._report_acknowledged(tx)

    def finish(self, stream_id: int, now: float, out: Output) -> None:
        """End a stream when everything on it is acknowledged; then neither side keeps any state of it."""
        sending = self._sending.get(stream_id)
        if sending is not None:
            self._resend(sending, sending.tx.finish(now), out)

    def abandon(self, stream_id: int, out: Output) -> None:
        """End a stream now, without reporting a failure."""
        sending = self._sending.pop(stream_id, None)
        if sending is not None:
            self._timers.drop(stream_id)
            self._peer.tx.pop(stream_id, None)
            self._report_lost(stream_id, "the stream was abandoned")
            if self.agreed:
                self._say(sending.tx.cancel().messages, out)

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    def receive(self, came: Ready, now: float) -> Ready:
        """Handle packets of a stream, in the order of arrival, and return what can be delivered."""
        subprotocol_id, stream_id, origin_hash, (payloads,), stamp = came
        receiving = self._receiving_for(stream_id)
        # The first packet fixes what a stream carries, so that nobody can slip events into a stream of messages.
        if receiving.subprotocol_id is None:
            receiving.subprotocol_id, receiving.origin_hash = subprotocol_id, origin_hash
        elif receiving.subprotocol_id != subprotocol_id:
            self._counters.count(Reason.WRONG_STREAM, len(payloads))
            return _NOTHING
        receiving.stamp = stamp
        return self._taken(stream_id, receiving, receiving.rx.accept(payloads, now))

    def on_message(self, message: Buffer, now: float, out: Output) -> Ready:
        """Handle a message about a stream, and return what can be delivered because of it."""
        try:
            decoded = decode_reliable(message)
        except RemoteProtocolError:
            self._counters.count(Reason.RELIABLE_MALFORMED)
            return _NOTHING
        match decoded:
            case Ack():
                self._take_ack(decoded, now, out)
            case Base():
                receiving = self._receiving_for(decoded.stream_id)
                return self._taken(decoded.stream_id, receiving, receiving.rx.on_base(decoded, now))
            case Fin():
                self._take_fin(decoded, out)
            case FinAck() if decoded.stream_id in self._sending:
                sending = self._sending[decoded.stream_id]
                sending.tx.on_fin_ack(decoded)
                self._update(sending, out)
            case Reset():
                self._take_reset(decoded, out)
            case _:
                self._counters.count(Reason.RELIABLE_UNKNOWN_STREAM)
        return _NOTHING

    def release(self, stream_id: int, now: float) -> None:
        """Make an acknowledgement due at once, which tells the sender that there is room again."""
        if stream_id in self._receiving:
            self.acks.set(stream_id, now)

    def confirm(self, now: float, out: Output) -> None:
        """Send the acknowledgements that are due."""
        if self.acks.first <= now and self.agreed and now >= self._acks_from:
            due = self.acks.over(now, 2 * MAX_ACKS)
            self._peer.send_messages(Subprotocol.RELIABLE, [self._ack(stream_id) for stream_id in due[:MAX_ACKS]], out)
            # Some are moved behind those that come now, never all: thousands may be due, with every batch.
            for stream_id in due[MAX_ACKS:]:
                self.acks.set(stream_id, now + ACK_DELAY_S)
                self._acks_from = now + ACK_DELAY_S

    # ── time and sessions ───────────────────────────────────────────────────────────────────

    def next_timer(self) -> float | None:
        """Return the earliest deadline, or None."""
        if not self.agreed:
            return self._resume_by
        ack_at, resend_at = self.acks.next(), self._timers.next()
        if ack_at is not None:
            ack_at = max(ack_at, self._acks_from)
        return min((time for time in (ack_at, resend_at) if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Retransmit and acknowledge what is due."""
        if self.agreed:
            for stream_id in self._timers.over(now):
                sending = self._sending[stream_id]
                self._resend(sending, sending.tx.due(now), out)
            self.confirm(now, out)

    def renew(self, now: float) -> None:
        """Continue the streams in a new session, as soon as it has an agreement."""
        # Credit starts again with the session, and packets that are still unacknowledged count against it.
        for stream_id, sending in self._sending.items():
            sending.tx.renew(now)
            self._time(sending.tx)
            # No packets, only their bytes: sequences were spent when they were sent first.
            self._peer.tx_stream(stream_id).take(0, sending.tx.unacked_bytes)
        self._resume_by = None
        self._wait(now)

    def agreement_changed(self, now: float) -> None:
        """Apply a change of the agreement: streams continue, or wait."""
        if self.agreed:
            self._resume_by = None
        else:
            self._wait(now)

    def overdue(self, now: float, out: Output) -> bool:
        """Cancel all streams if they waited too long for an agreement; return whether they did."""
        if self._resume_by is None or now < self._resume_by:
            return False
        self._resume_by = None
        for sending in list(self._sending.values()):
            sending.tx.cancel()  # its RESET is not sent: without an agreement the peer must not receive it
            self._update(sending, out)
        self.close()
        return True

    def close(self) -> None:
        """Drop all receiving streams and what waits in them; nothing more is acknowledged."""
        for stream_id in list(self._awaited):
            self._report_lost(stream_id, "the peer left")
        for stream_id in list(self._receiving):
            self._drop_receiving(stream_id)

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _wait(self, now: float) -> None:
        if self._resume_by is None and (self._sending or self._receiving):
            self._resume_by = now + RESUME_S

    def _start(self, header: Header) -> _Sending:
        if len(self._sending) >= MAX_STREAMS:
            idle = next((stream_id for stream_id in self._sending if stream_id not in self._timers), None)
            if idle is not None:
                del self._sending[idle]  # everything on it is acknowledged; if it is used again, it starts again
        tx = ReliableTx(
            header.stream_id,
            self._peer.node_id,
            # docs/wire/profile.md: at least 2^61, so that the packets of reliable streams can be recognized.
            first_sequence=draw_start(self._entropy) | FIRST_SEQUENCE,
            counters=self._counters,
            window=self._start_window,
        )
        sending = self._sending[header.stream_id] = _Sending(tx, header)
        return sending

    def _receiving_for(self, stream_id: int) -> _Receiving:
        receiving = self._receiving.get(stream_id)
        if receiving is None:
            if len(self._receiving) >= MAX_STREAMS:
                self._drop_receiving(next(iter(self._receiving)))
                self._counters.count(Reason.TOO_MANY_STREAMS)
            receiving = _Receiving(ReliableRx(stream_id, counters=self._counters, budget=self._budget))
            self._receiving[stream_id] = receiving
        # The stream that was idle longest stays at the front.
        self._receiving.move_to_end(stream_id)
        return receiving

    def _drop_receiving(self, stream_id: int) -> None:
        self._receiving.pop(stream_id).rx.close()
        self.acks.drop(stream_id)

    def _taken(self, stream_id: int, receiving: _Receiving, ready: list[Payloads]) -> Ready:
        """Record what a stream released, and schedule its acknowledgement."""
        due = receiving.rx.next_timer()
        if due is not None:
            self.acks.set(stream_id, due)
        for payloads in ready:
            self._peer.rx_stream(stream_id).absorb(len(payloads), int(payloads.lengths.sum()))
        subprotocol_id = receiving.subprotocol_id or Subprotocol.EVENTS
        return Ready(subprotocol_id, stream_id, receiving.origin_hash, ready, receiving.stamp)

    def _ack(self, stream_id: int) -> bytes:
        ack = self._receiving[stream_id].rx.make_ack()
        stream = self._peer.rx.get(stream_id)
        # While the application cannot take more, `free` is 0, so that the sender stops.
        held = stream is not None and stream.held
        return encode_reliable(msgspec.structs.replace(ack, free=0) if held else ack)

    def _take_ack(self, ack: Ack, now: float, out: Output) -> None:
        sending = self._sending.get(ack.stream_id)
        if sending is None:
            self._counters.count(Reason.ACK_UNKNOWN_STREAM)
            return
        answer = sending.tx.on_ack(ack, now)
        self._peer.tx_stream(ack.stream_id).settle(answer.settled.wire_bytes)
        if self._awaited:
            self._report_acknowledged(sending.tx)
        self._resend(sending, answer, out)

    def _take_fin(self, fin: Fin, out: Output) -> None:
        answer = self._receiving_for(fin.stream_id).rx.on_fin(fin)
        if answer is not None:
            self._drop_receiving(fin.stream_id)
            self._peer.rx.pop(fin.stream_id, None)
            self._say([answer], out)

    def _take_reset(self, reset: Reset, out: Output) -> None:
        # docs/wire/profile.md: a stream id names one stream in each direction; the reason says which one is meant.
        sending = self._sending.get(reset.stream_id)
        if reset.by_receiver and sending is not None:
            sending.tx.on_reset(reset)
            self._update(sending, out)
        elif not reset.by_receiver and reset.stream_id in self._receiving:
            self._drop_receiving(reset.stream_id)
        else:
            self._counters.count(Reason.RELIABLE_UNKNOWN_STREAM)

    def _resend(self, sending: _Sending, resend: Resend, out: Output) -> None:
        self._say(resend.messages, out)
        for packet in resend.packets:
            link, stamp = self._peer.link, packet.stamp if self._peer.link.stamped else 0
            header = msgspec.structs.replace(
                sending.header,
                sequence=packet.sequence,
                event_count=packet.event_count,
                fragment_id=stamp & 0xFFFF,
                fragment_offset=stamp >> 16,
            )
            out.trains.append(link.seal(header, bytes(packet.payload)))
        self._update(sending, out)

    def _update(self, sending: _Sending, out: Output) -> None:
        """Remove a stream that failed or ended; what waits in the outbox continues in a new one."""
        tx = sending.tx
        self._time(tx)
        if tx.failed is not None:
            self._counters.add("fail", "reliable_stream")
            out.control.append(StreamFailed(self._peer.node_id, tx.stream_id, tx.failed))
            self._report_lost(tx.stream_id, tx.failed)
        if tx.failed is not None or tx.done:
            del self._sending[tx.stream_id]
        if tx.done:
            self._peer.tx.pop(tx.stream_id, None)

    def _report_acknowledged(self, tx: ReliableTx) -> None:
        waiting = self._awaited.pop(tx.stream_id, ())
        later = [(end, call) for end, call in waiting if end > tx.acknowledged_to]
        if later:
            self._awaited[tx.stream_id] = later
        for end, call in waiting:
            if end <= tx.acknowledged_to:
                call(None)

    def _report_lost(self, stream_id: int, why: str) -> None:
        for _, call in self._awaited.pop(stream_id, ()):
            call(why)

    def _time(self, tx: ReliableTx) -> None:
        """Update the retransmission deadline of a stream."""
        due = tx.next_timer()
        if due is None:
            self._timers.drop(tx.stream_id)
        elif self._timers.get(tx.stream_id) != due:
            self._timers.set(tx.stream_id, due)

    def _say(self, messages: Iterable[ReliableMessage], out: Output) -> None:
        for message in messages:
            self._peer.send_message(Subprotocol.RELIABLE, encode_reliable(message), out)
