"""What a replicated log has to do to be measured, and what is measured of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from bench.harness import processor_seconds


class Mode(StrEnum):
    """How events are appended."""

    SINGLE = "single"
    """One at a time: the next one is sent when the last one is acknowledged."""
    BATCH = "batch"
    """Many at a time, so that the acknowledgements of many can be waited for together."""


class Load(msgspec.Struct, frozen=True):
    """What was appended and acknowledged, and how long each wait for it took."""

    events: int
    seconds: float
    waits_s: Sequence[float]
    failed: int = 0
    """Calls that ended without an acknowledgement, for example because the leader changed under the load."""

    def wait_s(self, share: float) -> float:
        """Return the wait that this share of all waits does not exceed."""
        waits = sorted(self.waits_s)
        return waits[min(len(waits) - 1, int(share * len(waits)))]


class Measured(msgspec.Struct, frozen=True):
    """A load, and the processor time of all processes meanwhile."""

    load: Load
    cpu_s: float
    client_s: float
    """Of this, the time of this process: it runs the client of JetStream, and next to nothing for meshbus."""

    @property
    def per_second(self) -> float:
        """Return the events that were acknowledged per second."""
        return self.load.events / self.load.seconds

    @property
    def per_cpu_second(self) -> float:
        """Return the events that were acknowledged per second of processor time, clients included."""
        return self.load.events / self.cpu_s

    @property
    def per_server_second(self) -> float:
        """Return the events that were acknowledged per second of processor time of the other processes."""
        return self.load.events / (self.cpu_s - self.client_s)


class Contender(Protocol):
    """A replicated log with three members."""

    async def load(self, mode: Mode, size: int, seconds: float) -> Load:
        """Append events of a size for some time."""

    async def fail_over(self) -> float:
        """Kill the leader while events are appended, and return the seconds until the next acknowledgement."""

    async def close(self) -> None:
        """Stop all processes."""


Append = Callable[[], Awaitable[int]]
"""Appends events, waits until they are acknowledged, and returns their number; 0 if they are not."""


async def drive(append: Append, seconds: float, *, workers: int = 1) -> Load:
    """Append from several tasks at once for some time, and record how long each wait took."""
    waits: list[float] = []
    failed = 0
    began = time.perf_counter()

    async def work() -> int:
        nonlocal failed
        events = 0
        while (at := time.perf_counter()) - began < seconds:
            stored = await append()
            events, failed = events + stored, failed + (not stored)
            waits.append(time.perf_counter() - at)
        return events

    events = sum(await asyncio.gather(*(work() for _ in range(workers))))
    return Load(events, time.perf_counter() - began, waits, failed)


async def measure(contender: Contender, mode: Mode, size: int, seconds: float) -> Measured:
    """Load a contender; a short load before is not measured."""
    await contender.load(mode, size, seconds / 4)
    cpu_s, client_s = processor_seconds(), time.process_time()
    load = await contender.load(mode, size, seconds)
    return Measured(load, processor_seconds() - cpu_s, time.process_time() - client_s)
