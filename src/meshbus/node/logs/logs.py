"""The logs of a node: the events that it publishes and receives on the channels that are configured to be logged.

Published and received events are kept in separate folders, `published/` and `received/`: the sequence number of a
published event in its log is its publish number, and only what a node published itself is read by others.

    published   checked → appended → made as durable as the policy says → sent, in the order of appending
    received    appended, unless the log has the event already → handed to subscriptions; the sync that the policy asks
                for follows in the background

An append copies into the page cache and takes microseconds, so it runs on the loop. A sync runs in a thread, and
publishes that wait at the same time share one. Published events of `ASIDE_BYTES` and more are appended in that thread, too,
and what is published behind them waits for its turn. If an append fails, `publish` raises and nothing is sent; a received
event that cannot be appended is counted and delivered anyway. The files are written by meshbus.log; peers read pages of
the published logs through node/logs/pageserver.py.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack

import numpy as np

from meshbus.config.node import LOG_RETAIN_BYTES, Logged, NodeConfig
from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.engine.channels.history_server import Page
from meshbus.engine.channels.publication import HOP_TTL
from meshbus.errors import ConfigError, LogError, LogFault, MeshError
from meshbus.log.arrow import has_arrow
from meshbus.log.columns import Columns
from meshbus.log.durability import LogConfig
from meshbus.log.files import no_handles
from meshbus.log.folder import folder_of
from meshbus.log.log import Redex, RedexFile
from meshbus.log.positions import Mark, add_mark, replicated_log_id
from meshbus.log.replicated import ReplicatedLog, put_aside
from meshbus.log.schema import unsigned
from meshbus.log.schemas import declare
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.logs.lognumbers import LoggedNumbers, NumberRange
from meshbus.node.logs.logpager import Pager
from meshbus.node.logs.positionmarks import PositionMarks
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.seldom import SeldomWarning
from meshbus.wire.constants import Subprotocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

PUBLISHED, RECEIVED = "published", "received"
"""Folders of logs below the log_dir."""
NO_TIME = -(1 << 63)
"""Stands for a time that is unknown, where there is no room for a null."""
REOPEN_S = 5.0
"""Seconds before a log that could not be opened is tried again."""
ASIDE_BYTES = 1 << 20
"""Bytes of a publish that are not appended on the loop. Our choice: one megabyte takes about two milliseconds."""
MAX_RECEIVED = 65_536
"""Our choice: as many as channels that a publisher may name under a prefix."""
_LEAST_OPEN, _MOST_OPEN = 8, 4_096
NO_LOGS = "is not set, so this node keeps no logs"

_logger = logging.getLogger("meshbus.node")


BOUNDS = (
    Bound(
        name="log_bytes",
        what="bytes of a log on disk; `log_retain_bytes` changes it",
        by=By.PUBLISHER,
        per_node=None,
        per={"channel": LOG_RETAIN_BYTES},
        unit="bytes",
        full="the oldest segments are removed; on a full disk appends are refused until there is room",
        counter="first_seq of the log",
    ),
    Bound(
        name="received_channels",
        what="channels of which it is known whether they are logged",
        by=By.PUBLISHER,
        per_node=MAX_RECEIVED,
        full="those whose log is not in use are looked up again",
        counter="none: only a cache",
    ),
    Bound(
        name="open_logs",
        what="received logs that hold files open",
        by=By.PUBLISHER,
        per_node=_MOST_OPEN,
        full="the one that was used longest ago closes its files",
        counter=forgotten("open_logs"),
    ),
)


class _Step(NamedTuple, Generic[T]):
    """A publish that waits for the disk."""

    events: int
    seqs: range | None
    """The sequences of its events; None if they are still to be appended."""
    append: Callable[[], range]
    send: Callable[[int], T]
    outcome: asyncio.Future[T]


class PublishedLog:
    """The log of one channel that this node publishes."""

    def __init__(self, opener: Callable[[], RedexFile], subnet: SubnetId, counters: Counters) -> None:
        """Open the log; blocks. Raises LogError."""
        self._opener = opener
        self.file = file = opener()
        self.released = file.next_seq
        """Events below this number were sent, and may be read by others."""
        self._subnet = subnet
        self._counters = counters
        self._pager = Pager(file)
        self.once = asyncio.Lock()
        """Held while a batch that may have been appended before is looked up and appended."""
        self._line: list[_Step[Any]] = []
        """Publishes that wait for the next turn of the disk, in the order of appending."""
        self._aside = 0
        """Publishes in line, or at the disk, that are not appended yet: what comes now must stay behind them."""
        self._tasks = TaskOwner("a sync of a published log", _logger, on_failure=partial(counters.add, "fail", "task"))
        self._syncing: asyncio.Task[None] | None = None
        self._reopen_at: float | None = None
        """When to open a log again that failed; None while it works."""

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
        events = len(offsets) - 1
        aside = self._aside > 0 or offsets.item(-1) - offsets.item(0) >= ASIDE_BYTES
        try:
            self._recover()
            append = partial(self.file.write_batch, (offsets, data), **columns)
            seqs = None if aside else append()
        except LogError:
            self._counters.add("fail", "log_published", events)
            raise
        # Behind a sync that is in progress even an append that needs none has to wait, to keep the order.
        if self._syncing is None and seqs is not None and not self.file.owes_sync:
            return self._release(seqs, send)
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._line.append(_Step(events, seqs, append, send, outcome))
        self._aside += aside
        if self._syncing is None:
            self._syncing = self._tasks.start(self._commit())
        return await outcome

    def page(self, next_seq: int, max_bytes: int) -> Page:
        """Read a page of what others may read, from a sequence number on; blocks."""
        return self._pager.read(next_seq, self.released, max_bytes)

    async def drain(self) -> None:
        """Wait until every waiting publish is synced and sent."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])  # its errors went to the publishers

    def _recover(self) -> None:
        """Open a log again that a failed disk has ended, now and then. Raises LogError if that is not possible yet."""
        if self._reopen_at is None and not self.file.failed:
            return
        now = time.monotonic()
        if self._syncing is not None or now < (self._reopen_at or 0.0):
            return
        self._reopen_at = now + REOPEN_S
        with suppress(LogError):
            self.file.close()
        self.file = file = self._opener()
        if file.next_seq < self.released:
            raise LogError(
                LogFault.CORRUPT,
                f"the log of {file.channel} lost events from {file.next_seq} on that were sent; check the disk, "
                "then restart the node",
            )
        self._pager, self._reopen_at = Pager(self.file), None
        _logger.warning("the log of %s was opened again after its disk had failed", self.file.channel)

    async def _commit(self) -> None:
        """Append, sync and send the waiting publishes, until none is left."""
        while self._line:
            steps, self._line = self._line, []
            try:
                stored = await asyncio.to_thread(self._store, steps)
            except LogError as error:
                self._refuse(steps, error)
                continue
            except BaseException as error:
                # Unexpected: these publishes get it, TaskOwner reports it, and the next publish starts a new task.
                steps += self._line
                self._line, self._syncing = [], None
                self._refuse(steps, error if isinstance(error, Exception) else RuntimeError(repr(error)))
                raise
            finally:
                self._aside -= sum(step.seqs is None for step in steps)
            for step, seqs in zip(steps, stored, strict=True):
                if isinstance(seqs, range):
                    self._finish(step, seqs)
                else:
                    self._refuse([step], seqs)
        self._syncing = None

    def _store(self, steps: list[_Step[Any]]) -> list[range | Exception]:
        """Append what is not appended yet, in order, and sync if the policy requires it; blocks.

        Returns the sequences of each publish, or why it could not be appended. Raises LogError if the sync fails.
        """
        found: list[range | Exception] = []
        for step in steps:
            try:
                found.append(step.append() if step.seqs is None else step.seqs)
            except Exception as error:  # noqa: BLE001 - the publisher gets it; later publishes go on
                found.append(error)
        self.file.commit()
        return found

    def _refuse(self, steps: list[_Step[Any]], error: Exception) -> None:
        for step in steps:
            self._counters.add("fail", "log_published", step.events)
            if not step.outcome.done():
                step.outcome.set_exception(error)

    def _finish(self, step: _Step[Any], seqs: range) -> None:
        try:
            result = self._release(seqs, step.send)
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
    """The log of one channel that this node receives; open only while it is used."""

    def __init__(self, opener: Callable[[], RedexFile], subnet: SubnetId, counters: Counters) -> None:
        self._opener = opener
        self._file: RedexFile | None = None
        self._subnet = subnet
        self._tasks = TaskOwner("a sync of a received log", _logger, on_failure=partial(counters.add, "fail", "task"))
        self._syncing: asyncio.Task[None] | None = None
        self._warn = SeldomWarning(_logger)
        self._forget = counters.forgetting("logged_publishers")
        self._numbers: LoggedNumbers | None = None
        """What the log holds; None until another node's log is read, as nothing else brings an event twice."""
        self._finding = asyncio.Lock()
        """Held while the log is searched for its numbers."""

    @property
    def file(self) -> RedexFile:
        """The open log; raises LogError if it cannot be opened."""
        if self._file is None:
            self._file = self._opener()
        return self._file

    @property
    def is_open(self) -> bool:
        """Whether the log holds files open."""
        return self._file is not None

    @property
    def failed(self) -> bool:
        """Whether nothing can be appended until the log is opened again."""
        return self._file is not None and self._file.failed

    @property
    def busy(self) -> bool:
        """Whether the log must stay open, because something waits for it."""
        return self._syncing is not None or self._finding.locked()

    @property
    def in_use(self) -> bool:
        """Whether anything would be lost with this object: open files, or what the log is known to hold."""
        return self.is_open or self.busy or self._numbers is not None

    def rest(self) -> None:
        """Close the files until the next event; blocks. Raises LogError if they cannot be synced."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    async def find_numbers(self) -> None:
        """Find out which events the log holds, before others are read from a publisher's log."""
        async with self._finding:
            if self._numbers is None:
                self._numbers = numbers = LoggedNumbers(self._forget)  # what arrives meanwhile is added to it as well
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
            await asyncio.wait([self._syncing])

    async def _sync(self) -> None:
        try:
            await asyncio.to_thread(self.file.commit)
        except LogError as error:
            self._warn("cannot sync the log of %s: %s", self.file.channel, error)
        finally:
            self._syncing = None  # also after an unexpected error, so that the next event starts a new task


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
        self._root = Path(config.log_dir)
        self.published = Redex(self._root / PUBLISHED, recorder=identity.node_id)
        self.received = Redex(self._root / RECEIVED, recorder=identity.node_id)
        self.marks = PositionMarks(self._replicated_id, counters)
        self._opening = threading.Lock()
        """Held while a published log is opened: by the loop for a publisher, by a thread for a peer that reads."""
        self._published: dict[ChannelName, PublishedLog] = {}
        self._received: dict[ChannelName, ReceivedLog | None] = {}
        self._replicated: dict[ChannelName, tuple[ReplicatedLog, Pager]] = {}
        self._in_use: dict[ChannelName, ReceivedLog] = {}
        """The received logs that are open, the one that was used last at the end."""
        self._most_open = most_open_logs()
        self._closed_until: dict[ChannelName, float] = {}
        """When to try again to open a log that could not be opened."""

    def open_configured(self) -> None:
        """Open the logs of all channels that are configured by name; blocks. Raises LogError for the first failure."""
        if has_arrow():
            import pyarrow.parquet  # noqa: F401  loaded here, so that the first reader does not wait for the import
        for bound in log_bounds(self._config):
            _logger.info(bound)
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
                opener = partial(self.published.open, channel, config, origin=self._identity.origin_hash)
                log = self._published[channel] = PublishedLog(opener, self._config.subnet, self._counters)
                self._declare(PUBLISHED, channel, log.file)
            return log

    def open_files(self) -> Iterator[tuple[str, ChannelName, RedexFile]]:
        """Iterate over the logs that are open: `published` or `received`, the channel, and the log."""
        for channel, published in list(self._published.items()):
            yield PUBLISHED, channel, published.file
        for channel, (replica, _) in list(self._replicated.items()):
            yield PUBLISHED, channel, replica.committed
        for channel, received in list(self._in_use.items()):
            yield RECEIVED, channel, received.file

    def has_replica(self, channel: ChannelName) -> bool:
        """Return whether there is a log of a replica of a channel; blocks."""
        return folder_of(self._root / PUBLISHED, channel).exists()

    def open_replicated(self, channel: ChannelName) -> ReplicatedLog:
        """Open the log of a channel that is replicated here; blocks. Raises LogError if it cannot be opened."""
        log = ReplicatedLog.open(
            self._root / PUBLISHED,
            channel,
            self._replicated_id(channel),
            self._config.replicated_log_config(channel),
            recorder=self._identity.node_id,
        )
        self._declare(PUBLISHED, channel, log.committed)
        # A log keeps its id; the mark says which one the other members and the subscribers know it by.
        mark = Mark(self._replicated_id(channel).hex(), first=log.committed.next_seq)
        add_mark(folder_of(self._root / PUBLISHED, channel), mark)
        self._replicated[channel] = log, Pager(log.committed)
        return log

    def _replicated_id(self, channel: ChannelName) -> bytes:
        return replicated_log_id(self._config.load_mesh_key().root, channel)

    def put_replica_aside(self, channel: ChannelName) -> None:
        """Move the closed log of a replica aside, so that the next opening finds none; blocks."""
        self._replicated.pop(channel, None)
        put_aside(self._root / PUBLISHED, channel)

    def page(self, channel: ChannelName, next_seq: int, max_bytes: int) -> Page | None:
        """Read a page of a published log for a peer; None if the channel is not logged. Blocks; raises LogError."""
        if channel in self._replicated:
            replica, pager = self._replicated[channel]
            return pager.read(next_seq, replica.committed_tail, max_bytes)
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
            if self._use(channel, log):
                self.marks.take(channel, batch, folder_of(self._root / RECEIVED, channel), log.file.next_seq)
                log.take(batch)
                return
        except LogError:  # counted with the batches of logs that cannot be opened
            if log.failed:
                self._rest_failed(channel, log)
        self._counters.add("fail", "log_received", len(batch))

    async def expect_history(self, channel: ChannelName) -> None:
        """Get ready for events of a channel that may be in its log already. Raises LogError if it cannot be read."""
        log = self._received[channel] if channel in self._received else self._find_received(channel)
        if log is not None and self._use(channel, log):
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
        config, log = self._config.log_config(channel, Logged.RECEIVED), None
        if config is not None:
            log = ReceivedLog(partial(self._open_file, channel, config), self._config.subnet, self._counters)
        if len(self._received) >= MAX_RECEIVED:
            self._forget_unused()
        self._received[channel] = log
        return log

    def _forget_unused(self) -> None:
        """Forget the channels that are not logged, and the logs that nobody uses; they are looked up again."""
        self._received = {name: log for name, log in self._received.items() if log is not None and log.in_use}
        self._closed_until = {name: at for name, at in self._closed_until.items() if name in self._received}

    def _open_file(self, channel: ChannelName, config: LogConfig) -> RedexFile:
        file = self.received.open(channel, config)
        self._declare(RECEIVED, channel, file)
        return file

    def _declare(self, kind: str, channel: ChannelName, file: RedexFile) -> None:
        """Store what the payloads of a log are from now on, if that is configured; a failure does not stop logging."""
        version = self._config.payloads(channel, file.next_seq)
        if version is None:
            return
        try:
            declare(folder_of(self._root / kind, channel), version)
        except MeshError as error:
            _logger.warning("the schema of %s is not stored: %s", channel, error)
            self._counters.add("fail", "log_schema")

    def _open_received(self, channel: ChannelName) -> None:
        log = self._find_received(channel)
        if log is not None:
            self._open(channel, log)

    def _use(self, channel: ChannelName, log: ReceivedLog) -> bool:
        """Open a log if it is not open, and return whether it is; a failure is counted and tried again later."""
        if log.is_open:
            self._in_use[channel] = self._in_use.pop(channel)
            return True
        if time.monotonic() < self._closed_until.get(channel, 0.0):
            return False
        try:
            self._open(channel, log)
        except LogError as error:
            # Not at every event: opening a log takes long, and the cause seldom goes away at once.
            self._closed_until[channel] = time.monotonic() + REOPEN_S
            _logger.warning("events received on %s are not logged: %s", channel, error)
            self._counters.add("fail", "log_open")
            return False
        self._closed_until.pop(channel, None)
        return True

    def _open(self, channel: ChannelName, log: ReceivedLog) -> None:
        """Open a log; close another if too many are open. Raises LogError."""
        while len(self._in_use) >= self._most_open and self._rest_one():
            pass
        try:
            _ = log.file
        except LogError as error:
            # The limit of open files may be lower than it was, or others use more: make do with fewer.
            if not (isinstance(error.__cause__, OSError) and no_handles(error.__cause__) and self._rest_one()):
                raise
            self._most_open = max(len(self._in_use), 1)
            _ = log.file
        self._in_use[channel] = log

    def _rest_failed(self, channel: ChannelName, log: ReceivedLog) -> None:
        """Close a log that a failed disk has ended, so that it is opened again after a while."""
        if not log.busy:
            self._in_use.pop(channel, None)
            self._closed_until[channel] = time.monotonic() + REOPEN_S
            with suppress(LogError):
                log.rest()

    def _rest_one(self) -> bool:
        """Close the files of the log that was not used for the longest time; return whether there was one."""
        channel = next((channel for channel, log in self._in_use.items() if not log.busy), None)
        if channel is None:
            return False
        try:
            self._in_use.pop(channel).rest()
            self._counters.add("forget", "open_logs")
        except LogError as error:
            _logger.warning("cannot close the log of %s: %s", channel, error)
            self._counters.add("fail", "log_close")
        return True


def most_open_logs() -> int:
    """Return how many received logs may be open at a time; each takes two files, and together a quarter of the limit."""
    if sys.platform == "win32":
        return _LEAST_OPEN * 16  # it has no such limit
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN if limit < 0 else min(max(limit // 8, _LEAST_OPEN), _MOST_OPEN)


def log_bounds(config: NodeConfig) -> list[str]:
    """Return a line for each logged channel or prefix that says how much disk space its logs may take."""
    lines = []
    for entry in config.channels:
        if entry.log is not None:
            channels = entry.name or f"each channel that starts with {entry.prefix!r}"
            logs = "two logs" if entry.log is Logged.BOTH else "one log"
            lines.append(f"{channels}: {logs} of at most {entry.log_retain_bytes >> 20} MiB (log_retain_bytes)")
    for subscription in config.subscriptions:
        if subscription.log:
            channels = subscription.channel or f"each channel that starts with {subscription.prefix!r}"
            lines.append(
                f"{channels}: one log of at most {LOG_RETAIN_BYTES >> 20} MiB, unless its channel entry sets another limit"
            )
    return lines


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
