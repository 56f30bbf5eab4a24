"""What one run sends, and how its two processes measure themselves.

Throughput is the number of events that the consumer received, divided by the time from the first send to the last receipt;
both processes read the same clock. Processor time includes all threads of both processes: for the producer from its first
send until the consumer has everything, for the consumer from its first event to its last. Latency is one way, from a time
stamp in the payload, with a pause between events.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import msgspec

IDLE_S = 2.0
"""Seconds without events after which a consumer counts the rest as lost."""
HEAR_S = 20.0
"""Seconds to wait for the other process during setup."""
STAMP_BYTES = 16
FRAME_BYTES = 4
"""The length prefix of each event if several share a message."""
_POOL = 4096
"""Number of different events in a task with mixed sizes; they are sent repeatedly."""
_CPU_EVERY = 64
"""Batches between two readings of the processor time, in case the run ends without a last event."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: how the peer is used, and what is sent."""

    mode: str
    """The mode of the peer module."""
    least: int
    """Bytes of the shortest event."""
    most: int
    """Bytes of the longest event; the same for events of one size."""
    events: int
    gap_s: float = 0.0
    """Pause between two events of a latency run; 0 for throughput."""
    options: dict[str, Any] = {}
    """Settings for the peer module."""

    @property
    def size(self) -> str:
        """Return the sizes as text for a table."""
        return f"{self.least} B" if self.least == self.most else f"{self.least}–{self.most} B"

    @property
    def nbytes(self) -> int:
        """Return the bytes of all events of a throughput run."""
        lengths = [len(event) for event in self.pool()]
        whole, part = divmod(self.events, len(lengths))
        return whole * sum(lengths) + sum(lengths[:part])

    def pool(self) -> list[bytes]:
        """Return the different events, the same on every call: digits, because some peers carry only text."""
        if self.least == self.most:
            return [_digits(self.least)]
        chosen = random.Random(1)
        return [_digits(chosen.randint(self.least, self.most)) for _ in range(_POOL)]

    def batches(self, capacity: int) -> Iterator[list[bytes]]:
        """Yield all events, in batches that fit `capacity` bytes with a length in front of each event.

        The lists are made beforehand, and shared: making them is no part of what is measured.
        """
        groups = _group(self.pool(), capacity)
        left = self.events
        for group in cycle(groups):
            if left <= len(group):
                yield group[:left]
                return
            yield group
            left -= len(group)

    def singles(self) -> Iterator[bytes]:
        """Yield all events one by one."""
        for batch in self.batches(_POOL * (self.most + FRAME_BYTES)):
            yield from batch

    def stamped(self) -> Iterator[bytes]:
        """Yield all events one by one, with a time stamp in front and a pause after each."""
        filler = _digits(self.least)[STAMP_BYTES:]
        for _ in range(self.events):
            yield b"%016x" % time.monotonic_ns() + filler
            time.sleep(self.gap_s)


class Report(msgspec.Struct, frozen=True):
    """The measurements of one process."""

    events: int
    first_ns: int
    """When the first event was sent or received."""
    last_ns: int
    cpu_s: float
    nbytes: int
    delays_us: list[float]
    """One-way latencies of a latency run, ascending."""


class Link:
    """A connection between the two processes, used during setup."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, value: object) -> None:
        """Send a value to the other process."""
        self._connection.send(value)

    def hear(self, seconds: float = HEAR_S) -> Any:
        """Wait for a value from the other process."""
        if not self._connection.poll(seconds):
            raise TimeoutError(f"no message from the other process for {seconds:g} s")
        return self._connection.recv()


class Meter:
    """Measure one process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._cpu_first = self._cpu_last = 0.0
        self._adds = 0
        self.events = self.nbytes = self.first_ns = self.last_ns = 0
        self.delays_us: list[float] = []

    def begin(self) -> None:
        """Record the time of the first send."""
        self._cpu_first = time.process_time()
        self.first_ns = time.monotonic_ns()

    def add(self, payloads: Sequence[bytes | str]) -> None:
        """Count events that were received as objects."""
        if self._task.gap_s:
            now = time.monotonic_ns()
            self.delays_us += ((now - int(payload[:STAMP_BYTES], 16)) / 1e3 for payload in payloads)
        self.count(len(payloads), sum(map(len, payloads)))

    def count(self, events: int, nbytes: int) -> None:
        """Count events that were received as columns."""
        self.last_ns = time.monotonic_ns()
        if not self.events:
            self.begin()
        self.events += events
        self.nbytes += nbytes
        self._adds += 1
        if self.events >= self._task.events or self._adds % _CPU_EVERY == 0:
            self._cpu_last = time.process_time()

    @property
    def done(self) -> bool:
        """Return whether everything has arrived, or nothing for a while."""
        if self.events >= self._task.events:
            return True
        return bool(self.events) and time.monotonic_ns() - self.last_ns > IDLE_S * 1e9

    def finish(self, sent: int | None = None) -> Report:
        """Return the report; a producer passes the number of events that it sent."""
        if sent is not None:
            self.events, self.last_ns, self._cpu_last = sent, time.monotonic_ns(), time.process_time()
        cpu_s = max(self._cpu_last - self._cpu_first, 0.0)
        return Report(self.events, self.first_ns, self.last_ns, cpu_s, self.nbytes, sorted(self.delays_us))


def _digits(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


def _group(events: Sequence[bytes], capacity: int) -> list[list[bytes]]:
    """Pack events into groups that fit; with only one event, it is repeated to fill a group."""
    if len(events) == 1:
        return [list(events) * max(1, capacity // (len(events[0]) + FRAME_BYTES))]
    groups: list[list[bytes]] = [[]]
    room = capacity
    for event in events:
        if len(event) + FRAME_BYTES > room and groups[-1]:
            groups.append([])
            room = capacity
        groups[-1].append(event)
        room -= len(event) + FRAME_BYTES
    return groups
