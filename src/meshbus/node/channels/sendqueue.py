"""The queue behind `publisher.send`: events that were handed over without waiting, on their way to the engine.

Events collect until the loop iterates, or for `max_delay_ms`, and are then published together, as `publish_batch` does.
One batch is under way at a time: while it waits for credit or for the disk, further events collect behind it, up to
`max_bytes` for both. Nobody waits for the outcome, so failures are kept for the next `flush`, and passed to a callback.

`add` may be called from any thread; everything else belongs to the loop. The counterpart that publishes is
node/channels/publisher.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, TypeAlias

import msgspec

from meshbus.engine.channels.publication import Publication
from meshbus.engine.channels.publish import SEND_BYTES, LegError, PublishConfig, PublishReport, WhenSendFull
from meshbus.errors import Backpressure, LocalProtocolError, MeshError, PartialDelivery, Timeout
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENT, MAX_PAYLOAD

EARLY_BYTES = 64 << 10
"""Bytes that are sent before `max_delay_ms` is over: about one train of packets, so waiting longer would gain nothing."""
CLOSED = "the publisher or its node is closed; open another with node.publisher"

BOUNDS = (
    Bound(
        name="send_queue",
        what="bytes of events of `publisher.send` that wait, with four for each event",
        by=By.USER,
        per_node=None,
        per={"publisher": SEND_BYTES},
        unit="bytes",
        full="as `when_full` says: the call raises Backpressure, or events are dropped",
        counter=Reason.SEND_QUEUE_FULL,
    ),
)

_logger = logging.getLogger("meshbus.node")

Start: TypeAlias = Callable[[list[bytes]], PublishReport | Publication | Coroutine[Any, Any, PublishReport]]
"""Publishes a batch: what it returns is, becomes, or computes the report."""


class Unsent(msgspec.Struct, frozen=True):
    """Events of `publisher.send` that did not reach every subscriber."""

    events: int
    error: MeshError
    """Why; PartialDelivery if the events went to some subscribers and not to others."""


class SendQueue:
    """The events of one publisher that wait to be sent."""

    def __init__(self, config: PublishConfig, live: Callable[[], Live], start: Start) -> None:
        """Begin empty, on the running loop; `start` publishes a batch, or raises why it cannot."""
        self._config = config
        self._live = live
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._max_bytes = config.max_bytes
        """The bound; negative as soon as the publisher is closed, so that no call needs a check of its own."""
        self.nbytes = 0
        """Bytes of the events that collect and of those under way; 0 if nothing waits."""
        self._events: list[bytes] = []
        self._wake_at = 0.0
        """From how many bytes on the loop has to be told; infinite if it will look anyway."""
        self._under_way = 0
        """Batches that were started and have no outcome yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        """Held by a batch that needs more than one step, so that the next does not overtake it."""
        self._tasks = TaskOwner("publishing sent events", _logger)
        self._settled: list[asyncio.Future[None]] = []
        self._drops = 0
        """Events that were dropped and not counted yet: counters belong to the loop, and `add` may run elsewhere."""
        self._failed = 0
        self._errors: dict[tuple[int, str], LegError] = {}
        """The last error of each kind and subscriber since the last `take_failures`."""
        self.on_unsent: Callable[[Unsent], None] | None = None

    def add(self, event: bytes) -> None:  # hot: bench_publish
        """Take an event; raises Backpressure if there is no room and the policy is FAIL."""
        size = len(event) + FRAME_PREFIX_BYTES
        if size > MAX_PAYLOAD:
            problem = f"send takes events of at most {MAX_EVENT} bytes, got {len(event)}"
            raise LocalProtocolError(f"{problem}; publish a larger one with `await publisher.publish(event)`")
        with self._lock:
            if self.nbytes + size > self._max_bytes and not self._make_room(size):
                return
            self.nbytes += size
            self._events.append(event)
            if self.nbytes >= self._wake_at:
                self._wake()

    def release(self) -> None:
        """Start to publish all events that collect, now."""
        with self._lock:
            events, self._events = self._events, []
            self._wake_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not events:
            return
        self._under_way += 1
        nbytes = _cost(events)
        try:
            started = self._start(events)
        except MeshError as error:
            self._end(len(events), nbytes, error)
            return
        if isinstance(started, PublishReport):
            self._end(len(events), nbytes, started)
        elif isinstance(started, Publication):
            started.when_done(lambda: self._end(len(events), nbytes, _report_of(started)))
        else:
            self._tasks.start(self._finish(started, len(events), nbytes))

    async def settle(self) -> None:
        """Publish everything, and wait until it has its outcome. Raises LocalProtocolError if the node is closed."""
        self.release()
        if self._under_way:
            promise = self._live().waiting.promise()
            self._settled.append(promise)
            await promise

    def take_failures(self, report: PublishReport, timeout_s: float) -> PublishReport:
        """Return a report with what could not be sent since the last call, and with what still waits."""
        self._count_drops()
        errors, failed = tuple(self._errors.values()), self._failed
        self._errors, self._failed = {}, 0
        if self._under_way:
            late = Timeout(f"sending of {self.nbytes} bytes of events that were given to send", timeout_s)
            errors = (*errors, self._own(late))
        if not errors and not failed:
            return report
        return msgspec.structs.replace(report, errors=(*report.errors, *errors), unsent=failed)

    def close(self) -> None:
        """Publish what collects, and take no further events."""
        self._max_bytes = -1
        self.release()

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _make_room(self, size: int) -> bool:
        """Apply the policy of a full queue, with the lock held; return whether the event is to be queued."""
        if self._max_bytes < 0:
            raise LocalProtocolError(CLOSED)
        match self._config.when_full:
            case WhenSendFull.FAIL:
                room = self._max_bytes - self.nbytes
                problem = f"events of {self.nbytes} bytes wait, {room} more fit, {size} are needed"
                raise Backpressure(room, size, f"{problem}; await flush() first, or raise max_bytes")
            case WhenSendFull.DROP_OLDEST:
                dropped, at = 0, 0
                while dropped < size and at < len(self._events):
                    dropped += len(self._events[at]) + FRAME_PREFIX_BYTES
                    at += 1
                del self._events[:at]
                self.nbytes -= dropped
                # What is under way cannot be dropped; if that alone fills the queue, the new event has no place either.
                fits = self.nbytes + size <= self._max_bytes
                self._drops += at if fits else at + 1
                return fits
            case WhenSendFull.DROP_NEWEST:
                self._drops += 1
                return False

    def _count_drops(self) -> None:
        with self._lock:
            drops, self._drops = self._drops, 0
        if drops:
            self._failed += drops
            self._live().engine.counters.count(Reason.SEND_QUEUE_FULL, drops)

    def _wake(self) -> None:
        """Have the loop look at the events, soon or after the delay; called with the lock held."""
        wait = self._config.max_delay_ms > 0 and self.nbytes < EARLY_BYTES
        self._wake_at = EARLY_BYTES if wait else inf
        look = self._wait_for_more if wait else self._due
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(look)
            else:
                self._loop.call_soon_threadsafe(look)
        except RuntimeError:  # the loop is closed
            self._max_bytes = -1
            raise LocalProtocolError(CLOSED) from None

    def _wait_for_more(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._config.max_delay_ms / 1000, self._due)

    def _due(self) -> None:
        if not self._under_way:  # otherwise the end of the batch looks
            self.release()

    async def _finish(self, work: Coroutine[Any, Any, PublishReport], events: int, nbytes: int) -> None:
        async with self._turn:
            try:
                outcome: PublishReport | MeshError = await work
            except MeshError as error:
                outcome = error
        self._end(events, nbytes, outcome)

    def _end(self, events: int, nbytes: int, outcome: PublishReport | MeshError) -> None:
        self._under_way -= 1
        with self._lock:
            self.nbytes -= nbytes
            more = bool(self._events)
        if self._drops:
            self._count_drops()
        self._note(events, outcome)
        if self._under_way:
            return
        if more:
            self._loop.call_soon(self._due)  # not now: the engine may be in the middle of a call
        settled, self._settled = self._settled, []
        for promise in settled:
            if not promise.done():
                promise.set_result(None)

    def _note(self, events: int, outcome: PublishReport | MeshError) -> None:
        """Keep why events were not sent, and tell the callback."""
        if isinstance(outcome, PublishReport):
            if not outcome.errors:
                return
            problem = f"{len(outcome.errors)} of {outcome.attempted} subscribers failed: {outcome.errors[0].message}"
            error: MeshError = PartialDelivery(outcome.attempted, outcome.delivered, problem, report=outcome)
            errors = outcome.errors
        else:
            error = outcome
            report = outcome.report if isinstance(outcome, PartialDelivery) else None
            errors = report.errors if isinstance(report, PublishReport) else (self._own(outcome),)
        self._failed += events
        self._errors.update({(one.node_id, one.code): one for one in errors})
        if self.on_unsent is not None:
            self._loop.call_soon(self.on_unsent, Unsent(events, error))

    def _own(self, error: MeshError) -> LegError:
        return LegError(0, error.code, str(error))


def _cost(events: list[bytes]) -> int:
    return sum(map(len, events)) + FRAME_PREFIX_BYTES * len(events)


def _report_of(publication: Publication) -> PublishReport | MeshError:
    try:
        return publication.report()
    except PartialDelivery as error:
        return error
