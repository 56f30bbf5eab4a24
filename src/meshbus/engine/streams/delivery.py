"""Events on their way in: from opened packets through their streams to batches for the application.

Owns the traffic with every peer, and its time: what needs to be confirmed after a batch, and who is due next. Messages
that travel on a reliable stream come out of it in order and are handed to `serve` instead of the application. Packets
of a publication that we did not ask for are dropped and counted. One that belongs to a prefix we follow, but whose name
we were not told yet, is not even acknowledged: if it is reliable it comes again, and then its name is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.engine.base.batch import EventBatch, Stamp
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.packets import Output
from meshbus.engine.base.runscan import Run
from meshbus.engine.session.peer import Peer
from meshbus.engine.streams.joined import JoinedChannels
from meshbus.engine.streams.reliable import Ready
from meshbus.engine.streams.reorder import Payloads
from meshbus.engine.streams.traffic import Traffic
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.names.identity import Entropy
from meshbus.policy.reason import Reason
from meshbus.wire.constants import FRAME_PREFIX_BYTES, HEADER_BYTES, Flags, Subprotocol
from meshbus.wire.frames import decode_frames, unpack_frames
from meshbus.wire.header import HEADER_DTYPE, Header
from meshbus.wire.messages.reliable import FIRST_SEQUENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RELIABLE = int(Flags.RELIABLE)


class Hooks(msgspec.Struct, frozen=True):
    """What the delivery asks others."""

    serve: Callable[[Peer, int, memoryview, float, Output], None]
    """Takes one message of a subprotocol that travels on a reliable stream."""
    not_agreed: Callable[[Peer, float, Output], None]
    """Is told that a peer uses reliable streams, which were not negotiated."""
    expects_name: Callable[[int, float], bool]
    """Says whether a publisher still owes us the names of channels, and asks it for them."""


class Delivery:
    """The streams of all peers, as far as they bring events."""

    def __init__(
        self,
        *,
        joined: JoinedChannels,
        counters: Counters,
        entropy: Entropy,
        wall: Callable[[float], int],
        loopback: bool,
        served: frozenset[int],
        hooks: Hooks,
    ) -> None:
        """Set up; `served` are the subprotocols whose messages travel on a reliable stream."""
        self._joined = joined
        self._counters = counters
        self._entropy = entropy
        self._wall = wall
        self._loopback = loopback
        self._served = served
        self._hooks = hooks
        self._traffic: dict[int, Traffic] = {}
        self._touched: dict[int, Traffic] = {}
        """Where something may have changed."""
        self._due: Deadlines[int] = Deadlines()

    def traffic_of(self, peer: Peer) -> Traffic:
        """Give the traffic with a peer, made on first use, to do something with it."""
        traffic = self._traffic.get(peer.node_id)
        if traffic is None:
            traffic = self._traffic[peer.node_id] = Traffic(
                peer, counters=self._counters, entropy=self._entropy, loopback=self._loopback
            )
        self._touched[peer.node_id] = traffic
        return traffic

    def drop(self, node_id: int) -> None:
        """End the traffic with a peer that is gone."""
        self._touched.pop(node_id, None)
        self._due.drop(node_id)
        traffic = self._traffic.pop(node_id, None)
        if traffic is not None:
            traffic.close()

    def send_reliable(self, peer: Peer, subprotocol_id: int, message: bytes, now: float, out: Output, /) -> None:
        """Send one message on the reliable stream of its subprotocol; raises Backpressure when too many wait."""
        self.traffic_of(peer).send_reliable(subprotocol_id, message, now, out)

    def hold(self, node_id: int, stream_id: int, now: float, *, held: bool) -> None:
        """Stop confirming a stream while the application cannot take more, or go on; what that sends is due at once."""
        traffic = self._traffic.get(node_id)
        if traffic is not None:
            self._touched[node_id] = traffic
            traffic.hold(stream_id, now, held=held)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def confirm(self, now: float, out: Output) -> None:
        """Send the acknowledgements and grants that a batch of packets made due."""
        for traffic in list(self._touched.values()):
            traffic.confirm(now, out)

    def next_timer(self) -> float | None:
        """Say when `tick` has something to do."""
        self._refresh()
        return self._due.next()

    def tick(self, now: float, out: Output) -> None:
        """Do what is due on the streams of all peers."""
        self._refresh()
        for node_id in self._due.over(now):
            traffic = self._touched[node_id] = self._traffic[node_id]
            traffic.tick(now, out)

    def _refresh(self) -> None:
        for node_id, traffic in self._touched.items():
            timer = traffic.next_timer()
            if timer is None:
                self._due.drop(node_id)
            else:
                self._due.set(node_id, timer)
        self._touched.clear()

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
        """Hand packets to their streams, and what the streams give on to the application."""
        streams = headers["stream_id"]
        reliable = (headers["sequence"] >= FIRST_SEQUENCE) & (headers["flags"] & _RELIABLE != 0)
        for stream_id, is_reliable in dict.fromkeys(zip(streams.tolist(), reliable.tolist(), strict=True)):
            rows = np.flatnonzero((streams == np.uint64(stream_id)) & (reliable == is_reliable))
            origin_hash = int(headers["origin_hash"][rows[0]])
            payloads = Payloads(
                headers["sequence"][rows],
                data,
                starts[rows],
                headers["payload_len"][rows].astype(np.int64),
                headers["event_count"][rows].astype(np.int64),
            )
            stamp = Stamp.of_row(headers[rows[-1]].tobytes())
            came = Ready(subprotocol_id, stream_id, origin_hash, [payloads], stamp)
            self._take_stream(peer, came, int(payloads.lengths.sum()), is_reliable, now, out)

    def take_run(  # hot: bench_stream
        self, peer: Peer, run: Run, data: NDArray[np.uint8], now: float, out: Output
    ) -> None:
        """Do the same for packets of one stream."""
        reliable = bool(run.flags & _RELIABLE) and run.sequences.item(0) >= FIRST_SEQUENCE
        if run.flags & _RELIABLE and not run.sequences_follow:
            above = run.sequences >= FIRST_SEQUENCE
            if not (above == reliable).all():
                headers = np.frombuffer(run.rows, HEADER_DTYPE)
                self.take(peer, run.subprotocol_id, headers, data, run.places, now, out)
                return
        payloads = Payloads(run.sequences, data, run.places, run.lengths, run.counts)
        stamp = Stamp.of_row(run.rows[-HEADER_BYTES:].tobytes())
        ready = Ready(run.subprotocol_id, run.stream_id, run.origin_hash, [payloads], stamp)
        self._take_stream(peer, ready, run.payload_bytes, reliable, now, out)

    def take_one(  # hot: bench_publish
        self, peer: Peer, header: Header, payload: bytes, now: float, out: Output
    ) -> None:
        """Do the same for one packet."""
        size, stream_id = len(payload), header.stream_id
        reliable = bool(header.flags & _RELIABLE) and header.sequence >= FIRST_SEQUENCE
        sequences, counts = np.array((header.sequence,), np.uint64), np.array((header.event_count,), np.int64)
        framed = int.from_bytes(payload[:FRAME_PREFIX_BYTES], "little")
        channel = self._joined.channel_of(peer.node_id, stream_id)
        whole = header.event_count == 1 and 0 < framed <= size - FRAME_PREFIX_BYTES
        if reliable or channel is None or not whole or header.subprotocol_id != Subprotocol.EVENTS:
            start, length = np.zeros(1, np.int64), np.array((size,), np.int64)
            payloads = Payloads(sequences, np.frombuffer(payload, np.uint8), start, length, counts)
            came = Ready(header.subprotocol_id, stream_id, header.origin_hash, [payloads], Stamp.of(header))
            self._take_stream(peer, came, size, reliable, now, out)
            return
        self.traffic_of(peer).consumed(stream_id, 1, size, now)
        out.events.append(
            EventBatch(
                offsets=np.array((0, framed), np.int64),
                data=np.frombuffer(payload, np.uint8, framed, FRAME_PREFIX_BYTES),
                publisher=peer.node_id,
                session_id=header.session_id,
                stream_id=stream_id,
                channel=channel,
                origin_hash=header.origin_hash,
                packet_seqs=sequences,
                packet_events=counts,
                stamp=Stamp.of(header),
                received_ns=self._wall(now),
            )
        )

    def refusals(self, peer: Peer, subprotocol_id: int, headers: NDArray[np.void]) -> NDArray[np.uint8]:
        """Say for a record which packets of a subprotocol will not be taken as they are now, by code of policy/reason.py."""
        streams, origins = headers["stream_id"], headers["origin_hash"]
        unasked = {
            (stream, origin)
            for stream, origin in set(zip(streams.tolist(), origins.tolist(), strict=True))
            if self._is_unasked(peer, subprotocol_id, stream, origin)
        }
        reasons = np.zeros(len(headers), np.uint8)
        for stream, origin in unasked:
            chosen = (streams == np.uint64(stream)) & (origins == np.uint64(origin))
            reasons[chosen] = Reason.NOT_SUBSCRIBED.code
        if not peer.uses(Subprotocol.RELIABLE):
            reliable = (headers["sequence"] >= FIRST_SEQUENCE) & (headers["flags"] & _RELIABLE != 0)
            reasons[reliable] = Reason.NOT_NEGOTIATED.code
        return reasons

    def on_grant(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Take a credit grant."""
        self.traffic_of(peer).on_grant(message, now, out)

    def on_reliable(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Take a message about a reliable stream, and deliver what became deliverable by it."""
        ready = self.traffic_of(peer).on_reliable(message, now, out)
        if ready.payloads:
            self._deliver(peer, ready, now, out)

    def owe(self, peer: Peer, headers: NDArray[np.void], now: float) -> None:
        """Count dropped packets for which a 0.23 sender still expects a grant."""
        traffic = self.traffic_of(peer)
        for stream_id, size in zip(headers["stream_id"].tolist(), headers["payload_len"].tolist(), strict=True):
            traffic.consumed(stream_id, 1, size, now)

    def _take_stream(self, peer: Peer, came: Ready, nbytes: int, reliable: bool, now: float, out: Output) -> None:
        """Hand packets of one stream to it."""
        subprotocol_id, stream_id, origin_hash, (payloads,), _ = came
        if reliable and not peer.uses(Subprotocol.RELIABLE):
            self._counters.count(Reason.NOT_NEGOTIATED, len(payloads))
            self._hooks.not_agreed(peer, now, out)
            return
        if self._is_unasked(peer, subprotocol_id, stream_id, origin_hash) and self._hooks.expects_name(
            peer.node_id, now
        ):
            self._counters.count(Reason.UNNAMED, int(payloads.counts.sum()))
            if not reliable:
                self.traffic_of(peer).consumed(stream_id, len(payloads), int(payloads.lengths.sum()), now)
            return
        traffic = self.traffic_of(peer)
        if reliable:
            came = traffic.reliable.receive(came, now)
        else:
            traffic.consumed(stream_id, len(payloads), nbytes, now)
        self._deliver(peer, came, now, out)

    def _deliver(self, peer: Peer, ready: Ready, now: float, out: Output) -> None:
        subprotocol_id, stream_id, origin_hash, runs, stamp = ready
        if subprotocol_id in self._served and peer.uses(subprotocol_id):
            for payloads in runs:
                for message in _messages(payloads):
                    self._hooks.serve(peer, subprotocol_id, message, now, out)
            return
        if self._is_unasked(peer, subprotocol_id, stream_id, origin_hash):
            self._counters.count(Reason.NOT_SUBSCRIBED, sum(int(payloads.counts.sum()) for payloads in runs))
            return
        plain = subprotocol_id == Subprotocol.EVENTS
        channel = self._joined.channel_of(peer.node_id, stream_id) if plain else None
        for payloads in runs:
            offsets, events, found = decode_frames(payloads.data, payloads.starts, payloads.lengths, payloads.counts)
            if len(offsets) == 1:
                continue
            out.events.append(
                EventBatch(
                    offsets=offsets,
                    data=events,
                    publisher=peer.node_id,
                    session_id=peer.link.session_id,
                    stream_id=stream_id,
                    channel=channel,
                    subprotocol_id=subprotocol_id,
                    origin_hash=origin_hash,
                    packet_seqs=payloads.sequences,
                    packet_events=found,
                    pub_seq=payloads.pub_seq,
                    stamp=stamp,
                    received_ns=self._wall(now),
                )
            )

    def _is_unasked(self, peer: Peer, subprotocol_id: int, stream_id: int, origin_hash: int) -> bool:
        """Say whether packets belong to a publication that we did not subscribe to."""
        publication = stream_id & PUBLISH_STREAM_BIT and origin_hash and subprotocol_id == Subprotocol.EVENTS
        return bool(publication) and self._joined.channel_of(peer.node_id, stream_id) is None


def _messages(payloads: Payloads) -> Iterator[memoryview]:
    view = payloads.data.data
    for start, size, count in zip(
        payloads.starts.tolist(), payloads.lengths.tolist(), payloads.counts.tolist(), strict=True
    ):
        yield from unpack_frames(view[start : start + size], count)
