"""What became of each packet of a reliable stream: the sender's memory, without its decisions.

A packet that is kept here is *flying*, *arrived* (above a gap) or *lost*; the oldest are dropped when everything up to
them was acknowledged. Batches are kept as they came, and the state of all packets is one bytearray, so that sending or
acknowledging a batch costs the same whether it holds one packet or hundreds. Only a packet that was sent again has an
object of its own. When to send again is decided in engine/streams/retransmit.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from meshbus.wire.constants import PACKET_COST
from meshbus.wire.messages.reliable import Base

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REPORTS = 3
"""So many later packets that arrived make a loss of one that did not."""

_FLYING, _ARRIVED, _LOST = 0, 1, 2

_first_of = attrgetter("first")


class Outstanding(msgspec.Struct, frozen=True, eq=False):
    """A packet to send again, under its old sequence and a new nonce."""

    sequence: int
    payload: memoryview
    event_count: int


class Settled(msgspec.Struct, frozen=True):
    """What an acknowledgement settled for good."""

    packets: int = 0
    """Data packets."""
    wire_bytes: int = 0
    """What they cost in credit."""
    sent_at: float | None = None
    """When the newest packet left; None when it left twice, or was known to have arrived."""


class Flight:
    """Packets that left together; or one BASE, which takes the place of a packet."""

    __slots__ = ("base", "bounds", "counts", "data", "end", "first", "pub_seq", "sent_at")

    def __init__(
        self,
        first: int,
        data: memoryview,
        bounds: Sequence[int] | NDArray[np.int64],
        counts: Sequence[int] | NDArray[np.int64],
        *,
        pub_seq: int | None,
        now: float,
    ) -> None:
        self.first = first
        self.end = first + len(counts)
        self.data = data
        self.bounds = bounds
        """Payload `i` is `data[bounds[i] : bounds[i + 1]]`."""
        self.counts = counts
        """Events in each payload."""
        self.pub_seq = pub_seq
        """The number of the first event, where events have numbers."""
        self.sent_at = now
        self.base: Base | None = None

    @classmethod
    def of_base(cls, sequence: int, base: Base, now: float) -> Flight:
        """Let a BASE take the place of a packet."""
        flight = cls(sequence, memoryview(b""), (0, 0), (0,), pub_seq=base.pub_seq, now=now)
        flight.base = base
        return flight

    def packet(self, sequence: int) -> Outstanding:
        """Give one of the packets."""
        i = sequence - self.first
        return Outstanding(sequence, self.data[int(self.bounds[i]) : int(self.bounds[i + 1])], int(self.counts[i]))

    def wire_bytes(self, start: int, end: int) -> int:
        """Give what the packets from one sequence up to another cost in credit; a BASE costs none."""
        if self.base is not None:
            return 0
        i, j = start - self.first, end - self.first
        return int(self.bounds[j]) - int(self.bounds[i]) + PACKET_COST * (j - i)

    def start_at(self, sequence: int, stream_id: int) -> Base:
        """Make the BASE that lets a receiver start at one of the packets."""
        if self.base is not None:
            return msgspec.structs.replace(self.base, start=True)
        ahead = int(sum(self.counts[: sequence - self.first]))
        pub_seq = None if self.pub_seq is None else self.pub_seq + ahead
        return Base(stream_id=stream_id, sequence=sequence, pub_seq=pub_seq, start=True)


class Resent:
    """What is remembered about a packet that was sent more than once."""

    __slots__ = ("after", "sent_at", "tries")

    def __init__(self) -> None:
        self.tries = 0
        self.sent_at = 0.0
        self.after = 0
        """Sequences from here on left after the last try."""


class Scoreboard:
    """All packets from the oldest that is not acknowledged to the newest."""

    __slots__ = ("_flights", "_resent", "_state", "base", "flying", "lost", "next_sequence", "unacked_bytes")

    def __init__(self, first_sequence: int) -> None:
        self.base = first_sequence
        """The oldest sequence that is not acknowledged."""
        self.next_sequence = first_sequence
        self.flying = 0
        self.lost = 0
        self.unacked_bytes = 0
        """What the data packets here cost in credit, those that arrived above a gap included."""
        self._state = bytearray()
        """One byte for each sequence from `base` to `next_sequence`."""
        self._flights: deque[Flight] = deque()
        self._resent: dict[int, Resent] = {}

    def __len__(self) -> int:
        return len(self._state)

    @property
    def oldest(self) -> Flight:
        """The flight of the oldest packet; there must be one."""
        return self._flights[0]

    @property
    def oldest_arrived(self) -> bool:
        """Say whether the oldest packet arrived, although it is not acknowledged with everything before it."""
        return bool(self._state) and self._state[0] == _ARRIVED

    def add(self, flight: Flight) -> None:  # hot: bench_stream
        """Keep packets that leave now, the first with `next_sequence`."""
        count = flight.end - flight.first
        if not count:
            return
        self._flights.append(flight)
        self._state += bytes(count)
        self.flying += count
        self.next_sequence = flight.end
        self.unacked_bytes += flight.wire_bytes(flight.first, flight.end)

    def advance(self, cumulative: int) -> Settled:  # hot: bench_stream
        """Drop everything below a sequence that lies between `base` and `next_sequence`."""
        state, flights, start = self._state, self._flights, self.base
        count = cumulative - start
        if not count:
            return Settled()
        self.flying -= state.count(_FLYING, 0, count)
        if self.lost:
            self.lost -= state.count(_LOST, 0, count)
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
        """Note packets that arrived above a gap.

        Gives how many ranges named packets that were never sent, which are ignored; and when the newest new arrival
        left, if it left only once.
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
        """Give up on packets that were overtaken: enough that left after them arrived."""
        state = self._state
        third = len(state)
        for _ in range(REPORTS):
            third = state.rfind(_ARRIVED, 0, third)
            if third < 0:
                return
        position = state.find(_FLYING, 0, third)
        while position >= 0:
            resent = self._resent.get(self.base + position)
            if resent is None or resent.after <= self.base + third:
                self._lose(position)
            position = state.find(_FLYING, position + 1, third)

    def lose_first_gap(self) -> None:
        """Give up on the packets of the first gap, except those that are already being sent again."""
        for position in range(max(self._state.find(_ARRIVED), 0)):
            if self._state[position] == _FLYING and self.base + position not in self._resent:
                self._lose(position)

    def lose_expired(self, limit: float) -> None:
        """Give up on all packets that left at this time or before."""
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

    def lose_oldest(self) -> None:
        """Give up on the oldest packet, whatever is known about it."""
        if self._state[0] != _LOST:
            self._lose(0)

    def lose_arrived(self) -> None:
        """Give up on everything that arrived above a gap: the receiver lost its memory."""
        self.lost += self._state.count(_ARRIVED)
        self._state = self._state.replace(bytes((_ARRIVED,)), bytes((_LOST,)))

    def take_lost(self, most: int, now: float) -> list[tuple[Flight, int, Resent]]:
        """Let the oldest lost packets fly again; gives their flights, sequences and how often they were tried."""
        taken: list[tuple[Flight, int, Resent]] = []
        position = -1
        for _ in range(min(most, self.lost)):
            position = self._state.find(_LOST, position + 1)
            sequence = self.base + position
            resent = self._resent.setdefault(sequence, Resent())
            resent.tries += 1
            resent.sent_at, resent.after = now, self.next_sequence
            self._state[position] = _FLYING
            taken.append((self._flight_of(sequence), sequence, resent))
        self.lost -= len(taken)
        self.flying += len(taken)
        return taken

    def forget_tries(self) -> None:
        """Start counting tries anew."""
        for resent in self._resent.values():
            resent.tries = 0

    def clear(self) -> None:
        """Drop everything."""
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

    def _flight_of(self, sequence: int) -> Flight:
        return self._flights[bisect_right(self._flights, sequence, key=_first_of) - 1]
