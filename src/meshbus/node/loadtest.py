"""A load test between two nodes: one sends numbered events as fast as the other takes them, the other measures.

    0   run id    u64    the same for all events of one run
    8   index     u64    of this event
   16   total     u64    events of the run
   24   sent_ns   u64    wall clock of the sender

Zeros follow up to the chosen size. The receiver counts each event once and reports how many of the run are missing. Latency
is the receiver's clock minus the sender's, so it means something only on one machine or with clocks in step.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time

import msgspec
import numpy as np

from meshbus.engine.base.batch import EventBatch
from meshbus.errors import ConfigError, LocalProtocolError, PartialDelivery
from meshbus.node.node import Node
from meshbus.policy.bound import Bound, By
from meshbus.wire.constants import MAX_EVENT

_HEAD = struct.Struct("<QQQQ")
MIN_SIZE = _HEAD.size
SLICE = 512
"""Events of one publish. Our choice: batches as large as most applications make them."""
MAX_RUN = 10_000_000
"""Events of one run. Our choice: seconds of traffic at the highest rates, a byte of memory each."""
QUIET_S = 1.0
"""A run of which nothing more arrives for so long is over. Our choice: many times a retransmission on a slow link."""
_PERCENTILES = (50, 90, 99, 100)

BOUNDS = (
    Bound(
        name="load_test_events",
        what="events of a load test that is measured here",
        by=By.PUBLISHER,
        per_node=MAX_RUN,
        full="the measurement is refused",
        counter="LocalProtocolError",
    ),
)


class Sent(msgspec.Struct, frozen=True):
    """What one run sent."""

    events: int
    size: int
    subscribers: int
    """Subscribers of the last publish."""
    seconds: float
    events_per_s: float


class Measured(msgspec.Struct, frozen=True):
    """What arrived of one run."""

    events: int
    missing: int
    bytes: int
    seconds: float
    """From the first event to the last."""
    events_per_s: float | None
    """None if all events arrived at once."""
    latency_us: dict[str, float]
    """Percentiles of the receiver's clock minus the sender's, for a sample of the events."""


async def send_load(node: Node, channel: str, *, events: int, size: int, reliable: bool | None = None) -> Sent:
    """Publish the events of one run. Raises PartialDelivery if the channel has no subscriber."""
    if not 1 <= events <= MAX_RUN:
        raise ConfigError("events", f"must be from 1 to {MAX_RUN}, got {events}")
    if not MIN_SIZE <= size <= MAX_EVENT:
        raise ConfigError("size", f"must be from {MIN_SIZE} to {MAX_EVENT} bytes, got {size}")
    publisher = node.publisher(channel, reliable=reliable)
    run, rest = int.from_bytes(os.urandom(8)), bytes(size - MIN_SIZE)
    subscribers, began = 0, time.monotonic()
    for first in range(0, events, SLICE):
        sent_ns, last = time.time_ns(), min(first + SLICE, events)
        batch = [_HEAD.pack(run, index, events, sent_ns) + rest for index in range(first, last)]
        report = await publisher.publish_batch(batch)
        if not report.attempted:
            problem = f"no node has subscribed to {channel}; start `meshbus bench receive` first"
            raise PartialDelivery(0, 0, problem, report=report)
        subscribers = report.delivered
    await publisher.flush()
    seconds = time.monotonic() - began
    return Sent(events, size, subscribers, seconds, events / seconds)


async def measure_load(node: Node, channel: str, *, timeout_s: float) -> Measured | None:
    """Subscribe, and measure the next run; return None if none came within the time.

    A run ends with its last event, or when nothing has arrived for a second.
    """
    if timeout_s <= 0:
        raise ConfigError("timeout_s", f"must be positive, got {timeout_s:g}")
    run: _Run | None = None
    async with node.subscribe(channel) as subscription:
        arriving = aiter(subscription.batches())
        deadline = time.monotonic() + timeout_s
        while run is None or not run.complete:
            left_s = deadline - time.monotonic()
            try:
                async with asyncio.timeout(left_s if run is None else min(QUIET_S, max(left_s, 0.0))):
                    batch = await anext(arriving)
            except TimeoutError:
                break
            run = run or _Run(batch)
            run.take(batch)
    return None if run is None else run.result()


class _Run:
    """What has arrived of one run."""

    def __init__(self, batch: EventBatch) -> None:
        head = batch.payload(0)[:MIN_SIZE]
        self._id, _, self._total, _ = _HEAD.unpack(head) if len(head) == MIN_SIZE else (0, 0, 0, 0)
        if not 1 <= self._total <= MAX_RUN:
            raise LocalProtocolError("the channel carries other events; choose a channel without other publishers")
        self._seen = np.zeros(self._total, bool)
        self._bytes = 0
        self._first = self._last = time.monotonic()
        self._latencies: list[float] = []

    @property
    def complete(self) -> bool:
        return bool(self._seen.all())

    def take(self, batch: EventBatch) -> None:
        now_ns, self._last = time.time_ns(), time.monotonic()
        sent_ns = 0
        for payload in batch.payloads():
            run, index, _, stamp = _HEAD.unpack_from(payload) if len(payload) >= MIN_SIZE else (None, 0, 0, 0)
            if run == self._id and index < self._total:
                self._seen[index] = True
                self._bytes += len(payload)
                sent_ns = sent_ns or stamp
        if sent_ns:  # one for each batch: its first event, which has waited longest
            self._latencies.append((now_ns - sent_ns) / 1000)

    def result(self) -> Measured:
        events = int(self._seen.sum())
        seconds = self._last - self._first
        found = np.percentile(self._latencies, _PERCENTILES)
        return Measured(
            events,
            self._total - events,
            self._bytes,
            seconds,
            events / seconds if seconds else None,
            {f"p{percent}": round(float(value), 1) for percent, value in zip(_PERCENTILES, found, strict=True)},
        )
