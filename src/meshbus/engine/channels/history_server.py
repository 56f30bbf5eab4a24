"""History (0x4D02), the publisher's side: serves the logs of this node to peers, which may follow them.

    reader                          publisher                              owner of the logs (the node)
    READ ─────────────────────────► judged like a subscribe ── no ──► ERROR
                                    HistoryWanted ────────────────────────► reads a page
    CHUNK, CHUNK, … ◄────────────── page ◄────────────────────────────────
                                    when they are sent: HistoryWanted, until the reader has caught up
                                    grew ◄──────────────────────────────── events were appended
    CANCEL ───────────────────────► removed

This file never reads a log. It asks for one page at a time, and for the next one when the last was sent, so a slow
reader costs one page of memory and the window of its stream. A reader counts until its stream has ended, so a peer that
asks and never acknowledges gets as many answers as one that reads. New events are read from the log too, so a reader that
follows gets neither gaps nor duplicates where history meets live events (profile.md §3).

A peer may read what it may subscribe to. It is judged again before every page, and whenever subscribers are: then the
request ends with DENIED, or waits while the channel is not visible from its subnet. A request belongs to one session; in
a new one the peer asks again from its position. The reader's side is engine/channels/history_client.py; the messages are
described in docs/wire/profile.md.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.engine.base.notices import HistoryWanted, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import add_up, move
from meshbus.engine.channels.admission import Admission
from meshbus.engine.channels.history_client import Replays
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.outbox import Leg
from meshbus.engine.streams.streams import Streams
from meshbus.errors import RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.wire.constants import FRAME_PREFIX_BYTES, Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.history import (
    Cancel,
    Error,
    ErrorCode,
    Read,
    ReadFlags,
    decode_history,
    encode_history,
    history_stream,
    split_chunks,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_READERS = 512
"""Readers of all peers. Our choice: with pages of the largest size they take 64 MiB."""
MAX_READERS_PER_PEER = 64
"""Our choice: an eighth of all readers, so that one peer cannot take them all."""
MAX_PAGE_BYTES = 128 * 1024
"""Approximate payload bytes of one page: a quarter of a stream's window, so that reading and sending overlap."""
MIN_PAGE_BYTES = 16 * 1024
"""Payload bytes of a page that is not the last, whatever the reader wants: a page may cost the decoding of a block of the
log, which must not be spent on a single event. Our choice: two of the largest packets."""
MAX_LARGE_PAGES, MAX_LARGE_PAGES_PER_PEER = 256 << 20, 64 << 20
"""Bytes of pages above MAX_PAGE_BYTES, each of one large event, that are being sent. Our choice: four events of the largest
size, and one for each peer."""
READ_US = 800.0
"""What a READ costs besides its message, in microseconds: a page is read from disk in a thread, and sent."""
SWEEP_INTERVAL_S = 30.0
"""Interval between checks of all readers: that of subscribers (policy.md §4.6)."""
_MIN_MESSAGE = 128
"""Smallest size of a chunk, even if the packets of this node are smaller. Our choice: below it, headers dominate."""

_CODES = {
    Reason.REFUSE_UNKNOWN_CHANNEL: ErrorCode.UNKNOWN_CHANNEL,
    Reason.REFUSE_THROTTLED: ErrorCode.BUSY,
    Reason.LAPSE_UNKNOWN_CHANNEL: ErrorCode.UNKNOWN_CHANNEL,
}
"""Error codes that a refused reader gets; all other reasons become DENIED."""
_REASONS = {
    ErrorCode.UNKNOWN_CHANNEL: Reason.REFUSE_HISTORY_UNKNOWN_CHANNEL,
    ErrorCode.DENIED: Reason.REFUSE_HISTORY_DENIED,
    ErrorCode.RANGE_GONE: Reason.REFUSE_HISTORY_RANGE_GONE,
    ErrorCode.BUSY: Reason.REFUSE_HISTORY_BUSY,
    ErrorCode.CLOSED: Reason.REFUSE_HISTORY_CLOSED,
}
"""The reason under which an error that was sent to a reader is counted."""


BOUNDS = (
    Bound(
        name="readers",
        what="peers that read a log of this node",
        by=By.PEER,
        per_node=MAX_READERS,
        per={"peer": MAX_READERS_PER_PEER},
        full="the new one is refused as busy",
        cost="the streams of the peer",
        counter=Reason.REFUSE_HISTORY_BUSY,
    ),
    Bound(
        name="large_pages",
        what="bytes of large events that are sent to readers of logs",
        by=By.PEER,
        per_node=MAX_LARGE_PAGES,
        per={"peer": MAX_LARGE_PAGES_PER_PEER},
        unit="bytes",
        full="the reader is told to ask again later",
        counter=Reason.REFUSE_HISTORY_CLOSED,
    ),
)


