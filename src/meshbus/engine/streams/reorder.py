"""The receiving half of a reliable stream: delivers every packet once and in order, and acknowledges it.

One `ReliableRx` is one direction of one stream from one peer. It belongs to the peer, not to a session. The other half
is engine/streams/retransmit.py; the messages are in wire/messages/reliable.py and docs/wire/profile.md.

How it is used: `accept` takes the packets of a batch and returns those that can be delivered; `on_base` does the same
for a BASE. After each, `next_timer` says when an acknowledgement is due. At that time engine/streams/reliable.py sends
`make_ack`, at most once per batch.

Rules:

* Packets come as columns over one buffer (`Payloads`). A batch that holds exactly the next packets, while nothing
  waits, is returned as it is: nothing is copied and nothing is done per packet. So is a long stretch of next packets within
  a batch. Otherwise each packet is handled by itself, and what is returned was copied once.
* Packets that cannot be delivered yet are copied and kept, at most `capacity` packets ahead and within the `Budget`,
  which all streams of a peer may share. The next packet in order is always accepted, so a full buffer slows a stream
  down but never stops it.
* A stream starts with a START (a BASE with `start`). Packets that arrive earlier are kept and acknowledged with
  cumulative 0. The sender answers that with a START, also if this side forgot the stream. A later START is obeyed, too:
  one ahead of the next sequence skips what the sender no longer has, one far away (`NEW_STREAM_DISTANCE`) is a new
  stream with the same id.
* A BASE takes the sequence before the packet that it names, so it is handled in order: `pub_seq` of delivered packets
  is always right, or None if the sender does not number its events.
* An acknowledgement is due at once if a packet was missing, repeated or not kept, otherwise with the eighth packet or
  5 ms after the first. Several batches may share one.
* While the application cannot take more, `free` in acknowledgements is 0; packets on the way are still accepted.
* Duplicates, packets beyond the window and packets for which there is no memory are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.engine.base.counters import Counters
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.messages.reliable import MAX_RANGES, NEW_STREAM_DISTANCE, Ack, Base, Fin, FinAck

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_CAPACITY = 1024
"""Packets that may wait for an earlier one. Our choice; it also limits what the sender may have on the way (`free`)."""
DEFAULT_BUDGET = 1 << 20
"""Bytes of waiting packets: twice the byte window between two meshbus nodes (PROFILE_WINDOW)."""
BASE_COST = 256
"""Bytes of the budget that a waiting BASE takes: about what it takes of memory."""
# docs/wire/profile.md. An ACK costs about as much as a packet to build and to read, so there is never one per packet.
ACK_PACKETS = 8
ACK_DELAY_S = 0.005
LONG_STRETCH = 8
"""Packets in a row that are delivered as they are, also between others. Our choice: below it, copying costs no more."""
_MAX_SEQUENCE = 1 << 63
"""Limit of sequences: no honest sender reaches it, and counting from there stays within 64 bits."""
_MAX_NUMBER = 1 << 62
"""Limit of publish numbers: no honest sender reaches it, and counting from there stays within the signed 64 bits in
which logs and tables keep them."""


BOUNDS = (
    Bound(
        name="reordering",
        what="bytes that wait for an earlier packet of a reliable stream",
        by=By.PEER,
        per_node=None,
        per={"peer": DEFAULT_BUDGET, "stream, in packets": DEFAULT_CAPACITY},
        unit="bytes",
        full="the new packet is dropped, and sent again later",
        counter=Reason.BUFFER_FULL,
    ),
)


class Payloads(msgspec.Struct, frozen=True, eq=False):
    """Payloads of packets in one buffer, with their sequences."""

    sequences: NDArray[np.uint64]
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    """Payload `i` is `data[starts[i] : starts[i] + lengths[i]]`."""
    counts: NDArray[np.int64]
    """Events in each packet, according to its header."""
    pub_seq: int | None = None
    """The publisher's number of the first event, if known; the following ones are numbered consecutively."""
    stamps: NDArray[np.uint32] | None = None
    """When the events of each packet were published, as wire/stamp.py writes it; None where stamps mean nothing."""
    follow: bool = False
    """Whether the sequences are known to be consecutive."""

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, rows: slice) -> Payloads:
        """Return a range of the packets, which shares their memory; `pub_seq` stays that of the whole."""
        return msgspec.structs.replace(
            self,
            sequences=self.sequences[rows],
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            counts=self.counts[rows],
            stamps=None if self.stamps is None else self.stamps[rows],
        )


