"""The receiving half of a reliable stream: deliver every packet once and in order, and say what arrived.

One `ReliableRx` is one direction of one stream from one peer, and belongs to the peer, not to a session. The other
half is engine/streams/retransmit.py, the bytes are wire/messages/reliable.py.

How it is used: `accept` takes the packets of a drained batch and gives those that may be delivered, `on_base` does the
same for a BASE; then, once per batch, `ack_due` says whether to send `make_ack`; and again when `next_timer` has passed.

The rules:

* Packets come as columns over one buffer (`Payloads`). A batch that holds exactly the next packets, with nothing
  waiting, is handed on as it is: nothing is copied and nothing is done per packet. Everything else goes packet by
  packet, and what comes out was copied once.
* What cannot be delivered yet is copied and kept, at most `capacity` packets ahead and as long as the `Budget`, which
  may be shared by all streams of a peer, allows. The next packet in order is always accepted, so a full buffer slows
  a stream down and never stops it.
* A stream starts with a BASE that says so. What arrives earlier is kept and reported with cumulative 0: the sender
  answers with such a BASE, also when we are the ones who forgot the stream. A later one is obeyed too: a sequence
  ahead of us skips what the sender no longer has, one out of all proportion is a new stream under the old id.
* A BASE takes the place of the packet before the one it names, so it is delivered in order too: `pub_seq` of what is
  delivered is right, or None where the sender does not number its events.
* An acknowledgement is due at once when a packet was missing, repeated or not kept, else with the eighth packet or
  5 ms after the first. Several batches may share one; a batch never causes more than one.
* While the application cannot take more (`hold`), acknowledgements say that nothing is free; what is on its way is
  still taken in.
* Duplicates, packets beyond the window and those without a place are dropped and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.engine.base.counters import Counters
from meshbus.policy.reason import Reason
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.messages.reliable import MAX_RANGES, NEW_STREAM_DISTANCE, Ack, Base, Fin, FinAck

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_CAPACITY = 1024
"""Packets that may wait for an earlier one."""
DEFAULT_BUDGET = 1 << 20
"""Twice the byte window between two meshbus nodes."""
ACK_PACKETS = 8
ACK_DELAY_S = 0.005
_MAX_NUMBER = 1 << 63
"""No honest sequence or publish number gets here, and counting on from it stays within 64 bits."""


class Payloads(msgspec.Struct, frozen=True, eq=False):
    """Payloads of packets in one buffer, with their sequences."""

    sequences: NDArray[np.uint64]
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    """Payload `i` is `data[starts[i] : starts[i] + lengths[i]]`."""
    counts: NDArray[np.int64]
    """Events in each packet, as its header says."""
    pub_seq: int | None = None
    """Of what is delivered: the publisher's number of the first event; the others count on."""

    def __len__(self) -> int:
        return len(self.sequences)


class Budget:
    """Bytes that packets may take up while they wait."""

    __slots__ = ("left", "limit")

    def __init__(self, limit: int = DEFAULT_BUDGET) -> None:
        self.limit = limit
        self.left = limit


class _Assembly:
    """Packets that became deliverable, cut where the numbers jump."""

    __slots__ = ("_packets", "_pub_seq", "runs")

    def __init__(self, pub_seq: int | None) -> None:
        self.runs: list[Payloads] = []
        self._packets: list[tuple[int, bytes | memoryview, int]] = []
        self._pub_seq = pub_seq

    def add(self, sequence: int, payload: bytes | memoryview, count: int) -> None:
        """Add the next packet."""
        self._packets.append((sequence, payload, count))

    def cut(self, pub_seq: int | None) -> None:
        """End a run; the next one starts with this number."""
        if self._packets:
            sequences, payloads, counts = zip(*self._packets, strict=True)
            lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
            self.runs.append(
                Payloads(
                    np.array(sequences, np.uint64),
                    np.frombuffer(bytearray().join(payloads), np.uint8),
                    np.cumsum(lengths) - lengths,
                    lengths,
                    np.array(counts, np.int64),
                    self._pub_seq,
                )
            )
            self._packets = []
        self._pub_seq = pub_seq


