"""The disk of one replicated channel: carries out the writes of the engine in their order, and syncs them together.

A write copies into the page cache and takes microseconds, so it runs on the loop. A sync runs in a thread; everything
that is written while it runs is covered by the next one, so that one fsync serves many appends. After a failure nothing
more is written: what the disk has is not known before the log is opened again.

Reads for members that catch up run on the loop too, as long as the events are in the hot tail. Older ones are in Parquet
files: a thread reads them ahead, and the reader asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.records import AppendEvents, Ballot, PersistBallot, SetAside, SkipTo, Write
from meshbus.errors import LogError
from meshbus.log.columns import Columns
from meshbus.log.replicated import ReplicatedLog
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.replicas.replicarecords import records_of, rows_of
from meshbus.policy.bound import Bound, By
from meshbus.seldom import SeldomWarning
from meshbus.wire.column import joined

AHEAD_EVENTS, AHEAD_BYTES = 65_536, 2 << 20
"""How much is read ahead of a member that catches up."""
MAX_AHEAD_PARTS = 16
"""Parts that are kept: a present and a next one for several members that catch up at the same time."""

BOUNDS = (
    Bound(
        name="replica_read_ahead",
        what="parts of a replicated log, of 2 MiB each, read for members that catch up",
        by=By.PEER,
        per_node=None,
        per={"channel": MAX_AHEAD_PARTS},
        full="the oldest goes, and is read again",
        counter="none: only a cache",
    ),
)

_logger = logging.getLogger("meshbus.node")


class _Ahead(NamedTuple):
    """Records that were read ahead."""

    first_seq: int
    records: tuple[bytes, ...]

    @property
    def end(self) -> int:
        """One past the last sequence."""
        return self.first_seq + len(self.records)


class ReplicaDisk:
    """The writes of one replicated channel."""

    def __init__(self, log: ReplicatedLog) -> None:
        self.log = log
        self.on_durable: Callable[[int], None] = lambda _number: None
        """Called with the number of the last write that is durable."""
        self.on_failure: Callable[[str], None] = lambda _problem: None
        """Called once, with why nothing more can be written."""
        self._written = self._synced = 0
        self._failed = False
        self._ahead: deque[_Ahead] = deque(maxlen=MAX_AHEAD_PARTS)
        self._reading: set[int] = set()
        """Where parts begin that are being read ahead."""
        self._tasks = TaskOwner("a sync of a replicated log", _logger)
        self._warn = SeldomWarning(_logger)
        self._syncing: asyncio.Task[None] | None = None

    @property
    def recovered(self) -> Recovered:
        """What was found when the log was opened, as the engine needs it."""
        found = self.log.recovered
        return Recovered(
            ballot=None if found.ballot is None else msgspec.msgpack.decode(found.ballot, type=Ballot),
            tail=found.tail,
            first_retained=found.first_retained,
            runs=tuple(found.runs),
            committed=found.committed,
            damaged=found.damaged,
        )

    def read(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[bytes, ...]:
        """Return consecutive records from a sequence on, at least one if it is there.

        Nothing is returned for events that must be read from Parquet files first; ask again.
        """
        if first_seq >= self.log.quick_from:
            return self._read(first_seq, max_events, max_bytes)
        for ahead in self._ahead:
            place = first_seq - ahead.first_seq
            if 0 <= place < len(ahead.records):
                if 2 * place > len(ahead.records):
                    self._read_ahead(ahead.end)
                return ahead.records[place : place + max_events]
        self._read_ahead(first_seq)
        return ()

    def _read(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[bytes, ...]:
        try:
            return records_of(self.log.read_events(first_seq, max_events, max_bytes))
        except LogError as error:
            self._warn("cannot read a replicated log: %s", error)
            return ()  # the reader asks again, or another member

    def _read_ahead(self, first_seq: int) -> None:
        known = first_seq in self._reading or any(ahead.first_seq <= first_seq < ahead.end for ahead in self._ahead)
        if not known and first_seq < self.log.tail and len(self._reading) < MAX_AHEAD_PARTS:
            self._reading.add(first_seq)
            self._tasks.start(self._fill(first_seq))

    async def _fill(self, first_seq: int) -> None:
        try:
            records = await asyncio.to_thread(self._read, first_seq, AHEAD_EVENTS, AHEAD_BYTES)
            if records:
                self._ahead.append(_Ahead(first_seq, records))
        finally:
            self._reading.discard(first_seq)

    def carry_out(self, writes: Sequence[Write]) -> None:
        """Write, in order, and begin a sync unless one is running."""
        if self._failed or not writes:
            return
        try:
            for write in _merged(writes):
                self._write(write)
        except LogError as error:
            self._fail(error)
            return
        self._written = writes[-1].number
        if self._syncing is None:
            self._syncing = self._tasks.start(self._sync())

    def commit_to(self, tail: int) -> None:
        """Show readers the events below a sequence."""
        if not self._failed:
            try:
                self.log.commit_to(tail)
            except LogError as error:
                self._fail(error)

    async def close(self) -> None:
        """Wait for the sync that is running, and close the log."""
        self._failed = True
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        await asyncio.to_thread(self.log.close)

    def _write(self, write: Write) -> None:
        match write:
            case AppendEvents():
                payloads, columns = rows_of(write.payloads) if write.payloads else ([], Columns())
                # When it came here: tables show by it how far replicas are behind.
                columns["recv_ts_ns"] = time.time_ns()
                self.log.append(write.epoch, write.first_seq, payloads, **columns)
            case SetAside():
                self.log.set_aside(write.first_seq)
            case SkipTo():
                self.log.skip_to(write.first_seq, write.epoch)
            case PersistBallot():
                self.log.persist(msgspec.msgpack.encode(write.ballot))

    async def _sync(self) -> None:
        try:
            while self._synced < self._written and not self._failed:
                number = self._written
                try:
                    await asyncio.to_thread(self.log.sync)
                except LogError as error:
                    self._fail(error)
                    return
                self._synced = number
                self.on_durable(number)
        finally:
            self._syncing = None

    def _fail(self, error: LogError) -> None:
        if not self._failed:
            self._failed = True
            self.on_failure(str(error))


def _merged(writes: Sequence[Write]) -> Iterator[Write]:
    """Yield the writes, with neighboring appends of one epoch as one."""
    for key, group in groupby(writes, lambda write: write.epoch if isinstance(write, AppendEvents) else None):
        if key is None:
            yield from group
            continue
        appends = [write for write in group if isinstance(write, AppendEvents)]
        records = joined([append.payloads for append in appends])
        yield AppendEvents(appends[-1].number, key, appends[0].first_seq, records)
