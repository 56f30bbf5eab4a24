"""The logs of a node: the events that it publishes and receives on the channels that are configured to be logged.

Published and received events are kept in separate folders, `published/` and `received/`: the sequence number of a
published event in its log is its publish number, and only what a node published itself is read by others.

    published   checked → appended → made as durable as the policy says → sent, in the order of appending
    received    appended, unless the log has the event already → handed to subscriptions; the sync that the policy asks
                for follows in the background

An append copies into the page cache and takes microseconds, so it runs on the loop. A sync runs in a thread, and
publishes that wait at the same time share one. If an append fails, `publish` raises and nothing is sent; a received
event that cannot be appended is counted and delivered anyway. The files are written by meshbus.log; peers read pages of
the published logs through node/pageserver.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack

import numpy as np

from meshbus.config.node import Logged, NodeConfig
from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.engine.channels.history_server import Page
from meshbus.engine.channels.publication import HOP_TTL
from meshbus.errors import ConfigError, LogError
from meshbus.log.arrow import has_arrow
from meshbus.log.columns import Columns
from meshbus.log.log import Redex, RedexFile
from meshbus.log.schema import unsigned
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.node.lognumbers import LoggedNumbers, NumberRange
from meshbus.node.logpager import Pager
from meshbus.node.tasks import TaskOwner
from meshbus.wire.constants import Subprotocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

NO_TIME = -(1 << 63)
"""Stands for a time that is unknown, where there is no room for a null."""
NO_LOGS = "is not set, so this node keeps no logs"

_logger = logging.getLogger("meshbus.node")


class _Step(NamedTuple, Generic[T]):
    """A publish that waits for a sync."""

    seqs: range
    send: Callable[[int], T]
    outcome: asyncio.Future[T]


class PublishedLog:
    """The log of one channel that this node publishes."""

    def __init__(self, file: RedexFile, subnet: SubnetId, counters: Counters) -> None:
        self.file = file
        self.released = file.next_seq
        """Events below this number were sent, and may be read by others."""
        self._subnet = subnet
        self._counters = counters
        self._pager = Pager(file)
        self.once = asyncio.Lock()
        """Held while a batch that may have been appended before is looked up and appended."""
        self._line: list[_Step[Any]] = []
        """Publishes that wait for the next sync, in the order of appending."""
        self._tasks = TaskOwner("a sync of a published log", _logger)
        self._syncing: asyncio.Task[None] | None = None

    async def append(
        self,
        offsets: NDArray[np.int64],
        data: NDArray[np.uint8],
        send: Callable[[int], T],
        **columns: Unpack[Columns],
    ) -> T:
        """Append events, then call `send` with the number of the first one, and return its result.

        Events are sent in the order of appending, once they are as durable as the policy says, even if the caller is
        cancelled meanwhile. Raises LogError if they cannot be appended; nothing is sent then.
        """
        columns.update({"src": self._subnet, "dst": self._subnet, "ttl": HOP_TTL})
        try:
            seqs = self.file.write_batch((offsets, data), **columns)
        except LogError:
            self._counters.add("fail", "log_published", len(offsets) - 1)
            raise
        # Behind a sync that is in progress even an append that needs none has to wait, to keep the order.
        if self._syncing is None and not self.file.owes_sync:
            return self._release(seqs, send)
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._line.append(_Step(seqs, send, outcome))
        if self._syncing is None:
            self._syncing = self._tasks.start(self._commit())
        return await outcome

    def page(self, next_seq: int, max_bytes: int) -> Page:
        """Read a page of what others may read, from a sequence number on; blocks."""
        return self._pager.read(next_seq, self.released, max_bytes)

    async def drain(self) -> None:
        """Wait until every waiting publish is synced and sent."""
        if self._syncing is not None:
            await self._syncing

    async def _commit(self) -> None:
        """Sync and send the waiting publishes, until none is left."""
        while self._line:
            steps, self._line = self._line, []
            try:
                await asyncio.to_thread(self.file.commit)
            except LogError as error:
                for step in steps:
                    self._counters.add("fail", "log_published", len(step.seqs))
                    if not step.outcome.done():
                        step.outcome.set_exception(error)
                continue
            for step in steps:
                self._finish(step)
        self._syncing = None

    def _finish(self, step: _Step[Any]) -> None:
        try:
            result = self._release(step.seqs, step.send)
        except Exception as error:  # noqa: BLE001 - the publisher gets it; later publishes go on
            if not step.outcome.done():
                step.outcome.set_exception(error)
        else:
            if not step.outcome.done():
                step.outcome.set_result(result)

    def _release(self, seqs: range, send: Callable[[int], T]) -> T:
        self.released = seqs.stop
        return send(seqs.start)


class ReceivedLog:
    """The log of one channel that this node receives."""

    def __init__(self, file: RedexFile, subnet: SubnetId) -> None:
        self.file = file
        self._subnet = subnet
        self._tasks = TaskOwner("a sync of a received log", _logger)
        self._syncing: asyncio.Task[None] | None = None
        self._numbers: LoggedNumbers | None = None
        """What the log holds; None until another node's log is read, as nothing else brings an event twice."""
        self._finding = asyncio.Lock()
        """Held while the log is searched for its numbers."""

    async def find_numbers(self) -> None:
        """Find out which events the log holds, before others are read from a publisher's log."""
        async with self._finding:
            if self._numbers is None:
                self._numbers = numbers = LoggedNumbers()  # what arrives meanwhile is added to it as well
                for origin, found in await asyncio.to_thread(_numbers_in, self.file, self.file.next_seq):
                    numbers.add(origin, found)

    def take(self, batch: EventBatch) -> None:
        """Append what the log does not have of a batch. Raises LogError if it cannot be appended."""
        if self._numbers is None or batch.pub_seq is None:
            self._append(batch)
            return
        times = batch.event_times()
        span = (None, None) if times is None else (int(times[0]), int(times[-1]))
        new = self._numbers.add(batch.origin_hash, NumberRange(batch.pub_seq, batch.pub_seq + len(batch), *span))
        try:
            for first, end in new:
                self._append(batch.slice(first - batch.pub_seq, end - batch.pub_seq))
        except LogError:
            self._numbers = None  # it says more than the log holds; an event twice is better than not at all
            raise

    def _append(self, batch: EventBatch) -> None:
        stamp = batch.stamp
        # The columns of a received event say which packet brought it, so that a log can be joined with a packet record.
        packet_seq = event_index = None
        if len(batch.packet_seqs):
            starts = np.cumsum(batch.packet_events) - batch.packet_events
            packet_seq = np.repeat(batch.packet_seqs, batch.packet_events)
            event_index = np.arange(len(batch)) - np.repeat(starts, batch.packet_events)
        self.file.write_batch(
            (batch.offsets, batch.data),
            pub_seq=batch.pub_seq,
            origin=batch.origin_hash,
            ts_ns=batch.event_times(),
            recv_ts_ns=batch.received_ns,
            session_id=batch.session_id,
            stream_id=batch.stream_id,
            packet_seq=packet_seq,
            event_index=event_index,
            src=stamp.subnet_id,
            dst=self._subnet,
            ttl=stamp.hop_ttl,
            hops=stamp.hop_count,
            flags=stamp.flags,
        )
        if self.file.owes_sync and self._syncing is None:
            self._syncing = self._tasks.start(self._sync())

    async def drain(self) -> None:
        """Wait for the sync that is in progress, if any."""
        if self._syncing is not None:
            await self._syncing

    async def _sync(self) -> None:
        try:
            await asyncio.to_thread(self.file.commit)
        except LogError as error:
            _logger.warning("cannot sync the log of %s: %s", self.file.channel, error)
        self._syncing = None


