"""Ordered streams: reliable streams of net-mesh peers, put in order, without repeats (dialects.md §3.2, rules 3 and 4).

A peer of level B or C repeats what is not acknowledged. Its packets pass through a `ReliableRx`
(engine/streams/reorder.py), the grants acknowledge them, and NACKs ask for those that are missing:

* Sequences begin at 0, or where a packet with the start flag says. The flag gives up what is missing below it.
* Only what was delivered is granted, never what waits behind a gap, and never a gap: a sender then cannot have more on
  the way than the reader has room for.
* While a gap stays, a NACK is due every `NACK_S`. As long as the level of the peer is unknown, an empty packet is sent
  instead, whose grant shows the level: a peer of level A would take a NACK for an event.
* If the peer turns out to be of level A, what waits is delivered, and the stream is plain from then on.
* A RESET, and a gap that stays for `GAP_S`, give up everything that is missing.
* A sequence that was passed is a repeat and is dropped, and the grant is sent again. If it is a new beginning (the
  sequence 0 or the start flag, with another content or after a long silence), the stream begins again.

Publications never come here: no version repeats them, so nobody must wait for their gaps.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import NamedTuple
from zlib import crc32

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import RANGES_TAG, Level
from meshbus.engine.session.peer import MAX_STREAMS, Peer
from meshbus.engine.streams.reliable import Ready
from meshbus.engine.streams.reorder import DEFAULT_BUDGET, DEFAULT_CAPACITY, Budget, Payloads, ReliableRx
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import CONTROL_STREAM, Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.messages.streamrepair import MAX_RANGES, StreamNack, StreamRanges, encode_nack, encode_ranges

NACK_S = 0.025
"""Between two NACKs for a gap that stays (dialects.md §2.2)."""
PROBE_S = 0.25
"""Between two empty packets to a peer of unknown level. Our choice: a few round trips."""
GAP_S = 10.0
"""How long a gap may stay. Our choice: longer than the 7.3 s for which level C repeats a packet (dialects.md §1)."""
REOPEN_S = 2.0
"""A sender may open a stream again this long after it closed it (dialects.md §5.5)."""
MAX_ASKED = 64
"""Streams whose missing packets are asked for at once; more have to wait for `NACK_S`. Our choice: a peer may have gaps
in thousands of streams, and must not cause as many answers."""
PROBE_STREAM = 0x4D42
"""Stream of the empty packets that show a peer's level; nothing else uses it."""


BOUNDS = (
    Bound(
        name="ordered_streams",
        what="reliable streams of a net-mesh peer that are put in order",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_STREAMS},
        full="the one that was idle longest goes",
        counter=Reason.TOO_MANY_STREAMS,
    ),
    Bound(
        name="ordering",
        what="bytes that wait for an earlier packet of a net-mesh peer's reliable stream",
        by=By.PEER,
        per_node=None,
        per={"peer": DEFAULT_BUDGET, "stream, in packets": DEFAULT_CAPACITY},
        unit="bytes",
        full="the new packet is dropped, and sent again later",
        counter=Reason.BUFFER_FULL,
    ),
)


class Released(NamedTuple):
    """What a stream releases for delivery."""

    ready: Ready
    lost: int = 0
    """Packets that were given up before it."""


class _Ordered:
    """One stream, and what its packets have in common."""

    __slots__ = ("came", "first", "gap_at", "moved_at", "rx", "started_at")

    def __init__(self, rx: ReliableRx, came: Ready, now: float) -> None:
        self.rx = rx
        self.came = came
        """The packets that came last; what is released later has their origin and stamp."""
        self.first: tuple[int, int] | None = None
        """Sequence and checksum of the first packet."""
        self.gap_at: float | None = None
        """Since when the first packet is missing."""
        self.started_at = self.moved_at = now

    @property
    def next_sequence(self) -> int:
        """The sequence to deliver next."""
        return self.rx.next_sequence or 0


