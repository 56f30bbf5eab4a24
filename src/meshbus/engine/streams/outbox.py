"""What waits to be sent on the streams of one peer, and in which order it goes.

A *load* is the packed payloads of one publish, made once and shared by all subscribers. A *leg* is one peer's way
through a load. Legs of one stream go in order; streams of higher priority go first; streams of equal priority take
turns, a few packets each, so that none starves. A leg that still waits for credit at its deadline ends as
backpressured, with whatever was already sent. A leg without packets has arrived at once. Sealing is engine/session/link.py,
credit is engine/session/stream.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

import msgspec

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.packets import Output
from meshbus.engine.session.link import part_of
from meshbus.engine.session.peer import Peer
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.frames import Packed
from meshbus.wire.header import Header

TURN_PACKETS = 56
"""Packets that a stream may send before the next one of equal priority gets its turn: eight trains of full packets."""


class Load(msgspec.Struct, frozen=True, eq=False):
    """Payloads of one publish, with the pattern of their packets' headers."""

    header: Header
    packed: Packed
    pub_seq: int | None = None
    """The publisher's number of the first event, on channels that are numbered."""

    @property
    def packets(self) -> int:
        """How many packets it takes."""
        return len(self.packed)


class Leg:
    """One peer's way through a load."""

    __slots__ = ("deadline", "done", "load", "number", "sent", "wait_s")

    def __init__(self, load: Load, deadline: float, done: Callable[[Leg, bool], None], *, wait_s: float = 0.0) -> None:
        self.load = load
        self.deadline = deadline
        """When waiting for credit ends; infinity waits for as long as the peer is there."""
        self.done = done
        """Called once, with whether all packets went out; must not send anything itself."""
        self.sent = 0
        """Packets that went out."""
        self.number = 0
        """Its place among all legs of an outbox."""
        self.wait_s = wait_s
        """How much time it gets again when its stream moves."""


class Lanes(Protocol):
    """What the outbox asks whoever keeps the streams."""

    def room(self, leg: Leg) -> int:
        """Say how many packets of a leg its stream may send now, beside its credit."""

    def stalled(self, stream_id: int) -> None:
        """Take note that a stream ran out of credit."""

    def prepare(self, leg: Leg, out: Output) -> int | None:
        """Get a stream ready for the next packets of a leg; gives their first sequence if it is not the stream's."""

    def sent(self, leg: Leg, first_sequence: int, part: Packed) -> None:
        """Take note of packets that went out."""


class Outbox:
    """The legs that one peer's streams still have to send."""

    __slots__ = ("_added", "_deadlines", "_queues", "_streams")

    def __init__(self) -> None:
        self._added = 0
        self._deadlines: Deadlines[int] = Deadlines()
        """Of the legs that wait, by number."""
        self._queues: dict[int, deque[Leg]] = {}
        """By stream id; a stream without legs has no queue."""
        self._streams: dict[int, deque[int]] = {}
        """Stream ids by priority, next turn first."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def waiting(self, stream_id: int) -> int:
        """Count the legs of a stream that wait."""
        return len(self._queues.get(stream_id, ()))

    def add(self, leg: Leg) -> None:
        """Queue a leg behind the others of its stream."""
        if not leg.load.packets:
            leg.done(leg, True)
            return
        self._added += 1
        leg.number = self._added
        if leg.deadline < inf:
            self._deadlines.set(leg.number, leg.deadline)
        header = leg.load.header
        queue = self._queues.get(header.stream_id)
        if queue is None:
            queue = self._queues[header.stream_id] = deque()
            self._streams.setdefault(header.priority, deque()).append(header.stream_id)
        queue.append(leg)

    def pump(self, peer: Peer, out: Output, lanes: Lanes) -> None:
        """Send whatever credit and room allow, highest priority first."""
        for priority in sorted(self._streams, reverse=True):
            turns = self._streams[priority]
            idle = 0
            while turns and idle < len(turns):
                stream_id = turns[0]
                moved = self._take_turn(stream_id, peer, out, lanes)
                idle = 0 if moved else idle + 1
                turns.rotate(-1)
                if stream_id not in self._queues:
                    turns.remove(stream_id)
            if not turns:
                del self._streams[priority]

    def expire(self, now: float) -> None:
        """End the legs that waited too long."""
        if self._deadlines.over(now):
            self._end(lambda leg: now >= leg.deadline)

    def renew(self, leg: Leg, now: float) -> None:
        """Give a leg that just moved its whole time again, or the one behind it: who is granted credit is not stuck."""
        if leg.sent == leg.load.packets:
            queue = self._queues[leg.load.header.stream_id]
            leg = queue[1] if len(queue) > 1 else leg
        if leg.wait_s and leg.sent < leg.load.packets:
            leg.deadline = max(leg.deadline, now + leg.wait_s)
            self._deadlines.set(leg.number, leg.deadline)

    def clear(self, ends: Callable[[Leg], bool] = lambda _: True) -> None:
        """End all legs, because the peer is gone; or some of them."""
        self._end(ends)

    def next_timer(self) -> float | None:
        """Give the earliest deadline."""
        return self._deadlines.next()

    def _take_turn(self, stream_id: int, peer: Peer, out: Output, lanes: Lanes) -> bool:
        """Send one turn's worth of a stream; says whether anything moved."""
        queue, stream = self._queues[stream_id], peer.tx_stream(stream_id)
        left, moved = TURN_PACKETS, False
        while queue and left > 0:
            leg = queue[0]
            most = min(left, lanes.room(leg))
            if most <= 0:
                break
            part = _affordable(leg, stream.credit if stream.window else None, most)
            if part is None:
                if not stream.stalled:
                    stream.stalled = True
                    lanes.stalled(stream_id)
                break
            stream.stalled = False
            numbered = lanes.prepare(leg, out)
            own = stream.take(len(part), int(part.bounds[-1] - part.bounds[0]))
            first = own if numbered is None else numbered
            out.trains += peer.link.seal_batch(leg.load.header, part, first)
            leg.sent += len(part)
            left -= len(part)
            moved = True
            lanes.sent(leg, first, part)
            if leg.sent == leg.load.packets:
                queue.popleft()
                self._deadlines.drop(leg.number)
                leg.done(leg, True)
        if not queue:
            del self._queues[stream_id]
        return moved

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


def _affordable(leg: Leg, credit: int | None, most: int) -> Packed | None:
    """Give the next packets of a leg that fit the credit (None is unlimited), at most so many."""
    packed, start = leg.load.packed, leg.sent
    stop = min(start + most, len(packed))
    if credit is not None:
        place = packed.bounds.item
        base = place(start) + PACKET_COST * start
        if place(stop) + PACKET_COST * stop - base > credit:
            # Packets of one length are the rule, so the first one tells how many there is credit for.
            stop = min(start + credit // (place(start + 1) + PACKET_COST * (start + 1) - base), stop)
            while stop > start and place(stop) + PACKET_COST * stop - base > credit:
                stop -= 1
    return part_of(packed, start, stop) if stop > start else None
