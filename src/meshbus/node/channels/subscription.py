"""A subscription: an async iterator of events or batches with a bounded queue.

The queue is bounded in events and in bytes; an empty one takes a single event of any size. The caller chooses what happens
when it is full:

    block         stop granting credit: the publisher waits (memory is bounded by the queue and one window for each
                  stream). 0.23 nodes send to an inbox without credit: what they send beyond OVERRUN windows is dropped
    drop_oldest   make room by dropping the oldest events
    drop_newest   drop the events that just arrived
    fail          end the subscription with SlowConsumer

Nothing is lost silently: `stats` counts, and the node gets a notice each time the reader falls behind. Where the events
come from is node/channels/joining.py and node/channels/historyreader.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from math import inf
from types import TracebackType
from typing import Self

import msgspec

from meshbus.engine.base.batch import Event, EventBatch
from meshbus.errors import SlowConsumer
from meshbus.node.driving.waiter import Waiter, Wake
from meshbus.policy.bound import Bound, By

MAX_EVENTS = 65_536
"""Events that may wait by default. Events of more than 256 bytes reach MAX_BYTES first."""
MAX_BYTES = 16 << 20
"""Bytes that may wait by default: four times the default receive buffer of the socket."""


OVERRUN = 2
"""Windows of one stream that a full inbox still takes if it blocks: what was on the way when credit stopped, and what was
granted just before."""


BOUNDS = (
    Bound(
        name="subscription_queue",
        what="bytes of events that wait for the application",
        by=By.PUBLISHER,
        per_node=None,
        per={"subscription": MAX_BYTES, "subscription, in events": MAX_EVENTS},
        unit="bytes",
        full="as `when_full` says: the publisher is held, or events are dropped",
        counter="stats.dropped of the subscription",
    ),
)


class WhenFull(StrEnum):
    """What a full subscription does; the module docstring explains each."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    FAIL = "fail"


class SubscriptionStats(msgspec.Struct, frozen=True):
    """The counts of one subscription."""

    received: int
    """Events that arrived for it."""
    delivered: int
    """Events that the application has read."""
    dropped: int
    """Events that were dropped because it was full."""
    pending: int
    """Events that wait to be read."""
    pending_bytes: int
    missed: int = 0
    """Events that had expired from the publisher's log before they could be read."""
    lost: int | None = None
    """Packets that were lost on the way; None while all came on reliable streams or from a log, where it cannot happen."""


class SubscriptionRefusal(msgspec.Struct, frozen=True):
    """A publisher that does not send a channel to this subscription."""

    node_id: int
    channel: str
    """The channel, or the prefix if the publisher gave no answer about it."""
    reason: str
    """The publisher's reason, such as `unauthorized`; or `timeout` if it did not answer, `silent` if it was not waited
    for because its heartbeats are missing."""