class Budget:
    """Memory for packets that wait, in bytes."""

    __slots__ = ("left", "limit")

    def __init__(self, limit: int = DEFAULT_BUDGET) -> None:
        self.limit = limit
        self.left = limit


class _Assembly:
    """Collects packets that can be delivered, and cuts them into runs where the event numbers jump."""

    __slots__ = ("_packets", "_pub_seq", "runs")

    def __init__(self, pub_seq: int | None) -> None:
        self.runs: list[Payloads] = []
        self._packets: list[tuple[int, bytes | memoryview, int, int]] = []
        self._pub_seq = pub_seq

    def add(self, sequence: int, payload: bytes | memoryview, count: int, stamp: int) -> None:
        """Add the next packet."""
        self._packets.append((sequence, payload, count, stamp))

    def cut(self, pub_seq: int | None) -> None:
        """End the current run; the next one starts with this event number."""
        if self._packets:
            sequences, payloads, counts, stamps = zip(*self._packets, strict=True)
            lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
            self.runs.append(
                Payloads(
                    np.array(sequences, np.uint64),
                    np.frombuffer(bytearray().join(payloads), np.uint8),
                    np.cumsum(lengths) - lengths,
                    lengths,
                    np.array(counts, np.int64),
                    self._pub_seq,
                    np.array(stamps, np.uint32),
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
        # A packet further away than that belongs to another stream.
        self.capacity = min(capacity, NEW_STREAM_DISTANCE)
        self.finished = False
        """Whether the sender closed the stream; everything was delivered then."""
        self._counters = counters
        self._budget = Budget() if budget is None else budget
        self._next: int | None = None
        """The sequence to deliver next; None before the stream starts."""
        self._number: int | None = None
        """The number of the next event, if events are numbered."""
        self._waiting: dict[int, tuple[bytes, int, int] | Base] = {}
        """Payload, event count and stamp by sequence, or the BASE that has this sequence."""
        self._pending = 0
        """Number of packets since the last acknowledgement."""
        self._ack_at: float | None = None

    @property
    def next_sequence(self) -> int | None:
        """The sequence to deliver next; None before the stream starts."""
        return self._next

    @property
    def waiting(self) -> int:
        """Number of packets that wait for an earlier one."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """Number of packets that the sender may have on the way."""
        return self.capacity - len(self._waiting)

    def accept(self, batch: Payloads, now: float) -> list[Payloads]:  # hot: bench_stream
        """Handle packets in the order of arrival, and return what can be delivered, usually the batch itself."""
        count = len(batch.sequences)
        if not count:
            return []
        first = int(batch.sequences[0])
        # The fast path: exactly the next packets. Nothing is copied, whatever the size of the batch.
        if first != self._next or self._waiting or not (batch.follow or _consecutive(batch.sequences)):
            return self._sort_in(batch, now)
        self._next = first + count
        number = self._number
        if number is not None:
            self._number = number + int(batch.counts.sum())
        self._note(count, now, at_once=False)
        return [Payloads(batch.sequences, batch.data, batch.starts, batch.lengths, batch.counts, number, batch.stamps)]

    def on_base(self, base: Base, now: float) -> list[Payloads]:
        """Handle a BASE, and return what can be delivered because of it."""
        if not 0 < base.sequence < _MAX_SEQUENCE or (base.pub_seq or 0) >= _MAX_NUMBER:
            self._counters.count(Reason.BAD_BASE)
            return []
        if base.start and not self._is_past(base.sequence):
            return self._start(base, now)
        # docs/wire/profile.md: a BASE uses the sequence before the packet that it names.
        out = _Assembly(self._number)
        place = base.sequence - 1
        follows = place == self._next and not self._waiting
        if place == self._next:
            self._renumber(base, out)
            self._drain(out)
        elif self._has_room(place, BASE_COST - PACKET_COST):
            self._waiting[place] = base
            self._budget.left -= _cost(base)
        self._note(1, now, at_once=not follows)
        return self._delivered(out)

    def begin(self, sequence: int) -> None:
        """Begin the stream at a sequence, without a START: the streams of net-mesh peers have none."""
        self._next = sequence

    def skip_to(self, sequence: int, now: float) -> tuple[list[Payloads], int]:
        """Skip the gaps below a sequence, and return what can be delivered and how many packets were given up."""
        out, given_up = _Assembly(self._number), 0
        for place in (*sorted(place for place in self._waiting if place < sequence), sequence):
            if self._next is not None and place > self._next:
                given_up += place - self._next
                self._next = place
            self._drain(out)
        self._note(1, now, at_once=True)
        return self._delivered(out), given_up

    @property
    def ahead(self) -> Iterable[int]:
        """The sequences that wait for an earlier one."""
        return self._waiting

    def on_fin(self, fin: Fin) -> FinAck | None:
        """Handle the end of the stream, and return the confirmation to send, or None if the end is not the right one.

        A sender sends FIN only when everything is acknowledged, so there is nothing left to wait for.
        """
        # Without state (after a restart of this side) any FIN is confirmed: everything was acknowledged before.
        if self._next is not None and fin.total != self._next:
            self._counters.count(Reason.BAD_FIN)
            return None
        self.finished = True
        self._ack_at = None
        return FinAck(stream_id=self.stream_id, total=fin.total)

    def close(self) -> None:
        """Drop the state of the stream and return its memory to the budget; needed before this object is dropped."""
        for held in self._waiting.values():
            self._budget.left += _cost(held)
        self._waiting.clear()
        self._next = self._number = self._ack_at = None
        self._pending = 0
        self.finished = False

    def next_timer(self) -> float | None:
        """Return when an acknowledgement is due, or None."""
        return self._ack_at

    def make_ack(self) -> Ack:
        """Build the acknowledgement of everything so far; afterwards none is due."""
        self._pending = 0
        self._ack_at = None
        ranges = self._ranges() if self._waiting else ()
        return Ack(stream_id=self.stream_id, cumulative=self._next or 0, free=self.free, ranges=ranges)

    def _is_past(self, sequence: int) -> bool:
        """Return whether this stream is already at or beyond a sequence."""
        return self._next is not None and 0 <= self._next - sequence <= NEW_STREAM_DISTANCE

    def _start(self, base: Base, now: float) -> list[Payloads]:
        """Start the stream where a START says, and deliver what waited for it."""
        if self._next is not None:
            self._counters.add("restart", "stream")
        late = bool(self._waiting) or self._next is not None
        self.finished = False
        self._next, self._number = base.sequence, base.pub_seq
        # What waited may belong to another stream under this id, or lie behind the start.
        outside = [sequence for sequence in self._waiting if not 0 <= sequence - base.sequence < self.capacity]
        for sequence in outside:
            self._budget.left += _cost(self._waiting.pop(sequence))
        self._counters.count(Reason.OTHER_STREAM, len(outside))
        out = _Assembly(self._number)
        self._drain(out)
        self._note(1, now, at_once=late)
        return self._delivered(out)

    def _sort_in(self, batch: Payloads, now: float) -> list[Payloads]:
        """Handle packets that are not simply the next ones."""
        out = _Assembly(self._number)
        done = 0
        for start, stop in _stretches(batch.sequences):
            if stop - start < LONG_STRETCH:
                continue
            self._sort_in_singly(batch[done:start], out)
            done, some = start, batch[start:stop]
            if self._follows(some):
                self._deliver_all(some, out)
                self._drain(out)
                done = stop
        self._sort_in_singly(batch[done:], out)
        self._note(len(batch), now, at_once=True)
        return self._delivered(out)

    def _sort_in_singly(self, batch: Payloads, out: _Assembly) -> None:
        view = batch.data.data
        stamps = repeat(0) if batch.stamps is None else batch.stamps.tolist()
        sizes = zip(batch.starts.tolist(), batch.lengths.tolist(), batch.counts.tolist(), strict=True)
        for sequence, (start, length, count), stamp in zip(batch.sequences.tolist(), sizes, stamps, strict=False):
            payload = view[start : start + length]
            # The next packet needs no room, even if the budget is used up: it frees memory by what follows it.
            if sequence == self._next:
                self._deliver(sequence, payload, count, stamp, out)
                self._drain(out)
            elif self._has_room(sequence, length):
                self._waiting[sequence] = (bytes(payload), count, stamp)
                self._budget.left -= length + PACKET_COST

    def _has_room(self, sequence: int, size: int) -> bool:
        """Return whether a packet that is not the next one can wait; otherwise count it as dropped."""
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
        """Deliver the packets that waited for the one that was just delivered."""
        while self._next is not None and (held := self._waiting.pop(self._next, None)) is not None:
            self._budget.left += _cost(held)
            if isinstance(held, Base):
                self._renumber(held, out)
            else:
                self._deliver(self._next, *held, out)

    def _deliver(self, sequence: int, payload: bytes | memoryview, count: int, stamp: int, out: _Assembly) -> None:
        out.add(sequence, payload, count, stamp)
        self._next = sequence + 1
        if self._number is not None:
            self._number += count

    def _follows(self, batch: Payloads) -> bool:
        """Return whether consecutive packets are the next ones, and none of them waits already."""
        first = batch.sequences.item(0)
        return first == self._next and self._waiting.keys().isdisjoint(range(first, first + len(batch)))

    def _deliver_all(self, batch: Payloads, out: _Assembly) -> None:
        """Deliver the next packets as they are, without a copy."""
        out.cut(self._number)
        out.runs.append(msgspec.structs.replace(batch, pub_seq=self._number))
        self._next = batch.sequences.item(-1) + 1
        if self._number is not None:
            self._number += int(batch.counts.sum())
        out.cut(self._number)

    def _renumber(self, base: Base, out: _Assembly) -> None:
        self._next, self._number = base.sequence, base.pub_seq
        out.cut(self._number)

    def _delivered(self, out: _Assembly) -> list[Payloads]:
        out.cut(None)
        return out.runs

    def _note(self, packets: int, now: float, *, at_once: bool) -> None:
        """Count packets, and schedule their acknowledgement."""
        self._pending += packets
        if at_once or self._pending >= ACK_PACKETS:
            self._ack_at = now if self._ack_at is None else min(self._ack_at, now)
        elif self._ack_at is None:
            self._ack_at = now + ACK_DELAY_S

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges of waiting sequences, lowest first, as many as fit into an ACK."""
        waiting = np.fromiter(self._waiting, np.uint64, len(self._waiting))
        waiting.sort()
        breaks = (np.flatnonzero(waiting[1:] - waiting[:-1] != 1) + 1).tolist()
        starts, ends = [0, *breaks][:MAX_RANGES], [*breaks, len(waiting)]
        firsts = waiting[starts].tolist()
        return tuple((first, end - start) for first, start, end in zip(firsts, starts, ends, strict=False))


def _stretches(sequences: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of consecutive sequences."""
    breaks = (np.flatnonzero(sequences[1:] - sequences[:-1] != 1) + 1).tolist()
    return pairwise((0, *breaks, len(sequences)))


def _consecutive(sequences: NDArray[np.uint64]) -> bool:
    """Return whether the sequences are consecutive."""
    count = len(sequences)
    if count == 1:
        return True
    return int(sequences[-1]) - int(sequences[0]) == count - 1 and bool((sequences[1:] > sequences[:-1]).all())


def _cost(held: tuple[bytes, int, int] | Base) -> int:
    return BASE_COST if isinstance(held, Base) else len(held[0]) + PACKET_COST
