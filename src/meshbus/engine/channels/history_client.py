"""History (0x4D02), the reader's side: reads the logs of publishers from a sequence on, and follows them.

A *reading* is one channel at one publisher, from one sequence on. Its only state is its position, the next sequence,
which advances with every complete event. When the publisher gets a new session, closes its log or sends chunks out of
order, the reading asks again from there under a new request id. So every event arrives once and in order, or a
`HistoryGap` names the events that retention removed before they were read.

Chunks that are out of order are never delivered: the reading asks again, and ends as broken if that does not help.

The publisher's side is engine/channels/history_server.py; it receives all messages of the subprotocol and passes the
answers to this file. The messages are described in docs/wire/profile.md.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from meshbus.engine.base.batch import EventColumns
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import HistoryCaughtUp, HistoryEnded, HistoryFault, HistoryGap, HistoryOpened
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move_pairs
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.outbox import Leg
from meshbus.engine.streams.streams import Streams
from meshbus.errors import LocalProtocolError, PeerError, PeerFault
from meshbus.names.channel import ChannelName
from meshbus.names.identity import derive_origin_hash
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.history import (
    MAX_SEQ,
    Cancel,
    Chunk,
    ChunkFlags,
    Error,
    ErrorCode,
    HistoryMessage,
    Read,
    ReadFlags,
    encode_history,
    history_stream,
)
from meshbus.wire.messages.revocation import Revocation, Revoked

MAX_READINGS = 256
"""Readings of this node. Our choice: with a full window each, 128 MiB are on the way."""
WANTED_BYTES = 128 * 1024
"""Bytes that may wait for us at a publisher: one of its pages (MAX_PAGE_BYTES). What is on the way is limited by the
window of the stream."""
MAX_EVENT_BYTES = 1 << 30
"""The largest event that a log accepts; a publisher that sends a larger one is broken."""
RETRY_S = 1.0
"""Pause before a publisher is asked again. Our choice."""
MAX_DISORDERS = 5
"""Requests in a row that were answered out of order before the publisher counts as broken. Our choice."""

_ENDS = {
    ErrorCode.UNKNOWN_CHANNEL: HistoryFault.UNKNOWN_CHANNEL,
    ErrorCode.DENIED: HistoryFault.DENIED,
    ErrorCode.RANGE_GONE: HistoryFault.RANGE_GONE,
}
"""Errors that end a reading; after the others it asks again."""
_NO_PACKETS = np.empty(0, np.uint64), np.empty(0, np.int64)


BOUNDS = (
    Bound(
        name="readings",
        what="logs of peers that this node reads",
        by=By.USER,
        per_node=MAX_READINGS,
        full="the call is refused",
        counter="raises LocalProtocolError",
    ),
    Bound(
        name="stray_pages",
        what="readings that ended and still get pages",
        by=By.PEER,
        per_node=MAX_READINGS,
        full="the oldest goes",
        counter=forgotten("stray_pages"),
    ),
    Bound(
        name="long_event",
        what="bytes of one event that a log sends in parts",
        by=By.PUBLISHER,
        per_node=None,
        per={"reading": MAX_EVENT_BYTES},
        unit="bytes",
        full="the reading ends with an error",
        counter="a HistoryFailed notice: broken",
    ),
)


class _Reading:
    """One channel read at one publisher."""

    __slots__ = (
        "caught_up",
        "channel",
        "disorders",
        "flags",
        "held",
        "next_seq",
        "node_id",
        "number",
        "opened",
        "part",
        "part_bytes",
        "req",
        "token",
    )

    def __init__(self, number: int, node_id: int, channel: ChannelName, since: int, flags: ReadFlags, token: bytes):
        self.number = number
        self.node_id = node_id
        self.channel = channel
        self.next_seq = since
        self.flags = flags
        self.token = token
        self.req: int | None = None
        """Request id on the wire; None while no request is open."""
        self.opened = self.caught_up = self.held = False
        self.part: list[bytes] = []
        """Received parts of the event at `next_seq`, if it is split over several chunks."""
        self.part_bytes = 0
        self.disorders = 0
        """Chunks out of order since the last delivered event."""


class Replays(Service):
    """The readings of this node in the logs of other nodes."""

    def __init__(self, context: Context, streams: Streams) -> None:
        self._streams = streams
        self._peers = context.peers
        self._counters = context.counters
        self._entropy = context.entropy
        self._wall = context.wall
        self._numbers = count(1)
        self._readings: dict[int, _Reading] = {}
        self._by_req: dict[tuple[int, int], _Reading] = {}
        """Readings by publisher and request id."""
        self._due: Deadlines[int] = Deadlines()
        """When each waiting reading asks again."""
        self._strays: BoundedMap[tuple[int, int], float] = BoundedMap(
            MAX_READINGS, context.counters.forgetting("stray_pages")
        )
        """When a CANCEL was last sent for an unknown request, by publisher and request id."""

    def __len__(self) -> int:
        return len(self._readings)

    def open(
        self,
        peer: Peer,
        channel: ChannelName,
        since: int,
        now: float,
        out: Output,
        *,
        follow: bool = True,
        from_first: bool = False,
        token: bytes = b"",
    ) -> int:
        """Read the log of a publisher from a sequence on, and return the number that batches and notices carry.

        With `follow`, the reading continues with new events; without it, `HistoryEnded` reports the end. If the start
        was removed by retention, `from_first` begins at the first event left; without it the reading fails with
        RANGE_GONE. Raises PeerError if the peer cannot serve history or may not publish any more, and LocalProtocolError if
        `since` or the number of readings is out of range.
        """
        if not peer.uses(Subprotocol.HISTORY):
            problem = "it cannot serve history (0x4d02 is not negotiated); subscribe without `since`"
            raise PeerError(PeerFault.UNREACHABLE, peer.node_id, problem)
        if peer.muted:
            problem = "its key was revoked, so its events do not count; `meshbus revoke ls` shows by whom and why"
            raise PeerError(PeerFault.UNREACHABLE, peer.node_id, problem)
        if not 0 <= since <= MAX_SEQ:
            raise LocalProtocolError(f"since must be in [0, {MAX_SEQ}], got {since}")
        if len(self._readings) >= MAX_READINGS:
            raise LocalProtocolError(f"this node already reads {MAX_READINGS} logs, the limit; close some first")
        flags = (ReadFlags.FOLLOW if follow else ReadFlags.NONE) | (
            ReadFlags.FROM_FIRST if from_first else ReadFlags.NONE
        )
        reading = _Reading(next(self._numbers), peer.node_id, channel, since, flags, token)
        self._ask(peer, reading, now, out)
        self._readings[reading.number] = reading
        return reading.number

    def close(self, number: int, now: float, out: Output) -> bool:
        """Stop a reading, and return whether it existed."""
        reading = self._readings.get(number)
        if reading is None:
            return False
        self._leave(reading, now, out)
        self._drop(reading)
        return True

    def place_of(self, number: int) -> tuple[int, ChannelName] | None:
        """Return the node at which a reading reads, and the channel; None if it has ended."""
        reading = self._readings.get(number)
        return None if reading is None else (reading.node_id, reading.channel)

    def move(self, number: int, peer: Peer, now: float, out: Output) -> None:
        """Continue a reading at another node that has the same log, under the same numbers."""
        reading = self._readings[number]
        self._leave(reading, now, out)
        reading.node_id = peer.node_id
        reading.disorders = 0
        self._ask(peer, reading, now, out)

    def hold(self, number: int, now: float, *, held: bool) -> None:
        """Pause a reading while the application cannot accept more events, or resume it."""
        reading = self._readings.get(number)
        if reading is not None:
            reading.held = held
            self._apply_hold(reading, now)

    def on_answer(self, peer: Peer, message: HistoryMessage, now: float, out: Output) -> None:
        """Handle an answer of a publisher to one of our readings."""
        reading = self._by_req.get((peer.node_id, message.req))
        if reading is not None and isinstance(message, Chunk):
            self._take_chunk(peer, reading, message, now, out)
        elif reading is not None and isinstance(message, Error):
            self._take_error(reading, message, now, out)
        elif isinstance(message, Chunk):
            self._receive_stray(peer, message.req, now, out)
        else:
            self._counters.count(Reason.HISTORY_LATE)

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Continue every reading at a publisher that had failed."""
        self.agreed(peer, now, out)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Continue every reading at a publisher that negotiated history, from its next sequence on."""
        if peer.uses(Subprotocol.HISTORY):
            for reading in self._readings.values():
                if reading.node_id == peer.node_id:
                    self._ask(peer, reading, now, out)

    def stream_failed(self, node_id: int, stream_id: int, now: float, out: Output) -> None:
        """Handle the failure of a stream to a publisher: ask again if it carried one of our requests."""
        for (of, req), reading in list(self._by_req.items()):
            if of == node_id and history_stream(req) == stream_id:
                self._retry(reading, now)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Continue reading at a publisher that has another id."""
        move_pairs(self._by_req, old, new)
        for reading in self._readings.values():
            if reading.node_id == old:
                reading.node_id = new

    def revoked(self, record: Revocation, now: float, out: Output) -> None:
        """End the readings at a publisher whose events do not count any more."""
        if record.what is Revoked.PUBLISH:
            for reading in [one for one in self._readings.values() if one.node_id == record.node_id]:
                self._fail(reading, HistoryFault.DENIED, now, out)

    def next_timer(self) -> float | None:
        """Return the earliest time to ask again, or None."""
        return self._due.next()

    def tick(self, now: float, out: Output) -> None:
        """Ask again where that is due. A publisher without a session is asked when it has one again (`agreed`)."""
        for number in self._due.over(now):
            reading = self._readings[number]
            peer = self._peers.get(reading.node_id)
            if peer is not None and peer.uses(Subprotocol.HISTORY):
                self._ask(peer, reading, now, out)

    # ── internals ───────────────────────────────────────────────────────────────────────────

    def _ask(self, peer: Peer, reading: _Reading, now: float, out: Output) -> None:
        """Ask for the log from the current position, under a new request id: late chunks of an old one cannot match."""
        self._leave(reading, now, out)
        self._due.drop(reading.number)
        reading.req = req = int.from_bytes(self._entropy(8), "little")
        reading.part, reading.part_bytes = [], 0
        self._by_req[peer.node_id, req] = reading
        # A reading that has started continues after a gap; only its first request may fail because the start is gone.
        flags = reading.flags | (ReadFlags.FROM_FIRST if reading.opened else ReadFlags.NONE)
        read = Read(
            req=req,
            channel=reading.channel,
            since=reading.next_seq,
            flags=flags,
            max_bytes=WANTED_BYTES,
            token=reading.token,
        )
        self._send(peer, req, encode_history(read), now, out)
        if reading.held:
            self._apply_hold(reading, now)

    def _leave(self, reading: _Reading, now: float, out: Output) -> None:
        """Cancel the open request of a reading at its publisher, if there is one."""
        if reading.req is None:
            return
        req, reading.req = reading.req, None
        del self._by_req[reading.node_id, req]
        peer = self._peers.get(reading.node_id)
        if peer is not None:
            traffic = self._streams.traffic_of(peer)
            # A held stream is not confirmed, so the publisher could never finish it.
            if reading.held:
                traffic.hold(history_stream(req), now, held=False)
            if peer.uses(Subprotocol.HISTORY):
                self._send(peer, req, encode_history(Cancel(req=req)), now, out)
                traffic.finish(history_stream(req), now, out)
            else:
                traffic.abandon(history_stream(req), out)

    def _drop(self, reading: _Reading) -> None:
        del self._readings[reading.number]
        self._due.drop(reading.number)

    def _retry(self, reading: _Reading, now: float) -> None:
        """Schedule another request."""
        if reading.number in self._readings and reading.number not in self._due:
            self._due.set(reading.number, now + RETRY_S)

    def _apply_hold(self, reading: _Reading, now: float) -> None:
        """Hold or release the stream of a reading."""
        peer = self._peers.get(reading.node_id)
        if peer is not None and reading.req is not None:
            self._streams.traffic_of(peer).hold(history_stream(reading.req), now, held=reading.held)

    def _receive_stray(self, peer: Peer, req: int, now: float, out: Output) -> None:
        """Cancel a request that we do not know, at most once a second: the publisher sends many chunks for it."""
        self._counters.count(Reason.HISTORY_STRAY)
        told = self._strays.get((peer.node_id, req))
        if told is None or now - told >= RETRY_S:
            self._strays.put((peer.node_id, req), now)
            peer.send_message(Subprotocol.HISTORY, encode_history(Cancel(req=req)), out)

    def _take_error(self, reading: _Reading, error: Error, now: float, out: Output) -> None:
        fault = _ENDS.get(error.code)
        if fault is None and error.code is ErrorCode.BUSY and not reading.opened:
            fault = HistoryFault.BUSY
        if fault is None:
            self._retry(reading, now)
        else:
            self._fail(reading, fault, now, out, first_available=error.first_available)

    def _fail(
        self, reading: _Reading, fault: HistoryFault | None, now: float, out: Output, *, first_available: int = 0
    ) -> None:
        self._leave(reading, now, out)
        self._drop(reading)
        if fault is not None:
            self._counters.add("history", fault)
        out.control.append(HistoryEnded(reading.number, reading.node_id, reading.channel, fault, first_available))

    def _take_chunk(self, peer: Peer, reading: _Reading, chunk: Chunk, now: float, out: Output) -> None:
        gap = ChunkFlags.GAP in chunk.flags
        follows = chunk.first_seq > reading.next_seq if gap else chunk.first_seq == reading.next_seq
        if not follows or (reading.part and (gap or not len(chunk))):
            self._counters.count(Reason.HISTORY_DISORDER, max(len(chunk), 1))
            reading.disorders += 1
            if reading.disorders >= MAX_DISORDERS:
                self._fail(reading, HistoryFault.BROKEN, now, out)
            else:
                self._retry(reading, now)
                self._leave(reading, now, out)
            return
        told = (reading.number, reading.node_id, reading.channel)
        if not reading.opened:
            reading.opened = True
            out.control.append(HistoryOpened(*told))
        if gap:
            out.control.append(HistoryGap(*told, reading.next_seq, chunk.first_seq))
            reading.next_seq = chunk.first_seq
        if not self._take_events(peer, reading, chunk, now, out):
            self._fail(reading, HistoryFault.BROKEN, now, out)
            return
        if ChunkFlags.CAUGHT_UP in chunk.flags:
            if not reading.caught_up:
                reading.caught_up = True
                out.control.append(HistoryCaughtUp(*told, reading.next_seq))
            if ReadFlags.FOLLOW not in reading.flags:
                self._fail(reading, None, now, out)

    def _take_events(self, peer: Peer, reading: _Reading, chunk: Chunk, now: float, out: Output) -> bool:
        """Deliver the complete events of a chunk, and keep the part of an incomplete one.

        Returns False if that event grows beyond `MAX_EVENT_BYTES`.
        """
        continues = ChunkFlags.CONTINUES in chunk.flags
        # A chunk with one incomplete event is only collected, so that a large event is joined once and not per chunk.
        if continues and len(chunk) == 1:
            reading.part.append(chunk.data)
            reading.part_bytes += len(chunk.data)
            return reading.part_bytes <= MAX_EVENT_BYTES
        data, offsets, whole = b"".join((*reading.part, chunk.data)), chunk.offsets(), len(chunk) - continues
        offsets[1:] += reading.part_bytes
        reading.part = [data[offsets[-2] :]] if continues else []
        reading.part_bytes = len(reading.part[0]) if continues else 0
        if whole:
            reading.disorders = 0
            entity = peer.claims.entity_id
            packet_seqs, packet_events = _NO_PACKETS
            out.events.append(
                EventColumns(
                    offsets=offsets[: whole + 1],
                    data=np.frombuffer(data, np.uint8),
                    publisher=peer.node_id,
                    session_id=peer.link.session_id,
                    stream_id=history_stream(chunk.req),
                    channel=reading.channel,
                    origin_hash=0 if entity is None else derive_origin_hash(entity),
                    packet_seqs=packet_seqs,
                    packet_events=packet_events,
                    pub_seq=reading.next_seq,
                    received_ns=self._wall(now),
                    reading=reading.number,
                    times=chunk.times()[:whole],
                )
            )
            reading.next_seq += whole
        return True

    def _send(self, peer: Peer, req: int, message: bytes, now: float, out: Output) -> None:
        traffic = self._streams.traffic_of(peer)
        traffic.send_messages(Subprotocol.HISTORY, history_stream(req), [message], _forget, now, out)


def _forget(_leg: Leg, _sent: bool) -> None:
    """Ignore the outcome of a message: its answer, or a failed stream, shows what became of it."""
