"""Publishing on one channel: single events, lists, or Arrow columns.

The engine decides who gets an event; this file brings events into columns, appends them to the channel's log if it has
one (node/logs/logs.py), and waits for the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypedDict, Unpack

import msgspec
import numpy as np

from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publication import Confirmation, Publication
from meshbus.engine.channels.publish import (
    WAIT_S,
    OnFailure,
    PublishConfig,
    PublishReport,
    Reliability,
    WhenSendFull,
)
from meshbus.engine.core import Engine
from meshbus.errors import ConfigError, LocalProtocolError, PartialDelivery
from meshbus.log.columns import Columns as LogColumns
from meshbus.log.once import slices_left
from meshbus.names.channel import ChannelName
from meshbus.node.channels.sendqueue import SendQueue, Unsent
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.waiting import Waiting
from meshbus.node.logs.logs import PublishedLog
from meshbus.wire.frames import columns_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = tuple[NDArray[np.int64], NDArray[np.uint8]]


class PublishOptions(TypedDict, total=False):
    """The fields of PublishConfig, as keyword arguments of `Node.publisher`."""

    reliable: bool | None
    reliability: Reliability | str | None
    on_failure: OnFailure | str
    max_inflight: int
    wait_s: float
    max_delay_ms: float
    max_bytes: int
    when_full: WhenSendFull | str


class ChannelPublisher:
    """Publishes on one channel. Every call returns who got the events.

    While it is open, its channel is announced to the nodes that subscribe to a prefix of it. Close it, or use it as an
    async context manager, when the node is to go on without the channel; closing the node closes it too.
    """

    def __init__(
        self,
        channel: ChannelName,
        config: PublishConfig,
        live: Callable[[], Live],
        log: PublishedLog | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up; `live` returns the running engine or raises if the node is closed."""
        self.channel = channel
        self.config = config
        self._live = live
        self._log = log
        self._on_close: Callable[[], None] | None = on_close
        self._sends = SendQueue(config, live, self._start)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop publishing on this channel; closing twice is fine.

        When the last publisher of a channel is closed, and the channel is not configured by name, prefix subscribers
        get a notice that it is gone.
        """
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            self._sends.close()
            self._live = self._refuse  # in place of a check on each publish
            on_close()

    @property
    def max_event_bytes(self) -> int:
        """The largest event that can be published on the channel; over 8104 bytes only meshbus nodes get it."""
        return self._live().engine.large.limit_of(self.channel)

    async def publish(self, payload: bytes | bytearray | memoryview | str) -> PublishReport:
        """Send one event to every subscriber.

        The report says to whom it was sent; `flush` waits until it has arrived.

        Wait for credit if a subscriber is slow, up to `config.wait_s`. Raises PartialDelivery if no subscriber could be
        reached (BEST_EFFORT), LocalProtocolError for an event above `max_event_bytes`, AuthError or ChannelError if this
        node may not publish now, LogError if the channel is logged and the event cannot be appended, LocalProtocolError if
        the node is closed meanwhile.
        """
        event = payload if type(payload) is bytes else bytes_of(payload)
        if self._sends.nbytes:
            await self._send_first()
        if self._log is not None:
            return await self._publish_logged(self._log, *columns_of([event]))
        live = self._live()
        out, now = Output(), Driver.now()
        outcome = live.engine.publications.publish_one(self.channel, event, self.config, now, out)
        live.driver.apply_single(out, now)
        return outcome if isinstance(outcome, PublishReport) else await self._finish(outcome, live.waiting)

    def send(self, payload: bytes | bytearray | memoryview | str) -> None:
        """Send one event without waiting: it goes out with others when the loop iterates, or after `max_delay_ms`.

        Much cheaper than `publish` for many events, and in order with it. What goes wrong later is in the report of
        `flush`, and passed to `on_unsent`. Raises Backpressure if more than `config.max_bytes` wait and `when_full` is
        FAIL: then call `flush`, and send the event again. Raises LocalProtocolError for an event over 8104 bytes, and
        if the publisher is closed.
        """
        self._sends.add(payload if type(payload) is bytes else bytes_of(payload))

    @property
    def on_unsent(self) -> Callable[[Unsent], None] | None:
        """What is called on the node's loop with events of `send` that did not reach every subscriber; None at first."""
        return self._sends.on_unsent

    @on_unsent.setter
    def on_unsent(self, call: Callable[[Unsent], None] | None) -> None:
        self._sends.on_unsent = call

    async def publish_batch(self, events: Any) -> PublishReport:
        """Send many events at once: a list of bytes or text, or an Arrow binary or string array.

        Far cheaper per event than `publish`, and raises the same errors. If the events take several packets, a
        subscriber for which an error is reported may have got the first ones.
        """
        live = self._live()
        offsets, data = columns_from(events)
        if self._sends.nbytes:
            await self._send_first()
        if self._log is not None:
            return await self._publish_logged(self._log, offsets, data)
        return await self._finish(
            live.act(lambda engine, now, out: engine.publish(self.channel, offsets, data, self.config, now, out)),
            live.waiting,
        )

    async def flush(self, timeout_s: float = WAIT_S) -> PublishReport:
        """Wait until the subscribers have acknowledged what was published on the channel so far, and report who has.

        Only reliable streams are acknowledged: `attempted` counts the subscribers that have one, `acknowledged` is None
        if there is none. A subscriber that has not acknowledged in time, or whose stream failed, is in `errors`.

        Events of `send` are published first. Those that could not be sent since the last flush are counted in `unsent`,
        with the reasons in `errors`.
        """
        live, confirmation = self._live(), Confirmation()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._sends.settle()
                confirmation = live.engine.publications.confirm(self.channel)
                await _end_of(confirmation, live.waiting)
        return self._sends.take_failures(confirmation.report(timeout_s), timeout_s)

    async def publish_once(self, rows: Any, *, writer: str, batch: int) -> int:
        """Publish the rows of a batch that the channel's log does not have yet, and return their number.

        `rows` is an Arrow table with a column `payload`, and optionally `ts_ns` and `headers`. A writer numbers its
        batches in ascending order and retries a batch with the same rows in the same order until this returns; the rows
        are then in the log and on disk. A subscriber that cannot be reached is not an error: it can read the log.
        Raises ConfigError if the channel is not logged, and otherwise the errors of `publish_batch`.
        """
        log = self._log
        if log is None:
            problem = f'{self.channel} is not logged when published; set log = "published" for it'
            raise ConfigError("log", problem)
        await self._sends.settle()
        async with log.once:
            slices = await asyncio.to_thread(slices_left, log.file, rows, writer, batch)
            for payloads, columns in slices:
                with suppress(PartialDelivery):
                    await self._publish_logged(log, *columns_from(payloads), **columns)
            await asyncio.to_thread(log.file.sync)
        return sum(len(payloads) for payloads, _ in slices)

    def _start(self, events: list[bytes]) -> PublishReport | Publication | Coroutine[Any, Any, PublishReport]:
        """Publish events of `send`, as much as this loop iteration can."""
        live = self._live()
        if self._log is not None:
            return self._publish_logged(self._log, *columns_of(events))
        if len(events) > 1:
            columns = columns_of(events)
            return live.act(lambda engine, now, out: engine.publish(self.channel, *columns, self.config, now, out))
        out, now = Output(), Driver.now()
        outcome = live.engine.publish_one(self.channel, events[0], self.config, now, out)
        live.driver.apply_single(out, now)
        return outcome

    async def _send_first(self) -> None:
        """Hand over what was sent before, so that nothing overtakes it."""
        if self._log is None:
            self._sends.release()  # the engine keeps the order of what waits for credit
        else:
            await self._sends.settle()

    async def _publish_logged(
        self, log: PublishedLog, offsets: NDArray[np.int64], data: NDArray[np.uint8], **columns: Unpack[LogColumns]
    ) -> PublishReport:
        """Append, then send; what is refused is not appended, and what cannot be appended is not sent."""
        live = self._live()
        prepared = live.engine.publications.prepare(self.channel, offsets, data, self.config, Driver.now())

        first: int | None = None

        def send(number: int) -> Publication:
            nonlocal first
            first = number

            def release(engine: Engine, now: float, out: Output) -> Publication:
                publication = engine.publications.send(prepared, number, now, out)
                engine.history.grew(self.channel, log.released, now, out)
                return publication

            return live.act(release)

        try:
            # Not that of the key with which the log was opened: this node may have got another one before its first event.
            columns.setdefault("origin", prepared.origin)
            done = await self._finish(await log.append(offsets, data, send, **columns), live.waiting)
        except PartialDelivery as error:
            # The events exist: whoever publishes them again because of the error logs them twice.
            report = error.report
            logged = msgspec.structs.replace(report, log_seq=first) if isinstance(report, PublishReport) else report
            problem = f"{error.problem}; the events are in this node's log, so do not publish them again"
            raise PartialDelivery(error.attempted, error.delivered, problem, report=logged) from None
        return msgspec.structs.replace(done, log_seq=first)

    def _refuse(self) -> NoReturn:
        raise LocalProtocolError(f"the publisher of {str(self.channel)!r} is closed; open another with node.publisher")

    @staticmethod
    async def _finish(publication: Publication, waiting: Waiting) -> PublishReport:
        await _end_of(publication, waiting)
        return publication.report()


