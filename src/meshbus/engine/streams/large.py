"""Large events (0x4D0A), the receiving side: puts the parts of an event together, in one buffer and within a budget.

    first part        is the event small enough for its channel? ── no ──► REFUSED to the sender, its parts are dropped
                      is there memory for all of it? ── no ──► dropped unacknowledged, so that it comes again
                      a buffer of its size
    further parts     written to their place in the buffer; they come in order, because their stream is reliable
    last part         the buffer becomes the event: nothing is copied any more, up to Arrow

A buffer is charged in full when it is made, so that an event which was begun can be finished; memory that was not written
takes none. A part that does not continue its event ends it, and so does a pause of `STALL_S`. Everything that is dropped is
counted. Delivery (engine/streams/delivery.py) calls this for packets that count no event; messages of the subprotocol
itself are refusals, which end the sending (engine/streams/traffic.py). The other side is engine/streams/largeload.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import add_up, move_due_pairs, move_pairs
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.reorder import Payloads
from meshbus.engine.streams.streams import Streams
from meshbus.errors import RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.wire.constants import DEFAULT_LARGE_EVENT, Subprotocol
from meshbus.wire.messages.large import (
    MAX_MESSAGE,
    PART_HEAD,
    Part,
    Refused,
    decode_part,
    decode_refused,
    encode_refused,
    join_parts,
    read_heads,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

PEER_BYTES = MAX_MESSAGE
"""Memory for the unfinished events of one peer. Our choice: one of the largest size, or four of the default."""
NODE_BYTES = 4 * PEER_BYTES
"""Memory for all of them. Our choice: a quarter of a GiB."""
MAX_UNFINISHED = 64
"""Unfinished events of one peer. Our choice: far more channels than send large events at the same time."""
STALL_S = 30.0
"""How long an unfinished event is kept without another part. Our choice: longer than a stream takes to fail."""


BOUNDS = (
    Bound(
        name="unfinished_events",
        what="bytes of large events that are not complete, by the size that they claim",
        by=By.PUBLISHER,
        per_node=NODE_BYTES,
        per={"peer": PEER_BYTES, "peer, in events": MAX_UNFINISHED},
        unit="bytes",
        full="the new event waits: its first part is not acknowledged",
        counter=Reason.PART_WAITS,
    ),
)


class Whole(NamedTuple):
    """A large event that is complete."""

    data: NDArray[np.uint8]
    sequence: int
    """Sequence of the packet that completed it."""
    pub_seq: int | None
    stamp: int
    """When it was published, as its packets say."""


class _Unfinished:
    """A large event of which parts are missing."""

    __slots__ = ("buffer", "filled", "number")

    def __init__(self, size: int, number: int | None) -> None:
        # Not zeroed: pages that no part was written to take no memory.
        self.buffer = np.empty(size, np.uint8)
        self.filled = 0
        self.number = number

    def take(self, parts: Payloads, row: int) -> int:
        """Write the parts from a row on that continue the event to their place, and return how many did."""
        if parts.pub_seq != self.number:
            return 0
        lengths = parts.lengths[row:]
        taken = join_parts(parts.data, parts.starts[row:], lengths, self.buffer, self.filled)
        self.filled += int(lengths[:taken].sum()) - taken * PART_HEAD
        return taken


_Key = tuple[int, int]
"""Node id of the sender, and stream id."""


class Large(Service):
    """The unfinished large events of all peers; handles refusals of ours."""

    def __init__(self, context: Context, streams: Streams) -> None:
        self._streams = streams
        self._peers = context.peers
        self._counters = context.counters
        self._registry: ChannelConfigRegistry | None = None
        self._unfinished: dict[_Key, _Unfinished] = {}
        self._due: Deadlines[_Key] = Deadlines()
        self._bytes: Counter[int] = Counter()
        """Bytes of the unfinished events, by peer."""
        self._events: Counter[int] = Counter()
        self._all_bytes = 0

    def __len__(self) -> int:
        return len(self._unfinished)

    @property
    def nbytes(self) -> int:
        """Bytes that the unfinished events claim."""
        return self._all_bytes

    def limit_of(self, channel: ChannelName) -> int:
        """Return the largest event that this node takes on a channel."""
        config = None if self._registry is None else self._registry.get_by_name(channel)
        return DEFAULT_LARGE_EVENT if config is None else config.max_event_bytes

    # ── packets ─────────────────────────────────────────────────────────────────────────────

    def admitted(self, peer: Peer, payloads: Payloads) -> int:
        """Return how many packets, from the first on, may be accepted: up to one that begins an event without room.

        The others are not acknowledged, so that the sender repeats them.
        """
        rows = np.flatnonzero((payloads.counts == 0) & (payloads.lengths > PART_HEAD))
        sizes, offsets = read_heads(payloads.data, payloads.starts[rows])
        beginning = offsets == 0
        for row, size in zip(rows[beginning].tolist(), sizes[beginning].tolist(), strict=True):
            if not self._has_room(peer.node_id, size) and size <= MAX_MESSAGE:
                self._counters.count(Reason.PART_WAITS)
                return int(row)
        return len(payloads)

    def join(
        self, peer: Peer, stream_id: int, payloads: Payloads, limit: int, now: float, out: Output
    ) -> Iterator[Payloads | Whole]:
        """Yield what the packets of a run complete, in order: runs of packets with events, and large events.

        `limit` is the largest event that may come on the stream; 0 if none may.
        """
        number = payloads.pub_seq
        limit = limit if peer.uses(Subprotocol.LARGE) else 0
        for start, stop in _stretches(payloads.counts):
            some = payloads if stop - start == len(payloads) else _rows(payloads, start, stop, number)
            if some.counts.item(0):
                yield some
                number = None if number is None else number + int(some.counts.sum())
            else:
                yield from self._join_parts(peer, stream_id, some, limit, out)
        # Once for all parts of the run: most runs end within an event.
        if (key := (peer.node_id, stream_id)) in self._unfinished:
            self._due.set(key, now + STALL_S)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle the refusal of an event that this node is sending."""
        try:
            refused = decode_refused(message)
        except RemoteProtocolError:
            self._counters.count(Reason.LARGE_MALFORMED)
            return
        self._counters.add("large", "refused_by_peer")
        self._streams.traffic_of(peer).on_refused(refused)

    # ── peers, policy and time ──────────────────────────────────────────────────────────────

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Use the limits of new channel configurations for the events that begin from now on."""
        self._registry = registry

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Continue to put together the events of a peer that has another id."""
        move_pairs(self._unfinished, old, new)
        move_due_pairs(self._due, old, new)
        add_up(self._bytes, old, new)
        add_up(self._events, old, new)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Drop the unfinished events of a peer that was removed; one that failed may recover."""
        if isinstance(down, PeerGone):
            for key in [key for key in self._unfinished if key[0] == down.node_id]:
                self._drop(key, Reason.LARGE_UNFINISHED)

    def next_timer(self) -> float | None:
        """Return when the first unfinished event is given up, or None."""
        return self._due.next()

    def tick(self, now: float, out: Output) -> None:
        """Drop the events of which nothing came for too long."""
        for key in self._due.over(now):
            peer = self._peers.get(key[0])
            stream = None if peer is None else peer.rx.get(key[1])
            if stream is not None and stream.held:
                self._due.set(key, now + STALL_S)  # the application holds it up, not the sender
            else:
                self._drop(key, Reason.LARGE_UNFINISHED)

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _join_parts(  # hot: bench_large
        self, peer: Peer, stream_id: int, parts: Payloads, limit: int, out: Output
    ) -> Iterator[Whole]:
        """Write parts to their place, and yield the events that are complete."""
        key, row = (peer.node_id, stream_id), 0
        while row < len(parts):
            event = self._unfinished.get(key) if limit else None
            taken = 0 if event is None else event.take(parts, row)
            if event is None or not taken:
                # A part that begins an event is taken in the next round, as one that continues it.
                row += not self._begins(peer, key, parts, row, limit, out)
                continue
            self._counters.add("large", "parts", taken)
            out.parts += taken
            row += taken
            if event.filled == len(event.buffer):
                self._drop(key, None)
                stamp = 0 if parts.stamps is None else int(parts.stamps[row - 1])
                yield Whole(event.buffer, int(parts.sequences[row - 1]), parts.pub_seq, stamp)

    def _begins(self, peer: Peer, key: _Key, parts: Payloads, row: int, limit: int, out: Output) -> bool:
        """Handle a part that continues no event, and return whether it begins one that is taken."""
        at = int(parts.starts[row])
        try:
            part = decode_part(parts.data.data[at : at + int(parts.lengths[row])])
        except RemoteProtocolError:
            self._counters.count(Reason.PART_MALFORMED)
            return False
        if not limit:
            self._counters.count(Reason.PART_MALFORMED)
            return False
        if part.offset == 0 and self._begin(peer, key, part, parts.pub_seq, limit, out):
            return True
        self._counters.count(Reason.PART_DISORDER)
        self._drop(key, Reason.LARGE_UNFINISHED)
        return False

    def _begin(self, peer: Peer, key: _Key, part: Part, number: int | None, limit: int, out: Output) -> bool:
        """Make the buffer of an event, and return whether it is taken."""
        self._drop(key, Reason.LARGE_UNFINISHED)
        if part.size > limit:
            self._counters.count(Reason.REFUSE_LARGE)
            refused = Refused(stream_id=key[1], number=number, size=part.size, limit=limit)
            peer.send_message(Subprotocol.LARGE, encode_refused(refused), out)
            return False
        if not self._has_room(peer.node_id, part.size):
            self._counters.count(Reason.PART_WAITS)
            return False
        self._unfinished[key] = _Unfinished(part.size, number)
        self._bytes[peer.node_id] += part.size
        self._events[peer.node_id] += 1
        self._all_bytes += part.size
        return True

    def _has_room(self, node_id: int, size: int) -> bool:
        return (
            self._bytes[node_id] + size <= PEER_BYTES
            and self._all_bytes + size <= NODE_BYTES
            and self._events[node_id] < MAX_UNFINISHED
        )

    def _drop(self, key: _Key, reason: Reason | None) -> None:
        """Forget an event, complete or not, and return its memory to the budget."""
        event = self._unfinished.pop(key, None)
        if event is None:
            return
        self._due.drop(key)
        node_id, size = key[0], len(event.buffer)
        self._bytes[node_id] -= size
        self._events[node_id] -= 1
        self._all_bytes -= size
        if not self._events[node_id]:
            del self._bytes[node_id], self._events[node_id]
        if reason is not None:
            self._counters.count(reason)


def _stretches(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of packets that are all parts, or all no parts."""
    kinds = counts == 0
    # Most runs are parts only.
    edges = [] if kinds.all() else (np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist()
    return pairwise((0, *edges, len(counts)))


def _rows(payloads: Payloads, start: int, stop: int, number: int | None) -> Payloads:
    """Return a range of the packets of a run; `number` is that of its first event."""
    return msgspec.structs.replace(payloads[start:stop], pub_seq=number)
