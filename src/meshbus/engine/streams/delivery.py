"""Delivery: passes opened packets through their streams and turns them into event batches for the application.

    plain packet        counted for a grant, and delivered as it arrived
    reliable packet     put in order by its stream (engine/streams/reliable.py); dropped if 0x4D01 was not negotiated
    packet with the flag from a net-mesh peer     put in order too, unless the peer is of a level that never repeats
                        (engine/streams/ordering.py), or it is a publication
    message on a reliable stream     given to the service of its subprotocol, in order
    part of a large event on a reliable stream     put together (engine/streams/large.py), then as the two above
    publication on a channel without a subscription     dropped and counted

If a publication is on an unknown channel, but this node follows a prefix of its publisher, the channel's name may still
be on its way. Its packets are then dropped without an acknowledgement: if they are reliable they are sent again, and by
then the name is known.

Packets arrive from engine/receive/reception.py in three forms: one packet, a run of one stream, and a mixed batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from meshbus.engine.base.batch import EventColumns, SingleEvent, Stamp
from meshbus.engine.base.grouping import group_rows
from meshbus.engine.base.packets import Output
from meshbus.engine.base.runscan import Run
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.session.stream import RxStream
from meshbus.engine.session.work import STREAM_US
from meshbus.engine.streams.joined import JoinedChannels
from meshbus.engine.streams.large import Large, Whole
from meshbus.engine.streams.ordering import is_ordered
from meshbus.engine.streams.reliable import Ready
from meshbus.engine.streams.reorder import Payloads
from meshbus.engine.streams.streams import Streams
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.reason import Reason
from meshbus.wire.constants import FRAME_PREFIX_BYTES, HEADER_BYTES, PACKET_COST, Flags, Subprotocol
from meshbus.wire.frames import decode_frames, unpack_frames
from meshbus.wire.header import HEADER_DTYPE, Header
from meshbus.wire.messages.large import MAX_MESSAGE
from meshbus.wire.messages.reliable import FIRST_SEQUENCE
from meshbus.wire.stamp import stamps_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RELIABLE, _START = int(Flags.RELIABLE), int(Flags.START)
_U32, _U64, _I64 = np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(np.int64)


class Kind(IntEnum):
    """How the packets of a stream are treated."""

    PLAIN = 0
    RELIABLE = 1
    """Of a reliable stream of the profile."""
    ORDERED = 2
    """Of a reliable stream of a net-mesh peer that may repeat packets."""
    STARTING = 3
    """As ORDERED, with the start flag."""


class Delivery(Service):
    """Turns opened packets into event batches; handles messages about reliable streams (0x4D01)."""

    def __init__(self, context: Context, streams: Streams, large: Large) -> None:
        self.joined = JoinedChannels()
        """The channels that this node subscribed to."""
        self._streams = streams
        self._large = large
        self._services = context.services
        self._served = frozenset(row.id for row in context.services.table if row.reliable)
        """Subprotocols whose messages are carried on reliable streams; their services receive them from here."""
        self._served_large = frozenset(row.id for row in context.services.table if row.large)
        self._counters = context.counters
        self._work = context.work
        self._wall = context.wall

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle a message about a reliable stream, and deliver what can be delivered because of it."""
        ready = self._streams.traffic_of(peer).on_reliable(message, now, out)
        if ready.payloads:
            self._deliver(peer, ready, now, out)

    def received(self, now: float, out: Output) -> None:
        """Deliver what messages about streams, or time, released."""
        released = self._streams.released
        if released:  # seldom, and this is asked after every packet
            taken = released[:]
            released.clear()
            for peer, (ready, lost) in taken:
                self._deliver(peer, ready, now, out, lost)

    def tick(self, now: float, out: Output) -> None:
        """Deliver what waited too long for an earlier packet."""
        self.received(now, out)

    # ── packets ─────────────────────────────────────────────────────────────────────────────

    def take(
        self,
        peer: Peer,
        subprotocol_id: int,
        headers: NDArray[np.void],
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        now: float,
        out: Output,
    ) -> None:
        """Pass packets of any streams through them, and deliver what the streams release."""
        # docs/wire/profile.md: a plain stream never gets to these sequences, so they tell the two kinds apart even
        # while only one side has agreed.
        streams, flags = headers["stream_id"], headers["flags"]
        flagged = flags & _RELIABLE != 0
        kinds = (flagged & (headers["sequence"] >= FIRST_SEQUENCE)).astype(np.uint8)
        if subprotocol_id == Subprotocol.EVENTS and is_ordered(peer):
            kinds[flagged & (kinds == 0)] = Kind.ORDERED
            kinds[flagged & (kinds == Kind.ORDERED) & (flags & _START != 0)] = Kind.STARTING
        for rows in group_rows(streams, kinds):
            stream_id, kind = streams.item(rows[0]), Kind(kinds.item(rows[0]))
            origin_hash = int(headers["origin_hash"][rows[0]])
            payloads = Payloads(
                headers["sequence"][rows],
                data,
                starts[rows],
                headers["payload_len"][rows].astype(np.int64),
                headers["event_count"][rows].astype(np.int64),
                stamps=_stamps_of(peer, headers[rows].tobytes()),
            )
            stamp = Stamp.of_row(headers[rows[-1]].tobytes())
            came = Ready(subprotocol_id, stream_id, origin_hash, [payloads], stamp)
            self._take_stream(peer, came, int(payloads.lengths.sum()), kind, now, out)

    def take_run(  # hot: bench_stream
        self, peer: Peer, run: Run, data: NDArray[np.uint8], now: float, out: Output
    ) -> None:
        """Pass the packets of a run through their stream, and deliver what it releases."""
        kind = _kind_of(peer, run.flags, run.sequences.item(0), run.subprotocol_id)
        reliable = kind is Kind.RELIABLE
        if run.flags & _RELIABLE and not run.sequences_follow:
            # A run may hold both kinds of packet if an agreement took effect meanwhile: then separate them.
            above = run.sequences >= FIRST_SEQUENCE
            if not (above == reliable).all():
                headers = np.frombuffer(run.rows, HEADER_DTYPE)
                self.take(peer, run.subprotocol_id, headers, data, run.places, now, out)
                return
        stamps = _stamps_of(peer, run.rows)
        payloads = Payloads(
            run.sequences, data, run.places, run.lengths, run.counts, stamps=stamps, follow=run.sequences_follow
        )
        stamp = Stamp.of_row(run.rows[-HEADER_BYTES:].tobytes())
        ready = Ready(run.subprotocol_id, run.stream_id, run.origin_hash, [payloads], stamp)
        self._take_stream(peer, ready, run.payload_bytes, kind, now, out)

    def take_one(  # hot: bench_publish
        self, peer: Peer, header: Header, payload: bytes, now: float, out: Output
    ) -> None:
        """Pass one packet through its stream, and deliver what it releases."""
        stream_id, flags, sequence = header.stream_id, header.flags, header.sequence
        size, end = len(payload), FRAME_PREFIX_BYTES + int.from_bytes(payload[:FRAME_PREFIX_BYTES], "little")
        channel = self.joined.channel_of(peer.node_id, stream_id)
        # The common case, one event of a plain subscription, becomes a batch without the steps of the general path.
        whole = header.event_count == 1 and FRAME_PREFIX_BYTES < end <= size
        if channel is None or not whole or flags & _RELIABLE or header.subprotocol_id:
            self._take_odd(peer, header, payload, now, out)
            return
        traffic, link, clock = self._streams.traffic_of(peer), peer.link, peer.clock
        lost = traffic.consume_one(stream_id, sequence, size, now)
        if lost:
            self._count_lost(peer, peer.rx_stream(stream_id), lost, size)
        received_ns = self._wall(now)
        out.events.append(
            SingleEvent(
                event=payload[FRAME_PREFIX_BYTES:end],
                publisher=peer.node_id,
                session_id=link.session_id,
                stream_id=stream_id,
                channel=channel,
                origin_hash=header.origin_hash,
                sequence=sequence,
                stamp=Stamp(flags, header.hop_ttl, header.hop_count, header.subnet_id),
                received_ns=received_ns,
                lost=lost,
                packet_stamp=header.fragment_id | header.fragment_offset << 16 if link.stamped else None,
                publisher_clock_ns=None if clock is None else received_ns + clock.offset_ns,
            )
        )

    def _take_odd(self, peer: Peer, header: Header, payload: bytes, now: float, out: Output) -> None:
        """Pass one packet that is not a single plain event through its stream, as a batch of one."""
        size, stamps = len(payload), None
        if peer.link.stamped:
            stamps = np.array((header.fragment_id | header.fragment_offset << 16,), _U32)
        sequences, start = np.array((header.sequence,), _U64), np.zeros(1, _I64)
        length, counts = np.array((size,), _I64), np.array((header.event_count,), _I64)
        payloads = Payloads(sequences, np.frombuffer(payload, np.uint8), start, length, counts, stamps=stamps)
        kind = _kind_of(peer, header.flags, header.sequence, header.subprotocol_id)
        came = Ready(header.subprotocol_id, header.stream_id, header.origin_hash, [payloads], Stamp.of(header))
        self._take_stream(peer, came, size, kind, now, out)

    def refusals(self, peer: Peer, subprotocol_id: int, headers: NDArray[np.void]) -> NDArray[np.uint8]:
        """Return for the flight recorder why each packet would be dropped now, by code of policy/reason.py, or 0."""
        streams, origins = headers["stream_id"], headers["origin_hash"]
        # Few streams, many packets: ask once per stream.
        reasons = np.zeros(len(headers), np.uint8)
        for rows in group_rows(streams, origins):
            if self._is_unasked(peer, subprotocol_id, streams.item(rows[0]), origins.item(rows[0])):
                reasons[rows] = Reason.NOT_SUBSCRIBED.code
        if not peer.uses(Subprotocol.RELIABLE):
            reliable = (headers["sequence"] >= FIRST_SEQUENCE) & (headers["flags"] & _RELIABLE != 0)
            reasons[reliable] = Reason.NOT_NEGOTIATED.code
        return reasons

    def owe(self, peer: Peer, headers: NDArray[np.void], now: float) -> None:
        """Count dropped packets for which a 0.23 sender still expects a grant (transport.md §14)."""
        traffic = self._streams.traffic_of(peer)
        for stream_id, size in zip(headers["stream_id"].tolist(), headers["payload_len"].tolist(), strict=True):
            traffic.consumed(peer.rx_stream(stream_id), 1, size, now)

    def _take_stream(self, peer: Peer, came: Ready, nbytes: int, kind: Kind, now: float, out: Output) -> None:
        """Pass packets of one stream through it, and deliver what it releases."""
        subprotocol_id, stream_id, origin_hash, (payloads,), _ = came
        reliable = kind is Kind.RELIABLE
        if reliable and not peer.uses(Subprotocol.RELIABLE):
            self._counters.count(Reason.NOT_NEGOTIATED, len(payloads))
            self._services.not_agreed(peer, now, out)
            return
        if self._is_unasked(peer, subprotocol_id, stream_id, origin_hash) and self._services.unknown_stream(
            peer.node_id, now
        ):
            self._counters.count(Reason.UNNAMED, int(payloads.counts.sum()))
            # A 0.23 sender spends credit even on packets that are dropped here, so they are granted.
            if not reliable:
                self._streams.traffic_of(peer).consumed(peer.rx_stream(stream_id), len(payloads), nbytes, now)
            return
        if self._is_beyond_share(peer, came, reliable, now):
            return
        traffic = self._streams.traffic_of(peer)
        publication = bool(stream_id & PUBLISH_STREAM_BIT and origin_hash)
        if reliable:
            if not payloads.counts.all():
                taken = self._large.admitted(peer, payloads)
                if not taken:
                    return
                if taken < len(payloads):
                    came = came._replace(payloads=[payloads[:taken]])
            came = traffic.reliable.receive(came, now)
            lost = 0
        elif kind is not Kind.PLAIN and not publication:
            # A release that a message caused comes before what these packets release.
            self.received(now, out)
            came, lost = traffic.order(came, now, start=kind is Kind.STARTING)
        else:
            stream = peer.rx_stream(stream_id)
            # dialects.md §3.2, rule 4: publications are never repeated, so they are acknowledged and not waited for.
            if kind is not Kind.PLAIN:
                stream.acknowledges = True
            traffic.consumed(stream, len(payloads), nbytes, now)
            sequences = payloads.sequences
            # The usual case saves two passes over the sequences.
            ends = (sequences[0], sequences[-1]) if payloads.follow else (sequences.min(), sequences.max())
            lost = stream.observe(int(ends[0]), int(ends[1]), len(sequences))
            if lost:
                self._count_lost(peer, stream, lost, nbytes // len(sequences))
        self._deliver(peer, came, now, out, lost)

    def _deliver(self, peer: Peer, ready: Ready, now: float, out: Output, lost: int = 0) -> None:
        subprotocol_id, stream_id, origin_hash, runs, stamp = ready
        if subprotocol_id in self._served and peer.uses(subprotocol_id):
            service = self._services.by_subprotocol[subprotocol_id]
            limit = MAX_MESSAGE if subprotocol_id in self._served_large else 0
            for piece in self._pieces(peer, ready, limit, now, out):
                for message in (piece.data.data,) if isinstance(piece, Whole) else _messages(piece):
                    service.receive(peer, message, now, out)
            return
        if self._is_unasked(peer, subprotocol_id, stream_id, origin_hash):
            self._counters.count(Reason.NOT_SUBSCRIBED, sum(int(payloads.counts.sum()) for payloads in runs))
            return
        plain = subprotocol_id == Subprotocol.EVENTS
        channel = self.joined.channel_of(peer.node_id, stream_id) if plain else None
        received_ns = self._wall(now)
        limit = 0 if channel is None else self._large.limit_of(channel)
        for piece in self._pieces(peer, ready, limit, now, out):
            if isinstance(piece, Whole):
                out.events.append(_large_batch(peer, ready, channel, piece, received_ns))
                continue
            offsets, events, found = decode_frames(piece.data, piece.starts, piece.lengths, piece.counts)
            if len(offsets) == 1:
                continue
            out.events.append(
                EventColumns(
                    offsets=offsets,
                    data=events,
                    publisher=peer.node_id,
                    session_id=peer.link.session_id,
                    stream_id=stream_id,
                    channel=channel,
                    subprotocol_id=subprotocol_id,
                    origin_hash=origin_hash,
                    packet_seqs=piece.sequences,
                    packet_events=found,
                    pub_seq=piece.pub_seq,
                    stamp=stamp,
                    received_ns=received_ns,
                    lost=lost,
                    packet_stamps=piece.stamps,
                    publisher_clock_ns=_clock_of(peer, received_ns),
                )
            )
            lost = 0

    def _pieces(
        self, peer: Peer, ready: Ready, limit: int, now: float, out: Output
    ) -> Iterable[Payloads | Whole]:  # hot: bench_stream
        """Yield the runs of packets with events, and the large events that parts among them complete."""
        for payloads in ready.payloads:
            # Only packets of reliable streams count no event; in all others there is nothing to put together.
            if payloads.counts.all() or payloads.sequences.item(0) < FIRST_SEQUENCE:
                yield payloads
            else:
                yield from self._large.join(peer, ready.stream_id, payloads, limit, now, out)

    def _is_beyond_share(self, peer: Peer, came: Ready, reliable: bool, now: float) -> bool:
        """Return whether a peer has used up its share of this node's time; then its packets are dropped and counted.

        Events on the channels that this node subscribed to, and on the stream of direct events, are always handled.
        Reliable packets are not acknowledged then, so they come again.
        """
        subprotocol_id, stream_id, _, (payloads,), _ = came
        if reliable and subprotocol_id in self._served:
            # A part counts no message, and costs as much as one.
            return not self._work.admits(peer.work, subprotocol_id, int(payloads.counts.clip(1).sum()), now)
        if self.joined.channel_of(peer.node_id, stream_id) is not None or stream_id == Subprotocol.EVENTS:
            return False
        if peer.work.afford(STREAM_US, now):
            return False
        self._counters.count(Reason.PEER_SHARE, int(payloads.counts.sum()))
        return True

    def _count_lost(self, peer: Peer, stream: RxStream, lost: int, size: int) -> None:
        """Count packets that are missing on a best-effort stream, or came late if `lost` is negative.

        `size` is that of a packet around the gap.
        """
        if not peer.uses(Subprotocol.RELIABLE):
            stream.forgive(lost, size + PACKET_COST)
        self._counters.add("loss", "missing_packets" if lost > 0 else "late_packets", abs(lost))

    def _is_unasked(self, peer: Peer, subprotocol_id: int, stream_id: int, origin_hash: int) -> bool:
        """Return whether packets belong to a publication that this node did not subscribe to."""
        # transport.md §18: channel_hash may be stale, so a publication is known by its stream id and origin_hash.
        publication = stream_id & PUBLISH_STREAM_BIT and origin_hash and subprotocol_id == Subprotocol.EVENTS
        return bool(publication) and self.joined.channel_of(peer.node_id, stream_id) is None


def _kind_of(peer: Peer, flags: int, sequence: int, subprotocol_id: int) -> Kind:  # hot: bench_publish
    """Return how packets with these flags and this first sequence are treated."""
    if not flags & _RELIABLE:
        return Kind.PLAIN
    if sequence >= FIRST_SEQUENCE:
        return Kind.RELIABLE
    if subprotocol_id != Subprotocol.EVENTS or not is_ordered(peer):
        return Kind.PLAIN
    return Kind.STARTING if flags & _START else Kind.ORDERED


def _large_batch(peer: Peer, ready: Ready, channel: ChannelName | None, event: Whole, received_ns: int) -> EventColumns:
    """Return the batch of one large event; it has the memory that its parts were written to."""
    return EventColumns(
        offsets=np.array((0, len(event.data)), np.int64),
        data=event.data,
        publisher=peer.node_id,
        session_id=peer.link.session_id,
        stream_id=ready.stream_id,
        channel=channel,
        origin_hash=ready.origin_hash,
        packet_seqs=np.array((event.sequence,), np.uint64),
        packet_events=np.ones(1, np.int64),
        pub_seq=event.pub_seq,
        stamp=ready.stamp,
        received_ns=received_ns,
        packet_stamps=np.array((event.stamp,), np.uint32) if peer.link.stamped else None,
        publisher_clock_ns=_clock_of(peer, received_ns),
    )


def _stamps_of(peer: Peer, rows: bytes | NDArray[np.uint8]) -> NDArray[np.uint32] | None:
    """Return the stamps of packets by their headers; None from a peer that writes none."""
    return stamps_of(rows) if peer.link.stamped else None


def _clock_of(peer: Peer, wall_ns: int) -> int | None:
    """Return a peer's clock at a time of ours; None if it was not measured yet."""
    return None if peer.clock is None else wall_ns + peer.clock.offset_ns


def _messages(payloads: Payloads) -> Iterator[memoryview]:
    view = payloads.data.data
    for start, size, count in zip(
        payloads.starts.tolist(), payloads.lengths.tolist(), payloads.counts.tolist(), strict=True
    ):
        yield from unpack_frames(view[start : start + size], count)