async def _end_of(work: Publication | Confirmation, waiting: Waiting) -> None:
    """Wait until everything of a publish or a flush has its outcome, or the node is closed."""
    if not work.done:
        promise = waiting.promise()
        work.when_done(lambda: None if promise.done() else promise.set_result(None))
        await promise


def bytes_of(payload: object) -> bytes:
    """Return an event as bytes. Raises LocalProtocolError for what is neither bytes nor text."""
    match payload:
        case str():
            return payload.encode()
        case bytes() | bytearray() | memoryview():
            return bytes(payload)
    raise LocalProtocolError(
        f"an event is bytes or text, got {type(payload).__name__}; encode it first, for example with json.dumps"
    )


def columns_from(events: Any) -> Columns:
    """Convert a list or an Arrow array to offsets and data; Arrow columns are not copied."""
    if hasattr(events, "__arrow_c_array__") or hasattr(events, "__arrow_c_stream__"):
        return _columns_of_arrow(events)
    if isinstance(events, Sequence) and not isinstance(events, bytes | bytearray | memoryview | str):
        return columns_of([event if type(event) is bytes else bytes_of(event) for event in events])
    raise LocalProtocolError(
        f"publish_batch takes a list of bytes or an Arrow array, got {type(events).__name__}; use publish for one event"
    )


def _columns_of_arrow(events: Any) -> Columns:
    import pyarrow as pa

    array = events if isinstance(events, pa.Array | pa.ChunkedArray) else pa.array(events)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # combine_chunks keeps chunks whose offsets would overflow
        raise LocalProtocolError("the Arrow column is too large for one call; publish it in slices")
    if array.null_count:
        raise LocalProtocolError(
            f"an event cannot be null, and the Arrow column has {array.null_count} nulls; remove them"
        )
    kinds = {pa.binary(): np.int32, pa.string(): np.int32, pa.large_binary(): np.int64, pa.large_string(): np.int64}
    kind = kinds.get(array.type)
    if kind is None:
        raise LocalProtocolError(f"cannot publish an Arrow column of {array.type}; cast it to binary")
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return edges, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