class Page(msgspec.Struct, frozen=True, eq=False):
    """Events of a log from the wanted sequence on, or from the first one left if that was removed."""

    first_seq: int
    """Sequence of the first event, or of the next one if the page is empty."""
    offsets: NDArray[np.int64]
    """Event `i` is `data[offsets[i] : offsets[i + 1]]`."""
    data: NDArray[np.uint8]
    times: NDArray[np.int64]
    """Time at which each event was logged, in unix nanoseconds."""
    first_available: int
    """The first sequence left in the log."""
    end: int
    """One past the last sequence that can be read now."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


class _Reader:
    """One open READ of one peer."""

    __slots__ = ("asked", "end", "next_seq", "node_id", "opened", "over", "read", "sending")

    def __init__(self, node_id: int, read: Read) -> None:
        self.node_id = node_id
        self.read = read
        self.next_seq = read.since
        self.end = 0
        """One past the last sequence that is available and wanted."""
        self.opened = False
        """The first answer was sent."""
        self.asked = False
        """A page of the log is being read."""
        self.sending = False
        """The last page is not sent completely."""
        self.over = False
        """Nothing follows after what is being sent."""

    @property
    def follows(self) -> bool:
        return ReadFlags.FOLLOW in self.read.flags

    @property
    def stream_id(self) -> int:
        return history_stream(self.read.req)


class History(Service):
    """The readers of this node's logs."""

    def __init__(self, context: Context, admission: Admission, streams: Streams, replays: Replays) -> None:
        self._admission = admission
        self._streams = streams
        self._replays = replays
        self._peers = context.peers
        self._counters = context.counters
        self._max_message = max(context.settings.max_payload - FRAME_PREFIX_BYTES, _MIN_MESSAGE)
        self._readers: dict[int, dict[int, _Reader]] = {}
        """Readers by peer and request id."""
        self._by_channel: dict[ChannelName, dict[_Reader, None]] = {}
        self._ending: dict[int, dict[int, None]] = {}
        """Streams by peer on which the last answer was sent, and which may still wait to be acknowledged."""
        self._moved: dict[_Reader, None] = {}
        """Readers whose page was sent, so that the next one can be read."""
        self.unfinished = (self._moved,)
        self._sweep_at: float | None = None
        self._large_pages: Counter[int] = Counter()
        """Bytes of the large pages that are being sent, by peer."""

    def __len__(self) -> int:
        return sum(map(len, self._readers.values()))

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle one message of the subprotocol; answers go to the reader's side."""
        try:
            decoded = decode_history(message)
        except RemoteProtocolError:
            self._counters.count(Reason.HISTORY_MALFORMED)
            return
        match decoded:
            case Read():
                self._take_read(peer, decoded, now, out)
            case Cancel(req=req):
                reader = self._readers.get(peer.node_id, {}).get(req)
                if reader is None:
                    self._counters.count(Reason.CANCEL_LATE)
                else:
                    self._abandon(reader, out)
            case _ if peer.muted:
                self._counters.count(Reason.REVOKED_PUBLISHER)
            case _:
                self._replays.on_answer(peer, decoded, now, out)

    # ── called by the owner of the logs ─────────────────────────────────────────────────────

    def page(self, node_id: int, request: int, page: Page, now: float, out: Output) -> None:
        """Send a page that `HistoryWanted` asked for; count and ignore it if the reader is gone."""
        reader = self._readers.get(node_id, {}).get(request)
        peer = self._peers.get(node_id)
        if reader is None or peer is None or not reader.asked:
            self._counters.count(Reason.PAGE_LATE)
            return
        reader.asked = False
        gone = page.first_available > reader.next_seq
        if gone and not (reader.opened or ReadFlags.FROM_FIRST in reader.read.flags):
            self._end(reader, ErrorCode.RANGE_GONE, now, out, first_available=page.first_available)
            return
        if not self._may_send(node_id, len(page.data)):
            self._end(reader, ErrorCode.CLOSED, now, out)
            return
        # A reader that does not follow ends where the log ended at its first page, even if the log grows meanwhile.
        if reader.follows or not reader.opened:
            reader.end = max(reader.end, page.end)
        self._send_page(peer, reader, page, gone, now, out)
        self.finish(now, out)

    def refuse(self, node_id: int, request: int, code: ErrorCode, now: float, out: Output) -> None:
        """End a reader whose log does not exist or was closed."""
        reader = self._readers.get(node_id, {}).get(request)
        if reader is not None:
            self._end(reader, code, now, out)
            self.finish(now, out)

    def grew(self, channel: ChannelName, end: int, now: float, out: Output) -> None:
        """Record that the log of a channel can be read up to `end`, exclusive, and continue the readers that follow."""
        for reader in list(self._by_channel.get(channel, ())):
            if reader.follows:
                reader.end = max(reader.end, end)
                self._go_on(reader, now, out)

    # ── peers, policy and time ──────────────────────────────────────────────────────────────

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Check all readers against new channel configurations."""
        self._recheck(list(self._readers), now, out)

    def tokens_changed(self, now: float, out: Output) -> None:
        """Check all readers because tokens changed."""
        self._recheck(list(self._readers), now, out)

    def claims_changed(self, peer: Peer, now: float, out: Output) -> None:
        """Check the readers of a peer whose claims changed."""
        self._recheck([peer.node_id], now, out)

    def _recheck(self, node_ids: list[int], now: float, out: Output) -> None:
        for node_id in node_ids:
            for reader in list(self._readers.get(node_id, {}).values()):
                if self._still_may(reader, now, out):
                    self._go_on(reader, now, out)
        self.finish(now, out)

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Remove the readers of a peer that has a new session; it asks again."""
        for reader in list(self._readers.get(peer.node_id, {}).values()):
            self._abandon(reader, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Keep the readers of a peer that goes on under another id."""
        for reader in self._readers.get(old, {}).values():
            reader.node_id = new
        move(self._readers, old, new)
        move(self._ending, old, new)
        add_up(self._large_pages, old, new)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End the readers of a peer that failed or is gone. CLOSED lets it ask again if it recovers."""
        self._end_all(down.node_id, now, out)
        if isinstance(down, PeerGone):
            self._ending.pop(down.node_id, None)

    def _end_all(self, node_id: int, now: float, out: Output) -> None:
        for reader in list(self._readers.get(node_id, {}).values()):
            self._end(reader, ErrorCode.CLOSED, now, out)

    def stream_failed(self, node_id: int, stream_id: int, now: float, out: Output) -> None:
        """Handle the failure of a stream to a peer: end the reader that used it."""
        for reader in list(self._readers.get(node_id, {}).values()):
            if reader.stream_id == stream_id:
                self._end(reader, ErrorCode.CLOSED, now, out)

    def closing(self, now: float, out: Output) -> None:
        """End all readers because the logs are being closed."""
        for node_id in list(self._readers):
            self._end_all(node_id, now, out)

    def next_timer(self) -> float | None:
        """Return the time of the next check of all readers, 0 if one can continue at once, or None."""
        return 0.0 if self._moved else self._sweep_at

    def tick(self, now: float, out: Output) -> None:
        """Check all readers if that is due."""
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_INTERVAL_S if len(self) else None
            self.tokens_changed(now, out)

    def finish(self, now: float, out: Output) -> None:
        """Continue with the readers whose page was sent."""
        while self._moved:
            reader = next(iter(self._moved))
            del self._moved[reader]
            self._go_on(reader, now, out)

    # ── internals ───────────────────────────────────────────────────────────────────────────

    def _take_read(self, peer: Peer, read: Read, now: float, out: Output) -> None:
        readers = self._readers.get(peer.node_id, {})
        if read.req in readers:
            self._counters.count(Reason.HISTORY_DUPLICATE)
            return
        reader = _Reader(peer.node_id, read)
        refusal = self._admission.vet(peer, read.channel, now, token=read.token)
        full = len(self) >= MAX_READERS or not self._has_room(peer, len(readers)) or not peer.work.afford(READ_US, now)
        if refusal is not None or full:
            code = ErrorCode.BUSY if refusal is None else _CODES.get(refusal, ErrorCode.DENIED)
            self._say_error(peer, reader, code, now, out)
            return
        self._readers.setdefault(peer.node_id, {})[read.req] = reader
        self._by_channel.setdefault(read.channel, {})[reader] = None
        if self._sweep_at is None:
            self._sweep_at = now + SWEEP_INTERVAL_S
        self._go_on(reader, now, out)

    def _go_on(self, reader: _Reader, now: float, out: Output) -> None:
        """Ask for the next page of a reader if it is ready for one."""
        if reader.over or reader.asked or reader.sending or (reader.opened and reader.next_seq >= reader.end):
            return
        if not self._still_may(reader, now, out):
            return
        read = reader.read
        reader.asked = True
        size = min(max(read.max_bytes, MIN_PAGE_BYTES), MAX_PAGE_BYTES)
        out.control.append(HistoryWanted(reader.node_id, read.req, read.channel, reader.next_seq, size))

    def _still_may(self, reader: _Reader, now: float, out: Output) -> bool:
        """Return whether a reader may get the next page; end it if it lost the permission."""
        peer, authorizer, channel = self._peers.get(reader.node_id), self._admission.authorizer, reader.read.channel
        if peer is None:
            return False
        why = self._admission.lapse(reader.node_id, channel, now)
        if why is not None:
            self._counters.count(why)
            self._end(reader, _CODES.get(why, ErrorCode.DENIED), now, out)
            return False
        return authorizer.sees(peer.claims, authorizer.config_of(channel))

    def _send_page(self, peer: Peer, reader: _Reader, page: Page, gone: bool, now: float, out: Output) -> None:
        """Send the part of a page that a reader needs: events, a gap, or an empty first answer."""
        count = min(len(page), max(reader.end - page.first_seq, 0))
        answer = count or gone or not reader.opened
        reader.opened = True
        if gone:
            self._counters.add("gap", "history", page.first_available - reader.next_seq)
        reader.next_seq = max(reader.next_seq, page.first_seq) + count
        caught_up = reader.next_seq >= reader.end
        if not answer:
            # The log says that there is more but returned nothing: asking for it again would never end.
            if not caught_up and page.end > reader.next_seq:
                self._end(reader, ErrorCode.CLOSED, now, out)
            return
        chunks = split_chunks(
            reader.read.req,
            reader.next_seq - count,
            page.offsets[: count + 1],
            page.data,
            page.times[:count],
            first_available=page.first_available,
            gap=gone,
            caught_up=caught_up,
            max_message=self._max_message,
        )
        if caught_up and not reader.follows:
            self._forget(reader)
        size = len(page.data) if len(page.data) > MAX_PAGE_BYTES else 0
        self._send(peer, reader, [encode_history(chunk) for chunk in chunks], now, out, large_bytes=size)

    def _may_send(self, node_id: int, size: int) -> bool:
        """Return whether there is memory for a page; one that is larger than all of it is sent when nothing else is."""
        if size <= MAX_PAGE_BYTES:
            return True
        limits = (self._large_pages.total(), MAX_LARGE_PAGES), (self._large_pages[node_id], MAX_LARGE_PAGES_PER_PEER)
        return all(not held or held + size <= most for held, most in limits)

    def _end(self, reader: _Reader, code: ErrorCode, now: float, out: Output, *, first_available: int = 0) -> None:
        """End a reader and send it the error code, if its peer exists; the rest of its current page is not sent."""
        self._forget(reader)
        peer = self._peers.get(reader.node_id)
        if peer is not None:
            self._streams.traffic_of(peer).withdraw(reader.stream_id)
            self._say_error(peer, reader, code, now, out, first_available=first_available)

    def _say_error(
        self, peer: Peer, reader: _Reader, code: ErrorCode, now: float, out: Output, *, first_available: int = 0
    ) -> None:
        self._counters.count(_REASONS[code])
        reader.over = True
        message = encode_history(Error(req=reader.read.req, code=code, first_available=first_available))
        if self._has_room(peer, len(self._readers.get(peer.node_id, ()))):
            self._send(peer, reader, [message], now, out)
        else:
            # No stream for it: a peer that asks faster than it acknowledges gets one packet for each question.
            peer.send_message(Subprotocol.HISTORY, message, out)

    def _has_room(self, peer: Peer, readers: int) -> bool:
        """Return whether a peer may have one more stream of answers, beside those of its open readers."""
        ending = self._ending.get(peer.node_id, {})
        if readers + len(ending) < MAX_READERS_PER_PEER:
            return True
        # Only here: looking which ones have ended costs as much as there are.
        traffic = self._streams.traffic_of(peer)
        for stream_id in [stream_id for stream_id in ending if not traffic.uses(stream_id)]:
            del ending[stream_id]
        return readers + len(ending) < MAX_READERS_PER_PEER

    def _abandon(self, reader: _Reader, out: Output) -> None:
        """End a reader without an answer: it canceled, or its session ended."""
        self._forget(reader)
        peer = self._peers.get(reader.node_id)
        if peer is not None:
            self._streams.traffic_of(peer).abandon(reader.stream_id, out)

    def _forget(self, reader: _Reader) -> None:
        reader.over = True
        of_peer, of_channel = self._readers[reader.node_id], self._by_channel[reader.read.channel]
        del of_peer[reader.read.req], of_channel[reader]
        if not of_peer:
            del self._readers[reader.node_id]
        if not of_channel:
            del self._by_channel[reader.read.channel]

    def _send(
        self, peer: Peer, reader: _Reader, messages: list[bytes], now: float, out: Output, *, large_bytes: int = 0
    ) -> None:
        reader.sending = True
        self._large_pages[peer.node_id] += large_bytes

        def done(_leg: Leg, _sent: bool) -> None:
            self._large_pages[peer.node_id] -= large_bytes
            if not self._large_pages[peer.node_id]:
                del self._large_pages[peer.node_id]
            reader.sending = False
            self._moved[reader] = None

        traffic = self._streams.traffic_of(peer)
        traffic.send_messages(Subprotocol.HISTORY, reader.stream_id, messages, done, now, out)
        if reader.over:
            self._ending.setdefault(peer.node_id, {})[reader.stream_id] = None
            traffic.finish(reader.stream_id, now, out)
