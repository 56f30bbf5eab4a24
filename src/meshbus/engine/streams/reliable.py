"""The reliable streams with one peer (0x4D01), in both directions: who is told what, and when.

What a single stream does is engine/streams/retransmit.py for the sender and engine/streams/reorder.py for the receiver; this file
keeps them by stream id, sends what they want to say, and collects acknowledgements so that one is sent per batch.

Streams belong to the peer and outlive its sessions. A new session has to agree on 0x4D01 again; until then they wait,
so that nothing is delivered twice and a peer that came back as a plain one never sees the profile. When nothing is
agreed for `RESUME_S`, they are given up. Credit and plain streams are engine/streams/traffic.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from meshbus.engine.base.batch import Stamp
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import StreamFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import MAX_STREAMS, Peer
from meshbus.engine.streams.congestion import LOOPBACK_WINDOW, NETWORK_WINDOW
from meshbus.engine.streams.reorder import Budget, Payloads, ReliableRx
from meshbus.engine.streams.retransmit import ReliableTx, Resend, draw_start
from meshbus.errors import RemoteProtocolError
from meshbus.names.identity import Entropy
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
"""How long streams wait for the agreement of a new session: both sides announce again within 5 s, and ask for 3 s."""


class Ready(NamedTuple):
    """What a stream gives on, in order."""

    subprotocol_id: int
    stream_id: int
    origin_hash: int
    payloads: list[Payloads]
    stamp: Stamp = Stamp()


_NOTHING = Ready(Subprotocol.EVENTS, 0, 0, [])


class _Sending:
    """The sending half of a stream, with the pattern of its packets."""

    __slots__ = ("header", "tx")

    def __init__(self, tx: ReliableTx, header: Header) -> None:
        self.tx = tx
        self.header = header


class _Receiving:
    """The receiving half of a stream, with what its packets have in common."""

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
        """When each of them that waits for an answer wants to be asked again."""
        self._receiving: dict[int, _Receiving] = {}
        """The one used last is the last."""
        self._acks: Deadlines[int] = Deadlines()
        """When each of them that owes an acknowledgement must send it."""
        self._budget = Budget()
        self._resume_by: float | None = None
        """When streams that wait for an agreement are given up."""

    @property
    def agreed(self) -> bool:
        """Whether both sides negotiated reliable streams in this session."""
        return self._peer.uses(Subprotocol.RELIABLE)

    # ── sending ─────────────────────────────────────────────────────────────────────────────

    def room(self, stream_id: int) -> int | None:
        """Say how many packets a stream may send now; None when there is no agreement and no such stream."""
        sending = self._sending.get(stream_id)
        if not self.agreed:
            return None if sending is None else 0
        return self._start_window if sending is None else sending.tx.room()

    def prepare(self, header: Header, pub_seq: int | None, now: float, out: Output) -> int:
        """Say which event comes next on a stream, made on first use; gives its next sequence."""
        sending = self._sending.get(header.stream_id)
        if sending is None:
            sending = self._start(header)
        sending.header = header
        base = sending.tx.number(pub_seq, now)
        if base is not None:
            self._say([base], out)
        return sending.tx.next_sequence

    def sent(self, stream_id: int, first_sequence: int, part: Packed, now: float) -> None:
        """Keep packets that are being sent; `prepare` gave their first sequence."""
        tx = self._sending[stream_id].tx
        tx.sent(first_sequence, part, now)
        self._time(tx)

    def sent_one(self, stream_id: int, sequence: int, payload: bytes, now: float) -> None:
        """Keep a packet with one event that is being sent."""
        tx = self._sending[stream_id].tx
        tx.sent_one(sequence, payload, 1, now)
        self._time(tx)

    def finish(self, stream_id: int, now: float, out: Output) -> None:
        """End a stream when everything on it is acknowledged; then neither side keeps anything of it."""
        sending = self._sending.get(stream_id)
        if sending is not None:
            self._resend(sending, sending.tx.finish(now), out)

    def abandon(self, stream_id: int, out: Output) -> None:
        """End a stream now, as we were asked to; that is no failure."""
        sending = self._sending.pop(stream_id, None)
        if sending is not None:
            self._timers.drop(stream_id)
            self._peer.tx.pop(stream_id, None)
            if self.agreed:
                self._say(sending.tx.cancel().messages, out)

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    def receive(self, came: Ready, now: float) -> Ready:
        """Take in packets of a stream, as they came; gives what is to be delivered."""
        subprotocol_id, stream_id, origin_hash, (payloads,), stamp = came
        receiving = self._receiving_for(stream_id)
        if receiving.subprotocol_id is None:
            receiving.subprotocol_id, receiving.origin_hash = subprotocol_id, origin_hash
        elif receiving.subprotocol_id != subprotocol_id:
            self._counters.count(Reason.WRONG_STREAM, len(payloads))
            return _NOTHING
        receiving.stamp = stamp
        return self._taken(stream_id, receiving, receiving.rx.accept(payloads, now))

    def on_message(self, message: Buffer, now: float, out: Output) -> Ready:
        """Take in a message about a stream; gives what is to be delivered because of it."""
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
        """Tell the sender of a stream that there is room again, with the next `confirm`."""
        if stream_id in self._receiving:
            self._acks.set(stream_id, now)

    def confirm(self, now: float, out: Output) -> None:
        """Send the acknowledgements that are due."""
        if self.agreed:
            for stream_id in self._acks.over(now):
                ack = self._receiving[stream_id].rx.make_ack()
                stream = self._peer.rx.get(stream_id)
                held = stream is not None and stream.held
                self._say([msgspec.structs.replace(ack, free=0) if held else ack], out)

    # ── time and sessions ───────────────────────────────────────────────────────────────────

    def next_timer(self) -> float | None:
        """Say when `tick` has something to do."""
        times = [self._timers.next(), self._acks.next()] if self.agreed else [self._resume_by]
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send again and confirm what is due."""
        if self.agreed:
            for stream_id in self._timers.over(now):
                sending = self._sending[stream_id]
                self._resend(sending, sending.tx.due(now), out)
            self.confirm(now, out)

    def renew(self, now: float) -> None:
        """Go on in a new session, whose credit starts anew, as soon as it is agreed."""
        for stream_id, sending in self._sending.items():
            sending.tx.renew(now)
            self._time(sending.tx)
            self._peer.tx_stream(stream_id).take(0, sending.tx.unacked_bytes)
        self._resume_by = None
        self._wait(now)

    def agreement_changed(self, now: float) -> None:
        """Take note of what was negotiated: streams go on, or wait."""
        if self.agreed:
            self._resume_by = None
        else:
            self._wait(now)

    def overdue(self, now: float, out: Output) -> bool:
        """Give all streams up when they waited too long for an agreement; says whether they did."""
        if self._resume_by is None or now < self._resume_by:
            return False
        self._resume_by = None
        for sending in list(self._sending.values()):
            sending.tx.cancel()  # the peer is not told: it does not speak this
            self._update(sending, out)
        self.close()
        return True

    def close(self) -> None:
        """Forget what arrived and waits."""
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
                del self._sending[idle]  # when it is used again, it starts anew
        tx = ReliableTx(
            header.stream_id,
            self._peer.node_id,
            first_sequence=draw_start(self._entropy) | FIRST_SEQUENCE,
            counters=self._counters,
            window=self._start_window,
        )
        sending = self._sending[header.stream_id] = _Sending(tx, header)
        return sending

    def _receiving_for(self, stream_id: int) -> _Receiving:
        receiving = self._receiving.pop(stream_id, None)
        if receiving is None:
            if len(self._receiving) >= MAX_STREAMS:
                self._drop_receiving(next(iter(self._receiving)))
                self._counters.count(Reason.TOO_MANY_STREAMS)
            receiving = _Receiving(ReliableRx(stream_id, counters=self._counters, budget=self._budget))
        self._receiving[stream_id] = receiving
        return receiving

    def _drop_receiving(self, stream_id: int) -> None:
        self._receiving.pop(stream_id).rx.close()
        self._acks.drop(stream_id)

    def _taken(self, stream_id: int, receiving: _Receiving, ready: list[Payloads]) -> Ready:
        """Note what a stream gave on, and whether it has to say so."""
        due = receiving.rx.next_timer()
        if due is not None:
            self._acks.set(stream_id, due)
        for payloads in ready:
            self._peer.rx_stream(stream_id).absorb(len(payloads), int(payloads.lengths.sum()))
        subprotocol_id = receiving.subprotocol_id or Subprotocol.EVENTS
        return Ready(subprotocol_id, stream_id, receiving.origin_hash, ready, receiving.stamp)

    def _take_ack(self, ack: Ack, now: float, out: Output) -> None:
        sending = self._sending.get(ack.stream_id)
        if sending is None:
            self._counters.count(Reason.ACK_UNKNOWN_STREAM)
            return
        answer = sending.tx.on_ack(ack, now)
        self._peer.tx_stream(ack.stream_id).settle(answer.settled.wire_bytes)
        self._resend(sending, answer, out)

    def _take_fin(self, fin: Fin, out: Output) -> None:
        answer = self._receiving_for(fin.stream_id).rx.on_fin(fin)
        if answer is not None:
            self._drop_receiving(fin.stream_id)
            self._peer.rx.pop(fin.stream_id, None)
            self._say([answer], out)

    def _take_reset(self, reset: Reset, out: Output) -> None:
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
            header = msgspec.structs.replace(sending.header, sequence=packet.sequence, event_count=packet.event_count)
            out.trains.append(self._peer.link.seal(header, bytes(packet.payload)))
        self._update(sending, out)

    def _update(self, sending: _Sending, out: Output) -> None:
        """Forget a stream that failed or ended: what waits goes on in a new one."""
        tx = sending.tx
        self._time(tx)
        if tx.failed is not None:
            self._counters.add("fail", "reliable_stream")
            out.control.append(StreamFailed(self._peer.node_id, tx.stream_id, tx.failed))
        if tx.failed is not None or tx.done:
            del self._sending[tx.stream_id]
        if tx.done:
            self._peer.tx.pop(tx.stream_id, None)

    def _time(self, tx: ReliableTx) -> None:
        """Keep the timer of a stream."""
        due = tx.next_timer()
        if due is None:
            self._timers.drop(tx.stream_id)
        elif self._timers.get(tx.stream_id) != due:
            self._timers.set(tx.stream_id, due)

    def _say(self, messages: Iterable[ReliableMessage], out: Output) -> None:
        for message in messages:
            self._peer.send_message(Subprotocol.RELIABLE, encode_reliable(message), out)
