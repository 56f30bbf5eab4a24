"""Outbox: the send queue of one peer, with priorities, turns and deadlines.

A *load* is the packed payloads of one publish, made once and shared by all subscribers. A *leg* is the delivery of one
load to one peer. The legs of one stream are sent in order. Streams of higher priority are sent first; streams of equal
priority take turns of a few packets, so that none starves. A leg that still waits for credit at its deadline ends as
backpressured, although some of its packets may have been sent. A leg without packets is complete at once.

A publish with large events is one leg of several loads, sent one after the other (engine/streams/largeload.py). If it is
reliable and its channel is not, it has a *lane* of its own beside the other legs of its stream, which need not wait for it.

Nothing is sent here: engine/streams/traffic.py takes the turns and reports what it sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Protocol

import msgspec

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.session.link import part_of
from meshbus.errors import MeshError
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.frames import Packed
from meshbus.wire.header import Header

TURN_PACKETS = 56
"""Packets that a stream may send in one turn. Our choice: seven trains of eight full packets (session/link.py)."""


class Cargo(Protocol):
    """What a leg carries: packets that share the pattern of their headers."""

    @property
    def header(self) -> Header:
        """The pattern of the packet headers."""

    @property
    def needs(self) -> int | None:
        """A subprotocol without which the packets must not be sent; None if any peer can read them."""

    @property
    def packets(self) -> int:
        """Number of packets."""

    def cost(self, packet: int) -> int:
        """Return what one packet costs in credit."""

    def number_at(self, packet: int) -> int | None:
        """Return the publisher's number of the first event of a packet, on channels with numbered events."""

    def take(self, start: int, credit: int | None, packets: int) -> Packed | None:
        """Return the next packets for which there is credit, at most `packets`, or None if there is credit for none.

        A credit of None means unlimited.
        """