def _numbers_in(file: RedexFile, end: int) -> list[tuple[int, NumberRange]]:
    """Return the publish numbers in a log before a sequence, with the origin of each range; blocks."""
    found: list[tuple[int, NumberRange]] = []
    for origins, numbers, times in _columns_in(file, end):
        if not len(numbers):
            continue
        breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(origins) != 0)) + 1
        starts = [0, *breaks.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
            given = times[start], times[stop - 1]
            span = (None, None) if NO_TIME in given else (int(given[0]), int(given[1]))
            found.append((int(origins[start]), NumberRange(int(numbers[start]), int(numbers[stop - 1]) + 1, *span)))
    return found


def _columns_in(file: RedexFile, end: int) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]]:
    """Read origins, publish numbers and times of the numbered events of a log, `NO_TIME` for a time that is unknown."""
    if not has_arrow():  # without pyarrow nothing was ever sealed
        rows = [event for event in file.read_range(file.first_seq, end) if event.pub_seq is not None]
        yield (
            np.array([event.origin for event in rows], np.uint64),
            np.array([event.pub_seq for event in rows], np.int64),
            np.array([NO_TIME if event.ts_ns is None else event.ts_ns for event in rows], np.int64),
        )
        return
    for batch in file.read_batches(file.first_seq, end, ("origin", "pub_seq", "ts_ns")):
        rows = batch.filter(batch.column("pub_seq").is_valid())
        origins, numbers, times = rows.columns
        yield unsigned(origins.to_numpy()), numbers.to_numpy(), times.fill_null(NO_TIME).to_numpy()


