"""Scoreboard: the unacknowledged packets of a reliable stream, and the state of each.

A packet here is *flying* (sent, nothing known), *arrived* (above a gap) or *lost*. It is dropped when it and everything
before it is acknowledged. Batches are kept as they were sent, and the states of all packets are one bytearray, so that
sending or acknowledging a batch costs about the same for one packet and for hundreds. Only a packet that was sent again
has an object of its own. engine/streams/retransmit.py decides when to send again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from meshbus.wire.constants import PACKET_COST
from meshbus.wire.messages.reliable import Base

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REPORTS = 3
"""A packet is lost when this many later packets arrived: profile.md §2, and TCP's threshold (RFC 5681)."""

_FLYING, _ARRIVED, _LOST = 0, 1, 2

_first_of = attrgetter("first")


class Outstanding(msgspec.Struct, frozen=True, eq=False):
    """A packet to send again, with its old sequence and a new nonce (transport.md §12)."""

    sequence: int
    payload: memoryview
    event_count: int
    stamp: int = 0


class Settled(msgspec.Struct, frozen=True):
    """What an acknowledgement removed from the scoreboard."""

    packets: int = 0
    """Number of data packets."""
    wire_bytes: int = 0
    """Their cost in credit."""
    sent_at: float | None = None
    """When the newest packet was sent; None if it was sent twice or was already known to have arrived."""


class Flight:
    """Packets that were sent together; or one BASE, which has a sequence like a packet."""

    __slots__ = ("base", "bounds", "counts", "data", "end", "first", "pub_seq", "sent_at", "stamp")

    def __init__(
        self,
        first: int,
        data: memoryview,
        bounds: Sequence[int] | NDArray[np.int64],
        counts: Sequence[int] | NDArray[np.int64],
        *,
        pub_seq: int | None,
        now: float,
        stamp: int = 0,
    ) -> None:
        self.first = first
        self.end = first + len(counts)
        self.data = data
        self.bounds = bounds
        """Payload `i` is `data[bounds[i] : bounds[i + 1]]`."""
        self.counts = counts
        """Number of events in each payload."""
        self.pub_seq = pub_seq
        """The number of the first event, if events are numbered."""
        self.sent_at = now
        self.stamp = stamp
        """When the events were published (wire/stamp.py)."""
        self.base: Base | None = None

    @classmethod
    def of_base(cls, sequence: int, base: Base, now: float) -> Flight:
        """Build the flight of a single BASE."""
        flight = cls(sequence, memoryview(b""), (0, 0), (0,), pub_seq=base.pub_seq, now=now)
        flight.base = base
        return flight

    def packet(self, sequence: int) -> Outstanding:
        """Return one of the packets."""
        i = sequence - self.first
        payload = self.data[int(self.bounds[i]) : int(self.bounds[i + 1])]
        return Outstanding(sequence, payload, int(self.counts[i]), self.stamp)

    def wire_bytes(self, start: int, end: int) -> int:
        """Return the cost in credit of the packets in [start, end); a BASE costs none."""
        if self.base is not None:
            return 0
        i, j = start - self.first, end - self.first
        return int(self.bounds[j]) - int(self.bounds[i]) + PACKET_COST * (j - i)

    def start_at(self, sequence: int, stream_id: int) -> Base:
        """Build the START that lets a receiver begin at one of the packets."""
        if self.base is not None:
            return msgspec.structs.replace(self.base, start=True)
        ahead = int(sum(self.counts[: sequence - self.first]))
        pub_seq = None if self.pub_seq is None else self.pub_seq + ahead
        return Base(stream_id=stream_id, sequence=sequence, pub_seq=pub_seq, start=True)


class Resent:
    """State of a packet that was sent more than once."""

    __slots__ = ("after", "sent_at", "tries")

    def __init__(self) -> None:
        self.tries = 0
        self.sent_at = 0.0
        self.after = 0
        """The next sequence at the time of the last try: packets from here on were sent after it."""