class Load(msgspec.Struct, frozen=True, eq=False):
    """The payloads of one publish, and the pattern of their packet headers."""

    header: Header
    packed: Packed
    pub_seq: int | None = None
    """The publisher's number of the first event, on channels with numbered events."""

    needs = None

    @property
    def packets(self) -> int:
        """Number of packets."""
        return len(self.packed)

    def cost(self, packet: int) -> int:
        """Return what one packet costs in credit."""
        place = self.packed.bounds.item
        return int(place(packet + 1) - place(packet)) + PACKET_COST

    def number_at(self, packet: int) -> int | None:
        """Return the publisher's number of the first event of a packet, on channels with numbered events."""
        return None if self.pub_seq is None else self.pub_seq + int(self.packed.counts[:packet].sum())

    def take(self, start: int, credit: int | None, packets: int) -> Packed | None:
        """Return the next packets for which there is credit, at most `packets`, or None if there is credit for none."""
        packed = self.packed
        stop = min(start + packets, len(packed))
        if credit is not None:
            place = packed.bounds.item
            base = place(start) + PACKET_COST * start
            if place(stop) + PACKET_COST * stop - base > credit:
                # Packets usually have equal length, so the first one tells for how many there is credit.
                stop = min(start + credit // self.cost(start), stop)
                while stop > start and place(stop) + PACKET_COST * stop - base > credit:
                    stop -= 1
        return part_of(packed, start, stop) if stop > start else None


class Leg:
    """The delivery of loads to one peer."""

    __slots__ = ("deadline", "done", "lane", "load", "number", "problem", "rest", "sent", "wait_s")

    def __init__(
        self, load: Cargo, deadline: float, done: Callable[[Leg, bool], None], *, wait_s: float = 0.0, lane: int = 0
    ) -> None:
        self.load = load
        """What is being sent."""
        self.rest: deque[Cargo] = deque()
        """What is sent after it."""
        self.deadline = deadline
        """When the leg stops waiting for credit; infinity means as long as the peer exists."""
        self.done = done
        """Called once, with whether all packets were sent; must not send anything itself."""
        self.sent = 0
        """Number of packets of the load sent so far."""
        self.number = 0
        """Key of its deadline: a consecutive number among the legs of the outbox."""
        self.wait_s = wait_s
        """Time that the leg gets again whenever its stream makes progress; 0 for none."""
        self.lane = lane or load.header.stream_id
        """The queue in which it waits: its stream, unless it may be overtaken by other legs of the stream."""
        self.problem: MeshError | None = None
        """Why it ended early, if that is not for lack of credit."""

    @property
    def next_number(self) -> int | None:
        """The publisher's number of the next event to send, on channels with numbered events."""
        return self.load.number_at(self.sent)

    def next_part(self, credit: int | None, packets: int) -> Packed | None:
        """Return the next packets for which there is credit, at most `packets`, or None if there is credit for none.

        A credit of None means unlimited.
        """
        return self.load.take(self.sent, credit, packets)


def side_lane(stream_id: int) -> int:
    """Return the lane beside a stream, for legs that the others of the stream may overtake."""
    return ~stream_id  # negative, so that it is no stream id


class Outbox:
    """The legs that still have to be sent to one peer."""

    __slots__ = ("_added", "_deadlines", "_sent", "_streams", "queues")

    def __init__(self) -> None:
        self._added = 0
        self._sent = 0
        """Number of packets sent so far, of all legs."""
        self._deadlines: Deadlines[int] = Deadlines()
        """Deadlines of the waiting legs, by their number."""
        self.queues: dict[int, deque[Leg]] = {}
        """Waiting legs by lane, usually the stream id; a lane without legs has no queue."""
        self._streams: dict[int, deque[int]] = {}
        """Lanes by priority; the first one has the next turn."""

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def waiting(self, stream_id: int) -> int:
        """Return the number of waiting legs of a stream, without those beside it."""
        return len(self.queues.get(stream_id, ()))

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
        queue = self.queues.get(leg.lane)
        if queue is None:
            queue = self.queues[leg.lane] = deque()
            self._streams.setdefault(leg.load.header.priority, deque()).append(leg.lane)
        queue.append(leg)

    def turns(self) -> Iterator[int]:
        """Yield the lane that has the next turn, highest priority first, until a whole round sent nothing.

        The caller sends what it can of `head(lane)` and reports it with `sent` before it takes the next turn.
        """
        # A copy of the keys: a priority without streams is removed below.
        for priority in sorted(self._streams, reverse=True):
            turns = self._streams[priority]
            idle = 0
            while turns and idle < len(turns):
                lane, before = turns[0], self._sent
                # The caller sends while this generator is suspended, so `_sent` and `queues` may change here.
                yield lane
                empty = lane not in self.queues
                idle = idle + 1 if self._sent == before and not empty else 0
                # A leg that was ended meanwhile may have removed its lane already.
                if turns and turns[0] == lane:
                    turns.rotate(-1)
                if empty and lane in turns:
                    turns.remove(lane)
            if not turns:
                del self._streams[priority]

    def head(self, lane: int) -> Leg | None:
        """Return the next leg of a lane, or None."""
        queue = self.queues.get(lane)
        return queue[0] if queue else None

    def end(self, leg: Leg, problem: MeshError) -> None:
        """End a leg early, for another reason than a lack of credit."""
        leg.problem = problem
        self._end(lambda one: one is leg)

    def sent(self, leg: Leg, packets: int, now: float) -> None:
        """Record that packets of a stream's first leg were sent, and end the leg if they were its last."""
        leg.sent += packets
        self._sent += packets
        queue = self.queues[leg.lane]
        if leg.sent == leg.load.packets and leg.rest:
            leg.load, leg.sent = leg.rest.popleft(), 0
        # Progress of a stream gives time to the leg that is at its head afterwards.
        complete = leg.sent == leg.load.packets
        self._renew(queue[1] if complete and len(queue) > 1 else leg, now)
        if complete:
            queue.popleft()
            if not queue:
                del self.queues[leg.lane]
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
        for lane, queue in list(self.queues.items()):
            ended = [leg for leg in queue if ends(leg)]
            if not ended:
                continue
            kept = deque(leg for leg in queue if not ends(leg))
            if kept:
                self.queues[lane] = kept
            else:
                del self.queues[lane]
                for turns in self._streams.values():
                    if lane in turns:
                        turns.remove(lane)
            for leg in ended:
                self._deadlines.drop(leg.number)
                leg.done(leg, False)