class Logs:
    """All logs of a node. `published` and `received` are for reading; only the node writes."""

    def __init__(self, config: NodeConfig, identity: Identity, counters: Counters) -> None:
        """Set up without opening a file. Raises ConfigError if the node keeps no logs."""
        if config.log_dir is None:
            raise ConfigError("log_dir", NO_LOGS)
        self._config = config
        self._identity = identity
        self._counters = counters
        self.published = Redex(Path(config.log_dir) / "published", recorder=identity.node_id)
        self.received = Redex(Path(config.log_dir) / "received", recorder=identity.node_id)
        self._opening = threading.Lock()
        """Held while a published log is opened: by the loop for a publisher, by a thread for a peer that reads."""
        self._published: dict[ChannelName, PublishedLog] = {}
        self._received: dict[ChannelName, ReceivedLog | None] = {}

    def open_configured(self) -> None:
        """Open the logs of all channels that are configured by name; blocks. Raises LogError for the first failure."""
        if has_arrow():
            import pyarrow.parquet  # noqa: F401  loaded here, so that the first reader does not wait for the import
        for entry in self._config.channels:
            if entry.name is not None:
                self.of_published(entry.name)
        names = [entry.name for entry in self._config.channels] + [one.channel for one in self._config.subscriptions]
        for name in dict.fromkeys(names):
            if name is not None:
                self._open_received(name)

    def of_published(self, channel: ChannelName, *, create: bool = True) -> PublishedLog | None:
        """Return the log of a channel that is configured to be logged when published; blocks if it has to be opened.

        Without `create`, return None for a log that was never written. Raises LogError if it cannot be opened.
        """
        with self._opening:
            log = self._published.get(channel)
            if log is None and (config := self._config.log_config(channel, Logged.PUBLISHED)) is not None:
                if not create and not self.published.exists(channel):
                    return None
                file = self.published.open(channel, config, origin=self._identity.origin_hash)
                log = self._published[channel] = PublishedLog(file, self._config.subnet, self._counters)
            return log

    def page(self, channel: ChannelName, next_seq: int, max_bytes: int) -> Page | None:
        """Read a page of a published log for a peer; None if the channel is not logged. Blocks; raises LogError."""
        log = self.of_published(channel, create=False)
        return None if log is None else log.page(next_seq, max_bytes)

    def take(self, batch: EventBatch) -> None:  # hot: bench_stream
        """Append a received batch if its channel is configured so; count a failure."""
        channel = batch.channel
        if channel is None or batch.subprotocol_id != Subprotocol.EVENTS:
            return
        log = self._received[channel] if channel in self._received else self._find_received(channel)
        if log is None:
            return
        try:
            log.take(batch)
        except LogError:
            self._counters.add("fail", "log_received", len(batch))

    async def expect_history(self, channel: ChannelName) -> None:
        """Get ready for events of a channel that may be in its log already. Raises LogError if it cannot be read."""
        log = self._received[channel] if channel in self._received else self._find_received(channel)
        if log is not None:
            await log.find_numbers()

    async def drain(self) -> None:
        """Wait for the syncs that are in progress, and for what waits for them."""
        for log in (*self._published.values(), *self._received.values()):
            if log is not None:
                await log.drain()

    def close(self) -> None:
        """Sync and close all logs; blocks."""
        self.published.close()
        self.received.close()

    def _find_received(self, channel: ChannelName) -> ReceivedLog | None:
        try:
            return self._open_received(channel)
        except LogError as error:
            _logger.warning("events received on %s are not logged: %s", channel, error)
            self._counters.add("fail", "log_open")
            self._received[channel] = None
            return None

    def _open_received(self, channel: ChannelName) -> ReceivedLog | None:
        config, log = self._config.log_config(channel, Logged.RECEIVED), None
        if config is not None:
            log = ReceivedLog(self.received.open(channel, config), self._config.subnet)
        self._received[channel] = log
        return log


async def open_logs(config: NodeConfig, identity: Identity, counters: Counters) -> Logs | None:
    """Open the logs that are configured; None if the node keeps none. Raises LogError for the first failure."""
    if config.log_dir is None:
        return None
    logs = Logs(config, identity, counters)
    try:
        await asyncio.to_thread(logs.open_configured)
    except BaseException:
        await asyncio.to_thread(logs.close)
        raise
    return logs