class Ordering:
    """The ordered streams from one peer."""

    def __init__(self, peer: Peer, counters: Counters) -> None:
        self._peer = peer
        self._counters = counters
        self._streams: OrderedDict[int, _Ordered] = OrderedDict()
        """The one that was used last is at the end."""
        self._gaps: Deadlines[int] = Deadlines()
        """When to ask for what is missing."""
        self._asks_from = -inf
        """Before this time nothing is asked for, because too much was missing at once."""
        self._budget = Budget()

    def receive(self, came: Ready, now: float, *, start: bool) -> Released:
        """Handle packets of one stream, and return what can be delivered; `start` if they carry the start flag."""
        stream_id, (payloads,) = came.stream_id, came.payloads
        if start:
            self._peer.dialect.learn(Level.C)
        lowest = int(payloads.sequences.min())
        ordered, lost = self._streams.get(stream_id), 0
        released: list[Payloads] = []
        if ordered is not None and (start or not lowest) and self._begins_again(ordered, payloads, start, now):
            self._drop(stream_id)
            ordered = None
            self._counters.add("restart", "stream")
        if ordered is None:
            ordered = self._open(came, lowest, now, start=start)
        elif start and lowest > ordered.next_sequence:
            released, lost = ordered.rx.skip_to(lowest, now)
        self._streams.move_to_end(stream_id)
        ordered.came = came
        released = [*released, *ordered.rx.accept(payloads, now)]
        if released:
            ordered.moved_at = now
        self._look(stream_id, ordered, now, moved=bool(released))
        return Released(came._replace(payloads=released), self._count_lost(lost))

    def ack_of(self, stream_id: int) -> int:
        """Return the lowest sequence that did not arrive yet; 0 on a stream that is not ordered."""
        ordered = self._streams.get(stream_id)
        return 0 if ordered is None else ordered.next_sequence

    def reset(self, stream_id: int, now: float) -> Released | None:
        """Handle a RESET: nothing that is missing will come. Returns what waited, or None for an unknown stream."""
        ordered = self._streams.get(stream_id)
        if ordered is None:
            self._counters.count(Reason.REPAIR_UNKNOWN_STREAM)
            return None
        return self._give_up(stream_id, ordered, now)

    def close(self, now: float) -> list[Released]:
        """End all streams, and return what waited in them."""
        released = [self._give_up(stream_id, ordered, now) for stream_id, ordered in self._streams.items()]
        for stream_id in list(self._streams):
            self._drop(stream_id)
        return released

    def next_timer(self) -> float | None:
        """Return when `tick` is due, or None."""
        due = self._gaps.next()
        return None if due is None else max(due, self._asks_from)

    def tick(self, now: float, out: Output) -> list[Released]:
        """Ask for what is missing, and return what is delivered because it was missing too long."""
        released: list[Released] = []
        nacks: list[bytes] = []
        ranges: list[bytes] = []
        probed = False
        due = [] if now < self._asks_from else self._gaps.over(now, 2 * MAX_ASKED)
        # Some are moved behind those that come now, never all.
        for stream_id in due[MAX_ASKED:]:
            self._gaps.set(stream_id, now + NACK_S)
            self._asks_from = now + NACK_S
        for stream_id in due[:MAX_ASKED]:
            ordered = self._streams[stream_id]
            if ordered.gap_at is None or not ordered.rx.waiting:
                continue
            if now - ordered.gap_at >= GAP_S:
                released.append(self._give_up(stream_id, ordered, now))
                continue
            known = self._peer.dialect.repairs
            self._gaps.set(stream_id, now + (NACK_S if known else PROBE_S))
            if known:
                nacks.append(encode_nack(StreamNack.of(stream_id, ordered.next_sequence, ordered.rx.ahead)))
                ranges += self._ranges(stream_id, ordered)
            elif not probed:
                probed = True
                self._probe(out)
        for subprotocol_id, messages in ((Subprotocol.STREAM_NACK, nacks), (Subprotocol.STREAM_RANGES, ranges)):
            self._peer.send_messages(subprotocol_id, messages, out, stream_id=CONTROL_STREAM)
        return released

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _open(self, came: Ready, lowest: int, now: float, *, start: bool) -> _Ordered:
        if len(self._streams) >= MAX_STREAMS:
            self._drop(next(iter(self._streams)))
            self._counters.count(Reason.TOO_MANY_STREAMS)
        rx = ReliableRx(came.stream_id, counters=self._counters, budget=self._budget)
        # dialects.md §3.2: a stream begins at 0. Further away than a sender may be ahead, it was forgotten here.
        first = lowest if start or lowest >= rx.capacity else 0
        rx.begin(first)
        ordered = self._streams[came.stream_id] = _Ordered(rx, came, now)
        ordered.first = _first_of(came.payloads[0], lowest)
        return ordered

    def _begins_again(self, ordered: _Ordered, payloads: Payloads, start: bool, now: float) -> bool:
        lowest = int(payloads.sequences.min())
        if lowest >= ordered.next_sequence:
            return False
        if now - ordered.moved_at >= GAP_S:
            return True
        other = ordered.first != _first_of(payloads, lowest)
        return other and (start or now - ordered.started_at >= REOPEN_S)

    def _look(self, stream_id: int, ordered: _Ordered, now: float, *, moved: bool) -> None:
        """Watch for a gap after packets came."""
        if not ordered.rx.waiting:
            ordered.gap_at = None
            self._gaps.drop(stream_id)
            return
        if ordered.gap_at is None or moved:
            ordered.gap_at = now
        if stream_id not in self._gaps:
            self._gaps.set(stream_id, now)

    def _give_up(self, stream_id: int, ordered: _Ordered, now: float) -> Released:
        end = max(ordered.rx.ahead, default=-1) + 1
        released, lost = ordered.rx.skip_to(end, now)
        ordered.gap_at = None
        self._gaps.drop(stream_id)
        return Released(ordered.came._replace(payloads=released), self._count_lost(lost))

    def _count_lost(self, lost: int) -> int:
        if lost:
            self._counters.add("loss", "missing_packets", lost)
        return lost

    def _drop(self, stream_id: int) -> None:
        self._streams.pop(stream_id).rx.close()
        self._gaps.drop(stream_id)

    def _ranges(self, stream_id: int, ordered: _Ordered) -> list[bytes]:
        """Return the message about what arrived above a gap, for a peer that announced that it reads it."""
        if RANGES_TAG not in self._peer.claims.capabilities.tags:
            return []
        ack = ordered.rx.make_ack()
        newest = tuple((start, start + count) for start, count in reversed(ack.ranges))[:MAX_RANGES]
        return [encode_ranges(StreamRanges(stream_id=stream_id, ack_seq=ordered.next_sequence, ranges=newest))]

    def _probe(self, out: Output) -> None:
        """Send an empty packet: every version grants it, in the form that it reads itself (dialects.md §3.1)."""
        sequence = self._peer.tx_stream(PROBE_STREAM).take(1, 0)
        out.trains.append(self._peer.link.seal(Header(stream_id=PROBE_STREAM, sequence=sequence), b""))
        self._counters.add("dialect", "probe")


def _first_of(payloads: Payloads, lowest: int) -> tuple[int, int]:
    """Return what tells the first packet of a stream from that of another stream under the same id."""
    place = payloads.sequences.tolist().index(lowest)
    start, length = int(payloads.starts[place]), int(payloads.lengths[place])
    return lowest, crc32(payloads.data[start : start + length].tobytes())


def is_ordered(peer: Peer) -> bool:
    """Return whether the reliable streams of a peer are put in order: it may repeat, and has no better way."""
    return peer.dialect.level is not Level.A and not peer.uses(Subprotocol.RELIABLE)