class Subscription:
    """Events of one channel or prefix, in order of arrival.

    Use it as an async context manager: it is live when the `async with` line returns, and ends with the block.
    """

    def __init__(
        self,
        topic: str,
        *,
        start: Callable[[Subscription], Awaitable[None]],
        stop: Callable[[Subscription], Awaitable[None]],
        hold: Callable[[Subscription, EventBatch | None], None],
        notice: Callable[[SlowConsumer], None],
        when_full: WhenFull = WhenFull.BLOCK,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
        max_overrun_bytes: float = inf,
        wake: Wake = Waiter.wake,
    ) -> None:
        """Prepare a subscription; `hold` stops the stream of a batch, or without one resumes what it had stopped.

        If it blocks, it takes `max_overrun_bytes` of each stream while it is full, and drops what comes beyond. `wake`
        lets a reader go on when events have come.
        """
        self.topic = topic
        self.when_full = WhenFull(when_full)
        self._start, self._stop, self._hold, self._notice = start, stop, hold, notice
        self._max_events, self._max_bytes = max_events, max_bytes
        self._max_overrun_bytes = max_overrun_bytes
        self._overrun_by: dict[tuple[int, int], int] = {}
        """Bytes that were taken since the subscription is full, by publisher and stream."""
        self._queue: deque[tuple[EventBatch, int, int]] = deque()
        """Batches, each with its events and bytes."""
        self._pending = self._pending_bytes = 0
        self._received = self._delivered = self._dropped = self._missed = 0
        self._lost: int | None = None
        self._wake_one = wake
        self._waiters: list[Waiter] = []
        """One for each task that waits for events: usually one."""
        self._behind = False
        self._closed = False
        self._error: Exception | None = None
        self._publishers: dict[int, None] = {}
        self._refusals: dict[tuple[int, str], SubscriptionRefusal] = {}

    async def __aenter__(self) -> Self:
        await self._start(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the subscription; events that still wait can be read. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._release()
            self._wake()
            await self._stop(self)

    @property
    def stats(self) -> SubscriptionStats:
        """The counts so far."""
        return SubscriptionStats(
            self._received,
            self._delivered,
            self._dropped,
            self._pending,
            self._pending_bytes,
            self._missed,
            self._lost,
        )

    @property
    def publishers(self) -> tuple[int, ...]:
        """The node ids of the publishers that have accepted the subscription."""
        return tuple(self._publishers)

    @property
    def refused(self) -> tuple[SubscriptionRefusal, ...]:
        """The publishers that currently refuse the channel, or a channel under the prefix, while others may send it."""
        return tuple(self._refusals.values())

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events; costs an object per event."""
        async for batch in self.batches():
            for event in batch:
                yield event

    async def batches(self) -> AsyncIterator[EventBatch]:
        """Iterate over the events in the batches in which they came; ends when the subscription is closed."""
        while True:
            batch = await self.next_batch()
            if batch is None:
                return
            yield batch

    async def next_batch(self) -> EventBatch | None:
        """Wait for events and return them; None if the subscription was closed."""
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._closed:
                return None
            waiter = Waiter()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:  # it was cancelled
                    self._waiters.remove(waiter)
        batch, events, size = self._queue.popleft()
        self._pending -= events
        self._pending_bytes -= size
        self._delivered += events
        if self._overrun_by and not self._is_full():  # resumes as soon as there is room: credit takes a round trip
            self._release()
        if not self._queue:
            self._behind = False
        return batch

    def feed(self, batch: EventBatch) -> None:
        """Add events to the queue; called by the node."""
        events, size = len(batch), batch.nbytes
        if self._closed or self._error is not None or not events:
            return
        self._received += events
        if (batch.lost or self._lost is None) and batch.is_best_effort:
            self._lost = (self._lost or 0) + batch.lost
        waiting, nbytes = self._pending + events, self._pending_bytes + size
        if (waiting > self._max_events or nbytes > self._max_bytes) and self._is_full(batch):
            batch_or_none = self._make_room(batch)
            if batch_or_none is None:
                return
            batch = batch_or_none
            events, size = len(batch), batch.nbytes
            waiting, nbytes = self._pending + events, self._pending_bytes + size
        self._queue.append((batch, events, size))
        self._pending, self._pending_bytes = waiting, nbytes
        if self._waiters:
            self._wake()

    def miss(self, events: int) -> None:
        """Count events that can no longer be read; called by the node."""
        self._missed += events

    def accept(self, node_id: int) -> None:
        """Record that a publisher has accepted the subscription; called by the node."""
        self._publishers[node_id] = None
        self.allow(node_id, self.topic)

    def refuse(self, node_id: int, channel: str, reason: str) -> None:
        """Record that a publisher does not send a channel; called by the node."""
        self._refusals[node_id, channel] = SubscriptionRefusal(node_id, channel, reason)
        if channel == self.topic:
            self._publishers.pop(node_id, None)

    def allow(self, node_id: int, channel: str) -> None:
        """Record that a publisher does not refuse a channel any more; called by the node."""
        self._refusals.pop((node_id, channel), None)

    def forget(self, node_id: int) -> None:
        """Remove the answers of a publisher that is gone, or is not asked any more; called by the node."""
        self._publishers.pop(node_id, None)
        for key in [key for key in self._refusals if key[0] == node_id]:
            del self._refusals[key]

    def rename(self, old: int, new: int) -> None:
        """Record that a publisher goes on under another id."""
        if old in self._publishers:
            del self._publishers[old]
            self._publishers[new] = None
        for key in [key for key in self._refusals if key[0] == old]:
            refusal = self._refusals.pop(key)
            self._refusals[new, key[1]] = msgspec.structs.replace(refusal, node_id=new)

    def fail(self, error: Exception) -> None:
        """Raise an error to the reader after the events that wait; called by the node."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._wake_one(waiter)

    def _is_full(self, batch: EventBatch | None = None) -> bool:
        events, size = (0, 0) if batch is None else (len(batch), batch.nbytes)
        if events == 1 and not self._pending:
            return False  # a single event is taken whatever its size, or it could never be
        return self._pending + events > self._max_events or self._pending_bytes + size > self._max_bytes

    def _make_room(self, batch: EventBatch) -> EventBatch | None:
        """Apply the policy of a full queue; return what is to be queued, if anything."""
        match self.when_full:
            case WhenFull.BLOCK:
                self._tell()
                return batch if self._overruns(batch) else None
            case WhenFull.DROP_OLDEST:
                while self._queue and self._is_full(batch):
                    _, events, size = self._queue.popleft()
                    self._pending -= events
                    self._pending_bytes -= size
                    self._dropped += events
                self._tell()
                return self._newest_part(batch)
            case WhenFull.DROP_NEWEST:
                self._dropped += len(batch)
                self._tell()
                return None
            case WhenFull.FAIL:
                self._dropped += len(batch)
                self._error = self._tell()
                self._wake()
                return None

    def _newest_part(self, batch: EventBatch) -> EventBatch:
        """Cut a batch that alone is larger than the queue down to its newest events."""
        if not self._is_full(batch):
            return batch
        keep = min(len(batch), self._max_events)
        # Halving finds a size that fits in a few steps; the queue need not be filled to the last byte.
        while keep > 1 and int(batch.offsets[-1] - batch.offsets[len(batch) - keep]) > self._max_bytes:
            keep //= 2
        self._dropped += len(batch) - keep
        return batch.slice(len(batch) - keep, len(batch))

    def _tell(self) -> SlowConsumer:
        """Tell the node, once per episode of being behind."""
        slow = SlowConsumer(self.topic, self._pending, self._dropped)
        if not self._behind:
            self._behind = True
            self._notice(slow)
        return slow

    def _overruns(self, batch: EventBatch) -> bool:
        """Stop the stream of a batch that came while full, and return whether the batch may still be queued."""
        stream = batch.publisher, batch.stream_id
        taken = self._overrun_by.get(stream, 0) + batch.nbytes
        fits = taken <= self._max_overrun_bytes
        self._overrun_by[stream] = taken
        if not fits:
            self._dropped += len(batch)
        self._hold(self, batch)  # each time: the stream may be a new one after a restart
        return fits

    def _release(self) -> None:
        if self._overrun_by:
            self._overrun_by.clear()
            self._hold(self, None)