class Scoreboard:
    """All packets from the oldest unacknowledged one to the newest."""

    __slots__ = ("_flights", "_resent", "_state", "base", "flying", "lost", "next_sequence", "unacked_bytes")

    def __init__(self, first_sequence: int) -> None:
        self.base = first_sequence
        """The oldest unacknowledged sequence."""
        self.next_sequence = first_sequence
        self.flying = 0
        self.lost = 0
        self.unacked_bytes = 0
        """Cost in credit of all data packets here, including those that arrived above a gap."""
        self._state = bytearray()
        """One byte for each sequence from `base` up to `next_sequence`."""
        self._flights: deque[Flight] = deque()
        self._resent: dict[int, Resent] = {}

    def __len__(self) -> int:
        return len(self._state)

    @property
    def oldest(self) -> Flight:
        """The flight of the oldest packet; the scoreboard must not be empty."""
        return self._flights[0]

    @property
    def repeated(self) -> bool:
        """Whether a packet here was sent more than once."""
        return bool(self._resent)

    @property
    def oldest_arrived(self) -> bool:
        """Whether the oldest packet is marked as arrived: the receiver once had it and has lost it since."""
        return bool(self._state) and self._state[0] == _ARRIVED

    def add(self, flight: Flight) -> None:  # hot: bench_stream
        """Add packets that are being sent, starting with `next_sequence`."""
        count = flight.end - flight.first
        if not count:
            return
        self._flights.append(flight)
        self._state += bytes(count)
        self.flying += count
        self.next_sequence = flight.end
        self.unacked_bytes += flight.wire_bytes(flight.first, flight.end)

    def advance(self, cumulative: int) -> Settled:  # hot: bench_stream
        """Drop everything below a sequence, which must be between `base` and `next_sequence`."""
        state, flights, start = self._state, self._flights, self.base
        count = cumulative - start
        if not count:
            return Settled()
        self.flying -= state.count(_FLYING, 0, count)
        if self.lost:
            self.lost -= state.count(_LOST, 0, count)
        # Karn's algorithm: only a packet that was sent once gives a round trip, and only when it is first confirmed.
        fresh = state[count - 1] != _ARRIVED and cumulative - 1 not in self._resent
        del state[:count]
        packets = size = 0
        flight = flights[0]
        while start < cumulative:
            flight = flights[0]
            end = min(flight.end, cumulative)
            if flight.base is None:
                packets += end - start
                size += flight.wire_bytes(start, end)
            if end == flight.end:
                flights.popleft()
            start = end
        self.base = cumulative
        self.unacked_bytes -= size
        if self._resent:
            self._resent = {sequence: what for sequence, what in self._resent.items() if sequence >= cumulative}
        return Settled(packets, size, flight.sent_at if fresh else None)

    def mark(self, ranges: Sequence[tuple[int, int]]) -> tuple[int, float | None]:
        """Mark packets that arrived above a gap.

        Returns the number of ranges that name packets which were never sent (they are ignored), and when the newest
        packet among those that were not marked before was sent, if it was sent only once.
        """
        state, base, size = self._state, self.base, len(self._state)
        wrong, newest = 0, -1
        for first, count in ranges:
            start, end = max(first - base, 0), first + count - base
            if end > size:
                wrong += 1
                continue
            if end <= start:
                continue
            flying, lost = state.count(_FLYING, start, end), state.count(_LOST, start, end)
            # All of it was reported before.
            if not flying + lost:
                continue
            if state[end - 1] != _ARRIVED:
                newest = max(newest, end - 1)
            self.flying -= flying
            self.lost -= lost
            state[start:end] = bytes((_ARRIVED,)) * (end - start)
        fresh = newest >= 0 and base + newest not in self._resent
        return wrong, self._flight_of(base + newest).sent_at if fresh else None

    def lose_overtaken(self) -> None:
        """Mark packets as lost after which `REPORTS` later ones arrived."""
        state = self._state
        # Find the third newest packet that arrived: everything still flying below it has three later arrivals.
        third = len(state)
        for _ in range(REPORTS):
            third = state.rfind(_ARRIVED, 0, third)
            if third < 0:
                return
        position = state.find(_FLYING, 0, third)
        while position >= 0:
            resent = self._resent.get(self.base + position)
            # A packet that was sent again counts as lost only if the later ones were sent after its last try.
            if resent is None or resent.after <= self.base + third:
                self._lose(position)
            position = state.find(_FLYING, position + 1, third)

    def lose_first_gap(self) -> None:
        """Mark the packets of the first gap as lost, except those that were already sent again."""
        for position in range(max(self._state.find(_ARRIVED), 0)):
            if self._state[position] == _FLYING and self.base + position not in self._resent:
                self._lose(position)

    def lose_expired(self, limit: float) -> None:
        """Mark all packets as lost that were last sent at this time or before."""
        # Flights are in the order of sending, so the first one that is too young ends the search.
        for flight in self._flights:
            if flight.sent_at > limit:
                return
            end = flight.end - self.base
            position = self._state.find(_FLYING, max(flight.first - self.base, 0), end)
            while position >= 0:
                resent = self._resent.get(self.base + position)
                if resent is None or resent.sent_at <= limit:
                    self._lose(position)
                position = self._state.find(_FLYING, position + 1, end)

    def lose(self, sequences: Iterable[int], limit: float, again_limit: float, shown: int) -> None:
        """Mark these packets as lost, except those that arrived or are gone, or that may still be on the way.

        Those are packets that were sent once and after `limit`; and packets that were sent again after `again_limit`, or
        when `shown`, the latest packet that is known to have arrived, had been sent already.
        """
        for sequence in sequences:
            position = sequence - self.base
            if not 0 <= position < len(self._state) or self._state[position] != _FLYING:
                continue
            resent = self._resent.get(sequence)
            if resent is None:
                lost = self._flight_of(sequence).sent_at <= limit
            else:
                lost = resent.sent_at <= again_limit and resent.after <= shown
            if lost:
                self._lose(position)

    def lose_oldest(self) -> None:
        """Mark the oldest packet as lost, whatever its state."""
        if self._state[0] != _LOST:
            self._lose(0)

    def lose_arrived(self) -> None:
        """Mark everything as lost that arrived above a gap, because the receiver lost its state."""
        self.lost += self._state.count(_ARRIVED)
        self._state = self._state.replace(bytes((_ARRIVED,)), bytes((_LOST,)))

    def take_lost(self, most: int, now: float) -> list[tuple[Flight, int, Resent]]:
        """Mark the oldest lost packets as flying again, and return their flights, sequences and tries."""
        taken: list[tuple[Flight, int, Resent]] = []
        position = -1
        for _ in range(min(most, self.lost)):
            position = self._state.find(_LOST, position + 1)
            sequence = self.base + position
            self._state[position] = _FLYING
            taken.append((self._flight_of(sequence), sequence, self._again(sequence, now)))
        self.lost -= len(taken)
        self.flying += len(taken)
        return taken

    def repeat(self, sequence: int, now: float) -> Outstanding:
        """Return a packet that is sent again without being lost; its acknowledgement then shows no round trip."""
        self._again(sequence, now)
        return self._flight_of(sequence).packet(sequence)

    def forget_tries(self) -> None:
        """Reset the number of tries of all packets."""
        for resent in self._resent.values():
            resent.tries = 0

    def clear(self) -> None:
        """Drop all packets."""
        self._flights.clear()
        self._resent.clear()
        self._state.clear()
        self.base = self.next_sequence
        self.flying = self.lost = self.unacked_bytes = 0

    def _lose(self, position: int) -> None:
        if self._state[position] == _FLYING:
            self.flying -= 1
        self._state[position] = _LOST
        self.lost += 1

    def _again(self, sequence: int, now: float) -> Resent:
        """Record that a packet is sent again."""
        resent = self._resent.setdefault(sequence, Resent())
        resent.tries += 1
        resent.sent_at, resent.after = now, self.next_sequence
        return resent

    def _flight_of(self, sequence: int) -> Flight:
        return self._flights[bisect_right(self._flights, sequence, key=_first_of) - 1]
