"""Publishing on one channel, as a user does it: single events, lists, or Arrow columns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publication import Publication
from meshbus.engine.channels.publish import PublishConfig, PublishReport
from meshbus.engine.core import Engine
from meshbus.errors import ConfigError, LocalProtocolError, PartialDelivery
from meshbus.log.columns import Columns as LogColumns
from meshbus.log.once import slices_left
from meshbus.names.channel import ChannelName
from meshbus.node.driver import Driver
from meshbus.node.logs import PublishedLog
from meshbus.wire.frames import columns_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = tuple[NDArray[np.int64], NDArray[np.uint8]]


class ChannelPublisher:
    """Publishes on one channel. Every call tells who got the events; none returns a bare None."""

    def __init__(
        self,
        channel: ChannelName,
        config: PublishConfig,
        running: Callable[[], tuple[Engine, Driver]],
        log: PublishedLog | None = None,
    ) -> None:
        self.channel = channel
        self.config = config
        self._running = running
        self._log = log

    async def publish(self, payload: bytes | bytearray | memoryview | str) -> PublishReport:
        """Send one event to every subscriber.

        Waits for credit where a subscriber is slow, up to `config.wait_s`. Raises PartialDelivery when nobody could be
        reached (BEST_EFFORT), LocalProtocolError for an event over 8104 bytes, AuthError or ChannelError when this
        node may not publish now, LogError when the channel is logged and the event cannot be.
        """
        event = payload.encode() if isinstance(payload, str) else bytes(payload)
        if self._log is not None:
            return await self._publish_logged(self._log, *columns_of([event]))
        engine, driver = self._running()
        out, now = Output(), driver.now()
        outcome = engine.publish_one(self.channel, event, self.config, now, out)
        driver.apply_single(out, now)
        return outcome if isinstance(outcome, PublishReport) else await self._finish(outcome)

    async def publish_batch(self, events: Any) -> PublishReport:
        """Send many events at once: a list of bytes or text, or an Arrow binary or string array.

        Far cheaper per event than `publish`. Errors as there; with several packets a subscriber may have got a first
        part when an error is reported for it.
        """
        engine, driver = self._running()
        offsets, data = columns_from(events)
        if self._log is not None:
            return await self._publish_logged(self._log, offsets, data)
        out = Output()
        publication = engine.publish(self.channel, offsets, data, self.config, driver.now(), out)
        driver.apply(out)
        return await self._finish(publication)

    async def publish_once(self, rows: Any, *, writer: str, batch: int) -> int:
        """Publish those rows of a batch that the channel's log does not have yet, and give how many those were.

        `rows` is an Arrow table with a column `payload`, and perhaps `ts_ns` and `headers`. A writer numbers its batches
        upward and tries one again with the same rows in the same order, as often as it takes; when this returns, they
        are in the log and on the disk. A subscriber that cannot be reached is no failure: it finds them in the log.
        Raises ConfigError when the channel is not logged; else as `publish_batch`.
        """
        log = self._log
        if log is None:
            raise ConfigError("log", f"{self.channel} is not logged when published: only a log can tell what it has")
        async with log.once:
            slices = await asyncio.to_thread(slices_left, log.file, rows, writer, batch)
            for payloads, columns in slices:
                with suppress(PartialDelivery):
                    await self._publish_logged(log, *columns_from(payloads), **columns)
            await asyncio.to_thread(log.file.sync)
        return sum(len(payloads) for payloads, _ in slices)

    async def _publish_logged(
        self, log: PublishedLog, offsets: NDArray[np.int64], data: NDArray[np.uint8], **columns: Unpack[LogColumns]
    ) -> PublishReport:
        """Append, then send; what is refused is not appended, and what cannot be appended is not sent."""
        engine, driver = self._running()
        prepared = engine.publications.prepare(self.channel, offsets, data, self.config, driver.now())

        def send(number: int) -> Publication:
            out, now = Output(), driver.now()
            publication = engine.publications.send(prepared, number, now, out)
            engine.history.grew(self.channel, log.released, now, out)
            driver.apply(out)
            return publication

        return await self._finish(await log.append(offsets, data, send, **columns))

    async def _finish(self, publication: Publication) -> PublishReport:
        if not publication.done:
            waiting = asyncio.get_running_loop().create_future()
            publication.when_done(lambda: None if waiting.done() else waiting.set_result(None))
            await waiting
        return publication.report()


def columns_from(events: Any) -> Columns:
    """Turn what people publish into offsets and data; Arrow columns are not copied."""
    if hasattr(events, "__arrow_c_array__") or hasattr(events, "__arrow_c_stream__"):
        return _columns_of_arrow(events)
    if isinstance(events, Sequence) and not isinstance(events, bytes | bytearray | memoryview | str):
        return columns_of([event.encode() if isinstance(event, str) else event for event in events])
    raise LocalProtocolError(
        f"publish_batch takes a list of bytes or an Arrow array, not {type(events).__name__}: for one event use publish"
    )


def _columns_of_arrow(events: Any) -> Columns:
    import pyarrow as pa

    array = events if isinstance(events, pa.Array | pa.ChunkedArray) else pa.array(events)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # combine_chunks may keep chunks that together are too large
        raise LocalProtocolError("the Arrow column is too large for one call: publish it in slices")
    if array.null_count:
        raise LocalProtocolError(f"the Arrow column holds {array.null_count} nulls: an event cannot be null")
    kinds = {pa.binary(): np.int32, pa.string(): np.int32, pa.large_binary(): np.int64, pa.large_string(): np.int64}
    kind = kinds.get(array.type)
    if kind is None:
        raise LocalProtocolError(f"an Arrow column of {array.type} cannot be published: cast it to binary")
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return edges, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
