"""Outbox: the send queue of one peer, with priorities, turns and deadlines.

A *load* is the packed payloads of one publish, made once and shared by all subscribers. A *leg* is the delivery of one
load to one peer. The legs of one stream are sent in order. Streams of higher priority are sent first; streams of equal
priority take turns of a few packets, so that none starves. A leg that still waits for credit at its deadline ends as
backpressured, although some of its packets may have been sent. A leg without packets is complete at once.

Nothing is sent here: engine/streams/traffic.py takes the turns and reports what it sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf

import msgspec

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.session.link import part_of
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.frames import Packed
from meshbus.wire.header import Header

TURN_PACKETS = 56
"""Packets that a stream may send in one turn. Our choice: eight trains of seven full packets (session/link.py)."""


class Load(msgspec.Struct, frozen=True, eq=False):
    """The payloads of one publish, and the pattern of their packet headers."""

    header: Header
    packed: Packed
    pub_seq: int | None = None
    """The publisher's number of the first event, on channels with numbered events."""

    @property
    def packets(self) -> int:
        """Number of packets."""
        return len(self.packed)


class Leg:
    """The delivery of one load to one peer."""

    __slots__ = ("deadline", "done", "load", "number", "sent", "wait_s")

    def __init__(self, load: Load, deadline: float, done: Callable[[Leg, bool], None], *, wait_s: float = 0.0) -> None:
        self.load = load
        self.deadline = deadline
        """When the leg stops waiting for credit; infinity means as long as the peer exists."""
        self.done = done
        """Called once, with whether all packets were sent; must not send anything itself."""
        self.sent = 0
        """Number of packets sent so far."""
        self.number = 0
        """Key of its deadline: a consecutive number among the legs of the outbox."""
        self.wait_s = wait_s
        """Time that the leg gets again whenever its stream makes progress; 0 for none."""

    @property
    def next_number(self) -> int | None:
        """The publisher's number of the next event to send, on channels with numbered events."""
        number = self.load.pub_seq
        return None if number is None else number + int(self.load.packed.counts[: self.sent].sum())

    def next_part(self, credit: int | None, packets: int) -> Packed | None:
        """Return the next packets for which there is credit, at most `packets`, or None if there is credit for none.

        A credit of None means unlimited.
        """
        packed, start = self.load.packed, self.sent
        stop = min(start + packets, len(packed))
        if credit is not None:
            place = packed.bounds.item
            base = place(start) + PACKET_COST * start
            if place(stop) + PACKET_COST * stop - base > credit:
                # Packets usually have equal length, so the first one tells for how many there is credit.
                stop = min(start + credit // (place(start + 1) + PACKET_COST * (start + 1) - base), stop)
                while stop > start and place(stop) + PACKET_COST * stop - base > credit:
                    stop -= 1
        return part_of(packed, start, stop) if stop > start else None


class Outbox:
    """The legs that still have to be sent to one peer."""

    __slots__ = ("_added", "_deadlines", "_queues", "_sent", "_streams")

    def __init__(self) -> None:
        self._added = 0
        self._sent = 0
        """Number of packets sent so far, of all legs."""
        self._deadlines: Deadlines[int] = Deadlines()
        """Deadlines of the waiting legs, by their number."""
        self._queues: dict[int, deque[Leg]] = {}
        """Waiting legs by stream id; a stream without legs has no queue."""
        self._streams: dict[int, deque[int]] = {}
        """Stream ids by priority; the first one has the next turn."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def waiting(self, stream_id: int) -> int:
        """Return the number of waiting legs of a stream."""
        return len(self._queues.get(stream_id, ()))

    def add(self, leg: Leg) -> None:
        """Append a leg to the queue of its stream."""
        # A queue entry without packets would never be reported as sent, and would block its stream.
        if not leg.load.packets:
            leg.done(leg, True)
            return
        self._added += 1
        leg.number = self._added
        # Legs without a deadline are not in the heap at all.
        if leg.deadline < inf:
            self._deadlines.set(leg.number, leg.deadline)
        header = leg.load.header
        queue = self._queues.get(header.stream_id)
        if queue is None:
            queue = self._queues[header.stream_id] = deque()
            self._streams.setdefault(header.priority, deque()).append(header.stream_id)
        queue.append(leg)

    def turns(self) -> Iterator[int]:
        """Yield the stream that has the next turn, highest priority first, until a whole round sent nothing.

        The caller sends what it can of `head(stream_id)` and reports it with `sent` before it takes the next turn.
        """
        # A copy of the keys: a priority without streams is removed below.
        for priority in sorted(self._streams, reverse=True):
            turns = self._streams[priority]
            idle = 0
            while turns and idle < len(turns):
                stream_id, before = turns[0], self._sent
                # The caller sends while this generator is suspended, so `_sent` and `_queues` may change here.
                yield stream_id
                idle = idle + 1 if self._sent == before else 0
                turns.rotate(-1)
                if stream_id not in self._queues:
                    turns.remove(stream_id)
            if not turns:
                del self._streams[priority]

    def head(self, stream_id: int) -> Leg | None:
        """Return the next leg of a stream, or None."""
        queue = self._queues.get(stream_id)
        return queue[0] if queue else None

    def sent(self, leg: Leg, packets: int, now: float) -> None:
        """Record that packets of a stream's first leg were sent, and end the leg if they were its last."""
        leg.sent += packets
        self._sent += packets
        stream_id = leg.load.header.stream_id
        queue = self._queues[stream_id]
        # Progress of a stream gives time to the leg that is at its head afterwards.
        complete = leg.sent == leg.load.packets
        self._renew(queue[1] if complete and len(queue) > 1 else leg, now)
        if complete:
            queue.popleft()
            if not queue:
                del self._queues[stream_id]
            self._deadlines.drop(leg.number)
            leg.done(leg, True)

    def expire(self, now: float) -> None:
        """End the legs whose deadline has passed."""
        if self._deadlines.over(now):
            self._end(lambda leg: now >= leg.deadline)

    def clear(self, ends: Callable[[Leg], bool] = lambda _: True) -> None:
        """End all legs, or those for which `ends` returns True."""
        self._end(ends)

    def next_timer(self) -> float | None:
        """Return the earliest deadline, or None."""
        return self._deadlines.next()

    def _renew(self, leg: Leg, now: float) -> None:
        """Restart the time limit of a leg: a stream that gets credit is slow, not stuck."""
        if leg.wait_s and leg.sent < leg.load.packets:
            leg.deadline = max(leg.deadline, now + leg.wait_s)
            self._deadlines.set(leg.number, leg.deadline)

    def _end(self, ends: Callable[[Leg], bool]) -> None:
        for stream_id, queue in list(self._queues.items()):
            ended = [leg for leg in queue if ends(leg)]
            if not ended:
                continue
            kept = deque(leg for leg in queue if not ends(leg))
            if kept:
                self._queues[stream_id] = kept
            else:
                del self._queues[stream_id]
                for turns in self._streams.values():
                    if stream_id in turns:
                        turns.remove(stream_id)
            for leg in ended:
                self._deadlines.drop(leg.number)
                leg.done(leg, False)
