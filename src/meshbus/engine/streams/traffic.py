"""All streams with one peer: what goes out under credit and acknowledgement, what comes in and how it is confirmed.

A stream is reliable when its packets carry the RELIABLE flag and both sides negotiated 0x4D01 (engine/streams/reliable.py);
acknowledgements give the credit back then. Otherwise it is plain: packets are delivered as they come and grants give the
credit back. One stream may be both at once; the sequence tells its packets apart. Confirmations are collected and sent
once per batch of packets (`confirm`). Traffic belongs to the peer and outlives its sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.streams.outbox import Leg, Load, Outbox
from meshbus.engine.streams.reliable import Ready, Reliable
from meshbus.errors import Backpressure, RemoteProtocolError
from meshbus.names.identity import Entropy
from meshbus.policy.reason import Reason
from meshbus.wire.constants import CONTROL_STREAM, FRAME_PREFIX_BYTES, PACKET_COST, Flags, Subprotocol
from meshbus.wire.frames import Packed, columns_of, encode_frames, pack_frames
from meshbus.wire.header import Buffer, Header
from meshbus.wire.messages.window import Grant, decode_grant, encode_grant

_RELIABLE = int(Flags.RELIABLE)
_UNLIMITED = 1 << 30
MAX_GRANTS = 256
"""Grants in one packet."""
MAX_MESSAGES = 4096
"""Messages that may wait for a place on the reliable stream of their subprotocol."""


class Traffic:
    """The streams of one peer."""

    def __init__(self, peer: Peer, *, counters: Counters, entropy: Entropy, loopback: bool) -> None:
        self.peer = peer
        self.outbox = Outbox()
        self.reliable = Reliable(peer, counters=counters, entropy=entropy, loopback=loopback)
        self._counters = counters
        self._grants: Deadlines[int] = Deadlines()
        """When each plain stream that owes a grant must send it."""
        self._ending: dict[int, None] = {}
        """Reliable streams that end when nothing waits for them any more."""
        self._now = 0.0

    # ── sending ─────────────────────────────────────────────────────────────────────────────

    def send(self, leg: Leg, now: float, out: Output) -> None:
        """Send a leg, or as much of it as credit allows; the rest waits."""
        self.outbox.add(leg)
        self.pump(now, out)

    def admits(self, header: Header, payload_bytes: int) -> bool:
        """Say whether a single packet can go at once: nothing waits, and there is credit and room for it."""
        if len(self.outbox) or not self.peer.tx_stream(header.stream_id).admits(payload_bytes + PACKET_COST):
            return False
        return not header.flags & _RELIABLE or self._room(header) > 0

    def send_one(  # hot: bench_publish
        self, header: Header, payload: bytes, pub_seq: int, now: float, out: Output
    ) -> None:
        """Send one event as a packet of its own; `admits` was asked."""
        stream_id = header.stream_id
        sequence = self.peer.tx_stream(stream_id).take(1, len(payload))
        reliable = self._is_reliable(header)
        if reliable:
            sequence = self.reliable.prepare(header, pub_seq, now, out)
        out.trains.append(self.peer.link.seal_one(header, payload, sequence))
        if reliable:
            self.reliable.sent_one(stream_id, sequence, payload, now)

    def send_reliable(self, subprotocol_id: int, message: bytes, now: float, out: Output) -> None:
        """Send one message on the reliable stream of its subprotocol; it is repeated until it arrives.

        Raises Backpressure when too many wait already.
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
        """Send messages on a reliable stream, a packet each; `done` is told when the last one has gone out."""
        header = Header(flags=_RELIABLE, subprotocol_id=subprotocol_id, stream_id=stream_id)
        self.send(Leg(Load(header, encode_frames(*columns_of(messages), max_payload=1)), inf, done), now, out)

    def finish(self, stream_id: int, now: float, out: Output) -> None:
        """End a reliable stream as soon as everything that waits for it was sent and has arrived."""
        self._ending[stream_id] = None
        self._end_streams(now, out)

    def withdraw(self, stream_id: int) -> None:
        """Drop what waits for a stream; what is on the way still arrives."""
        self.outbox.clear(lambda leg: leg.load.header.stream_id == stream_id)

    def abandon(self, stream_id: int, out: Output) -> None:
        """End a reliable stream at once; what waits and what is on the way is dropped."""
        self._ending.pop(stream_id, None)
        self.withdraw(stream_id)
        self.reliable.abandon(stream_id, out)

    def pump(self, now: float, out: Output) -> None:
        """Send what may be sent now."""
        if len(self.outbox):
            self._now = now
            self.outbox.pump(self.peer, out, self)
            if self._ending:
                self._end_streams(now, out)

    def room(self, leg: Leg) -> int:
        """Say how many packets of a leg its stream may send now, beside its credit."""
        return self._room(leg.load.header)

    def _room(self, header: Header) -> int:
        if not header.flags & _RELIABLE:
            return _UNLIMITED
        room = self.reliable.room(header.stream_id)
        if room is None:
            # Events go as a plain peer would get them; messages of the profile wait.
            return _UNLIMITED if header.subprotocol_id == Subprotocol.EVENTS else 0
        return room

    def stalled(self, _stream_id: int) -> None:
        """Count that a stream ran out of credit."""
        self._counters.add("stall", "credit")

    def prepare(self, leg: Leg, out: Output) -> int | None:
        """Tell a reliable stream where the numbers of the events go on; gives its next sequence."""
        load = leg.load
        if not self._is_reliable(load.header):
            return None
        number = None if load.pub_seq is None else load.pub_seq + int(load.packed.counts[: leg.sent].sum())
        return self.reliable.prepare(load.header, number, self._now, out)

    def sent(self, leg: Leg, first_sequence: int, part: Packed) -> None:
        """Keep what a reliable stream may have to send again, and give what is still to go its time."""
        self.outbox.renew(leg, self._now)
        header = leg.load.header
        if self._is_reliable(header):
            self.reliable.sent(header.stream_id, first_sequence, part, self._now)

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    def consumed(self, stream_id: int, packets: int, payload_bytes: int, now: float) -> None:
        """Count packets of a plain stream, which cost their sender credit."""
        stream = self.peer.rx_stream(stream_id)
        stream.consume(packets, payload_bytes, now)
        if stream.grant_due is not None and not stream.held:
            self._grants.set(stream_id, stream.grant_due)

    def hold(self, stream_id: int, now: float, *, held: bool) -> None:
        """Stop confirming a stream while the application cannot take more, or go on."""
        stream = self.peer.rx_stream(stream_id)
        released = stream.held and not held
        stream.held = held
        if released:
            self.reliable.release(stream_id, now)
            if stream.grant_due is not None:
                stream.grant_due = now
                self._grants.set(stream_id, now)

    def on_grant(self, message: Buffer, now: float, out: Output) -> None:
        """Take in a credit grant."""
        try:
            grant = decode_grant(message)
        except RemoteProtocolError:
            self._counters.count(Reason.GRANT_MALFORMED)
            return
        stream = self.peer.tx.get(grant.stream_id)
        if stream is None:
            self._counters.count(Reason.GRANT_UNKNOWN_STREAM)
            return
        if grant.total_consumed > stream.sent:
            self._counters.count(Reason.GRANT_EXCESS)  # what goes beyond; all that was sent may have arrived
        if stream.grant(grant.total_consumed):
            self.pump(now, out)

    def on_reliable(self, message: Buffer, now: float, out: Output) -> Ready:
        """Take in a message about a reliable stream; gives what is to be delivered because of it."""
        ready = self.reliable.on_message(message, now, out)
        self.pump(now, out)
        return ready

    def confirm(self, now: float, out: Output) -> None:
        """Send the acknowledgements and grants that are due."""
        self.reliable.confirm(now, out)
        due = [stream_id for stream_id in self._grants.over(now) if self._owes(stream_id)]
        for start in range(0, len(due), MAX_GRANTS):
            self._send_grants(due[start : start + MAX_GRANTS], out)

    # ── time and sessions ───────────────────────────────────────────────────────────────────

    def next_timer(self) -> float | None:
        """Say when `tick` has something to do."""
        times = (self.outbox.next_timer(), self.reliable.next_timer(), self._grants.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send again, give up and confirm what is due."""
        self.outbox.expire(now)
        if self.reliable.overdue(now, out):
            self.outbox.clear(lambda leg: leg.load.header.subprotocol_id != Subprotocol.EVENTS)
        self.reliable.tick(now, out)
        self.confirm(now, out)
        self.pump(now, out)

    def renew(self, now: float) -> None:
        """Go on in a new session."""
        self.reliable.renew(now)

    def agreement_changed(self, now: float, out: Output) -> None:
        """Take note of what was negotiated with the peer."""
        self.reliable.agreement_changed(now)
        self.tick(now, out)

    def close(self) -> None:
        """End everything that waits: the peer is gone."""
        self.outbox.clear()
        self.reliable.close()

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _is_reliable(self, header: Header) -> bool:
        return bool(header.flags & _RELIABLE) and self.reliable.agreed

    def _end_streams(self, now: float, out: Output) -> None:
        for stream_id in [stream_id for stream_id in self._ending if not self.outbox.waiting(stream_id)]:
            del self._ending[stream_id]
            self.reliable.finish(stream_id, now, out)

    def _owes(self, stream_id: int) -> bool:
        """Say whether a grant may go out: not for a stream that is held, forgotten or of an earlier session."""
        stream = self.peer.rx.get(stream_id)
        return stream is not None and stream.grant_due is not None and not stream.held

    def _send_grants(self, stream_ids: list[int], out: Output) -> None:
        grants = [
            encode_grant(Grant(stream_id=stream_id, total_consumed=self.peer.rx_stream(stream_id).granting()))
            for stream_id in stream_ids
        ]
        stream = self.peer.tx_stream(CONTROL_STREAM)
        header = Header(
            subprotocol_id=Subprotocol.STREAM_WINDOW,
            stream_id=CONTROL_STREAM,
            sequence=stream.next_sequence,
            event_count=len(grants),
        )
        stream.next_sequence += 1
        out.trains.append(self.peer.link.seal(header, pack_frames(grants)))


def _forget(_leg: Leg, _arrived: bool) -> None:
    """End a leg whose outcome nobody waits for."""