class ReliableRx:
    """The receiving half of one reliable stream."""

    __slots__ = (
        "_ack_at",
        "_budget",
        "_counters",
        "_held",
        "_next",
        "_number",
        "_pending",
        "_waiting",
        "capacity",
        "finished",
        "stream_id",
    )

    def __init__(
        self, stream_id: int, *, counters: Counters, capacity: int = DEFAULT_CAPACITY, budget: Budget | None = None
    ) -> None:
        self.stream_id = stream_id
        self.capacity = min(capacity, NEW_STREAM_DISTANCE)
        self.finished = False
        """The sender closed the stream, and everything was delivered."""
        self._counters = counters
        self._budget = Budget() if budget is None else budget
        self._next: int | None = None
        """The sequence to deliver next; None before the stream starts."""
        self._number: int | None = None
        """The number of the event to deliver next, where events are numbered."""
        self._waiting: dict[int, tuple[bytes, int] | Base] = {}
        """Payload and event count by sequence; or the BASE in the place of a packet."""
        self._held = False
        self._pending = 0
        """Packets that were not acknowledged yet."""
        self._ack_at: float | None = None

    @property
    def next_sequence(self) -> int | None:
        """The sequence to deliver next; None while it is not known where the stream starts."""
        return self._next

    @property
    def waiting(self) -> int:
        """Packets that wait for an earlier one."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """Packets that the sender may have on the way."""
        return 0 if self._held else self.capacity - len(self._waiting)

    def accept(self, batch: Payloads, now: float) -> list[Payloads]:  # hot: bench_stream
        """Take in packets in the order they came; gives what may be delivered, usually the batch itself."""
        count = len(batch.sequences)
        if not count:
            return []
        first = int(batch.sequences[0])
        if first != self._next or self._waiting or not _consecutive(batch.sequences):
            return self._sort_in(batch, now)
        self._next = first + count
        number = self._number
        if number is not None:
            self._number = number + int(batch.counts.sum())
        self._note(count, now, at_once=False)
        return [Payloads(batch.sequences, batch.data, batch.starts, batch.lengths, batch.counts, number)]

    def on_base(self, base: Base, now: float) -> list[Payloads]:
        """Take in a BASE; gives what may be delivered because of it."""
        if not 0 < base.sequence < _MAX_NUMBER or (base.pub_seq or 0) >= _MAX_NUMBER:
            self._counters.count(Reason.BAD_BASE)
            return []
        if base.start and not self._is_past(base.sequence):
            return self._start(base, now)
        out = _Assembly(self._number)
        place = base.sequence - 1
        follows = place == self._next and not self._waiting
        if place == self._next:
            self._renumber(base, out)
            self._drain(out)
        elif self._has_room(place, 0):
            self._waiting[place] = base
        self._note(1, now, at_once=not follows)
        return self._delivered(out)

    def on_fin(self, fin: Fin) -> FinAck | None:
        """Take in the end of the stream; gives the confirmation to send.

        A sender says it only when everything is acknowledged, so there is nothing left to wait for.
        """
        if self._next is not None and fin.total != self._next:
            self._counters.count(Reason.BAD_FIN)
            return None
        self.finished = True
        self._ack_at = None
        return FinAck(stream_id=self.stream_id, total=fin.total)

    def hold(self, now: float, *, held: bool) -> None:
        """Stop the sender while the application cannot take more, or let it go on; it is told at once."""
        if held != self._held:
            self._held = held
            self._ack_at = now

    def close(self) -> None:
        """Forget the stream: when the sender reset it, and before this object is dropped."""
        for held in self._waiting.values():
            self._budget.left += _cost(held)
        self._waiting.clear()
        self._next = self._number = self._ack_at = None
        self._pending = 0
        self.finished = False

    def ack_due(self, now: float) -> bool:
        """Say whether an acknowledgement must be sent now."""
        return self._ack_at is not None and now >= self._ack_at

    def next_timer(self) -> float | None:
        """Give the time at which an acknowledgement is due."""
        return self._ack_at

    def make_ack(self) -> Ack:
        """Make the acknowledgement of everything so far; it is not due any more."""
        self._pending = 0
        self._ack_at = None
        ranges = self._ranges() if self._waiting else ()
        return Ack(stream_id=self.stream_id, cumulative=self._next or 0, free=self.free, ranges=ranges)

    def _is_past(self, sequence: int) -> bool:
        """Say whether we are in that stream already, at this place or beyond."""
        return self._next is not None and 0 <= self._next - sequence <= NEW_STREAM_DISTANCE

    def _start(self, base: Base, now: float) -> list[Payloads]:
        """Go where a BASE says that the stream starts; what waited already may follow at once."""
        if self._next is not None:
            self._counters.add("restart", "stream")
        late = bool(self._waiting) or self._next is not None
        self.finished = False
        self._next, self._number = base.sequence, base.pub_seq
        outside = [sequence for sequence in self._waiting if not 0 <= sequence - base.sequence < self.capacity]
        for sequence in outside:
            self._budget.left += _cost(self._waiting.pop(sequence))
        self._counters.count(Reason.OTHER_STREAM, len(outside))
        out = _Assembly(self._number)
        self._drain(out)
        self._note(1, now, at_once=late)
        return self._delivered(out)

    def _sort_in(self, batch: Payloads, now: float) -> list[Payloads]:
        """Take in packets that do not simply follow."""
        view = batch.data.data
        out = _Assembly(self._number)
        for sequence, start, length, count in zip(
            batch.sequences.tolist(), batch.starts.tolist(), batch.lengths.tolist(), batch.counts.tolist(), strict=True
        ):
            payload = view[start : start + length]
            if sequence == self._next:
                self._deliver(sequence, payload, count, out)
                self._drain(out)
            elif self._has_room(sequence, length):
                self._waiting[sequence] = (bytes(payload), count)
                self._budget.left -= length + PACKET_COST
        self._note(len(batch), now, at_once=True)
        return self._delivered(out)

    def _has_room(self, sequence: int, size: int) -> bool:
        """Say whether a packet that is not the next one can wait; count it as dropped if not."""
        if sequence in self._waiting or (self._next is not None and sequence < self._next):
            self._counters.count(Reason.DUPLICATE)
        elif len(self._waiting) >= self.capacity or (self._next is not None and sequence >= self._next + self.capacity):
            self._counters.count(Reason.BEYOND_WINDOW)
        elif size + PACKET_COST > self._budget.left:
            self._counters.count(Reason.BUFFER_FULL)
        else:
            return True
        return False

    def _drain(self, out: _Assembly) -> None:
        """Deliver what waited for the packet that was just delivered."""
        while self._next is not None and (held := self._waiting.pop(self._next, None)) is not None:
            self._budget.left += _cost(held)
            if isinstance(held, Base):
                self._renumber(held, out)
            else:
                self._deliver(self._next, *held, out)

    def _deliver(self, sequence: int, payload: bytes | memoryview, count: int, out: _Assembly) -> None:
        out.add(sequence, payload, count)
        self._next = sequence + 1
        if self._number is not None:
            self._number += count

    def _renumber(self, base: Base, out: _Assembly) -> None:
        self._next, self._number = base.sequence, base.pub_seq
        out.cut(self._number)

    def _delivered(self, out: _Assembly) -> list[Payloads]:
        out.cut(None)
        return out.runs

    def _note(self, packets: int, now: float, *, at_once: bool) -> None:
        """Note that packets came, and when to say so."""
        self._pending += packets
        if at_once or self._pending >= ACK_PACKETS:
            self._ack_at = now if self._ack_at is None else min(self._ack_at, now)
        elif self._ack_at is None:
            self._ack_at = now + ACK_DELAY_S

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        """Give the runs of sequences that wait, oldest first, as many as fit."""
        waiting = np.fromiter(self._waiting, np.uint64, len(self._waiting))
        waiting.sort()
        breaks = (np.flatnonzero(waiting[1:] - waiting[:-1] != 1) + 1).tolist()
        starts, ends = [0, *breaks][:MAX_RANGES], [*breaks, len(waiting)]
        firsts = waiting[starts].tolist()
        return tuple((first, end - start) for first, start, end in zip(firsts, starts, ends, strict=False))


def _consecutive(sequences: NDArray[np.uint64]) -> bool:
    """Say whether each sequence follows the one before."""
    count = len(sequences)
    if count == 1:
        return True
    return int(sequences[-1]) - int(sequences[0]) == count - 1 and bool((sequences[1:] > sequences[:-1]).all())


def _cost(held: tuple[bytes, int] | Base) -> int:
    return 0 if isinstance(held, Base) else len(held[0]) + PACKET_COST
