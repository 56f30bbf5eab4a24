"""RedEX: one durable, ordered log per channel.

    with Redex(path) as redex:
        log = redex.open("sensors/lidar", fsync=every_n(1))
        seq = log.append(b"...")
        for event in log.read_range(0, 10): ...

One writer per log, in one process (a lock says so); any number of threads may use it, and any number of readers
elsewhere (log/reader.py). The bytes are written by log/embedded/writer.py, the steps of sealing are in log/embedded/upkeep.py, and when
which is due is decided here.

What blocks, and for how long, is in docs/guide/durability.md. The asynchronous twin is log/aio.py.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.arrow import has_arrow, require_arrow
from meshbus.log.columns import Columns, Defaults, Events, number, pack_events
from meshbus.log.durability import Fsync, LogConfig, Retention
from meshbus.log.embedded.block import MAX_BLOCK_BYTES, OFFSET_BYTES, pack_block, pack_cells, pack_one
from meshbus.log.embedded.compaction import FEWEST, choose_run
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.recovery import Report
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.embedded.upkeep import compact, expire, seal, sweep
from meshbus.log.embedded.verify import Finding, verify_log
from meshbus.log.embedded.writer import LogStats, Writer
from meshbus.log.event import LogEvent
from meshbus.log.files import Files, translated
from meshbus.log.folder import folder_of
from meshbus.log.keeper import Keeper
from meshbus.log.retention import Unit, expired_until
from meshbus.log.tail import Tail
from meshbus.names.channel import ChannelName

_NS = 1_000_000_000
_log = logging.getLogger("meshbus.log")


class RedexFile:
    """The log of one channel, open for appending; made by `Redex.open`."""

    def __init__(
        self,
        folder: Path,
        channel: ChannelName,
        config: LogConfig,
        *,
        files: Files,
        clock: Callable[[], int],
        recorder: int = 0,
        origin: int = 0,
    ) -> None:
        self.channel = channel
        self.config = config
        self._clock = clock
        self._defaults = Defaults(recorder=recorder, origin=origin)
        self._upkeep = threading.RLock()
        self._warned = False
        self._writer = Writer(files, folder, channel, clock)
        if not self.report.clean:
            _log.warning("log of %s: recovered, %s", channel, msgspec.to_builtins(self.report))

    def __repr__(self) -> str:
        return f"<RedexFile {self.channel} [{self.first_seq}, {self.next_seq})>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_writer") and not self.closed:
            warnings.warn(f"the log of {self.channel} was never closed", ResourceWarning, stacklevel=2)

    @property
    def log_id(self) -> bytes:
        """16 bytes drawn when the log was created; (log_id, seq) names a row for ever."""
        return self._writer.manifest.id_bytes

    @property
    def report(self) -> Report:
        """What opening the log found and did."""
        return self._writer.report

    @property
    def first_seq(self) -> int:
        """The first sequence that has not expired."""
        return self._writer.manifest.first

    @property
    def next_seq(self) -> int:
        """The sequence that the next event will have."""
        return self._writer.end

    @property
    def durable_seq(self) -> int:
        """Everything below it is on the disk."""
        return self._writer.durable

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._writer.closed

    @property
    def stats(self) -> LogStats:
        """What this log has done so far."""
        return copy(self._writer.stats)

    # ── append ──────────────────────────────────────────────────────────────────────────────

    def append(self, payload: bytes | memoryview, **columns: Unpack[Columns]) -> int:
        """Append one event and give its sequence; what the policy promises holds when this returns.

        Raises LogError when the disk refuses; then nothing was appended and no sequence is used up.
        """
        seq = self.write(payload, **columns)
        self.commit()
        return seq

    def append_batch(self, events: Events, **columns: Unpack[Columns]) -> range:
        """Append events in one piece, all or none, and give their sequences.

        `events` is a list of bytes, (offsets, data) as numpy arrays, or an Arrow array of binary; `columns` are one
        value for all of them or an array each.
        """
        seqs = self.write_batch(events, **columns)
        self.commit()
        return seqs

    def write(self, payload: bytes | memoryview, **columns: Unpack[Columns]) -> int:
        """Append one event without the wait for the disk that the policy may ask for: `commit` makes up for it."""
        size = len(payload)
        if size > MAX_BLOCK_BYTES:
            raise LogError(LogFault.TOO_LARGE, f"an event of {size} bytes: at most {MAX_BLOCK_BYTES} fit")
        if columns:
            return self.write_batch([bytes(payload)], **columns).start
        now = self._clock()

        def pack(first: int, durable: int) -> list[bytes]:
            return [pack_one(first, self._defaults.plain(first, now), payload, written_ns=now, durable=durable)]

        return self._writer.write(pack, 1, now, self.config.seal_bytes)

    def write_batch(self, events: Events, **columns: Unpack[Columns]) -> range:
        """Append events in one piece without waiting for the disk: `commit` makes up for it."""
        offsets, data = pack_events(events)
        count = len(offsets) // OFFSET_BYTES - 1
        if not count:
            self._writer.check_open()
            return range(self.next_seq, self.next_seq)
        now = self._clock()
        said = self._defaults.cells(columns, count, now) if columns else None

        def pack(first: int, durable: int) -> list[bytes | memoryview]:
            form = self._defaults.plain(first, now) if said is None else pack_cells(number(said[0], first), said[1])
            return pack_block(first, count, form, offsets, data, written_ns=now, durable=durable)

        first = self._writer.write(pack, count, now, self.config.seal_bytes)
        return range(first, first + count)

    @property
    def owes_sync(self) -> bool:
        """Whether the policy asks for a sync before what was written counts as appended."""
        limit = self.config.fsync.events
        return limit is not None and self.next_seq - self.durable_seq >= limit

    def commit(self) -> None:
        """Do what the policy asks for after a write: wait for the disk, or nothing."""
        if self.owes_sync:
            self.sync()

    def sync(self) -> None:
        """Wait until everything appended so far is on the disk."""
        self._writer.sync()

    # ── read ────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> Snapshot:
        """Give the log as it is now; it stays readable while the log goes on, and after `close`."""
        return self._writer.snapshot()

    def read_range(self, start: int, stop: int) -> Iterator[LogEvent]:
        """Give the events from `start` to `stop` (excluded) one by one.

        Raises LogError `range_gone` with the first available sequence when the start has expired.
        """
        return self.snapshot().events(start, stop)

    def read_batches(
        self, start: int | None = None, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """Give a range as `pyarrow.RecordBatch`es of the chosen columns; everything by default."""
        return self.snapshot().batches(start, stop, columns)

    def tail(self, since: int | None = None) -> Tail:
        """Follow the log from a sequence on: history, then what is appended, without gap or duplicate.

        From the first available one by default. Blocks while there is nothing new, and ends with `close`.
        """
        return Tail(self, self.first_seq if since is None else since)

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an event at a sequence; False when the time is up or the log was closed."""
        return self._writer.wait_beyond(seq, timeout_s)

    def listen(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call back after every append and at close, from the appending thread; gives what ends that."""
        self._writer.grown.append(told)

        def stop() -> None:
            if told in self._writer.grown:
                self._writer.grown.remove(told)

        return stop

    def verify(self) -> list[Finding]:
        """Check every file of the log; empty when all is well."""
        return verify_log(self.snapshot())

    # ── upkeep ──────────────────────────────────────────────────────────────────────────────

    def seal(self) -> int:
        """Make Parquet of everything that is hot, and give how many events that were."""
        require_arrow()
        with self._upkeep:
            self._writer.roll(self._clock(), lambda _: True)
            return self._seal_rolled()

    def compact(self) -> int:
        """Make small neighboring segments one, and give how many went into others."""
        require_arrow()
        with self._upkeep:
            return self._compact(fewest=2)

    def expire(self) -> int:
        """Apply the retention now, and give how many events went."""
        writer, now = self._writer, self._clock()
        with self._upkeep, translated(writer.folder, "cannot expire"):
            writer.check_open()
            before, rolled, last = writer.manifest, writer.hot[:-1], writer.hot[-1]
            units = [Unit(part.end, part.bytes, part.written_ns) for part in before.segments]
            units += [Unit(hot.end, hot.size, hot.written_ns) for hot in rolled]
            until = expired_until(units, last.end, last.size, self.config.retention, now)
            gone = max(until - before.first, 0)
            if gone:
                writer.adopt(expire(writer.files, writer.folder, before, until, now))
                writer.stats.expired += gone
            writer.adopt(sweep(writer.files, writer.folder, writer.manifest, self.config.grace_s, now))
            return gone

    def keep(self) -> None:
        """Do what is due: sync by interval, seal by size and age, expire, compact. The keeper calls this.

        Never raises: what fails is counted and logged, and tried again the next time.
        """
        try:
            self._keep()
        except LogError as error:
            if self.closed or error is self._writer.problem:
                return  # whoever appends next is told
            self._writer.stats.upkeep_failures += 1
            _log.warning("log of %s: %s", self.channel, error)

    def close(self) -> None:
        """Sync, end the tails and let the next writer in; closing twice is fine."""
        with self._upkeep:
            self._writer.close()

    def _keep(self) -> None:
        writer, now = self._writer, self._clock()
        period = self.config.fsync.seconds
        if period is not None and writer.durable < writer.end and now - writer.synced_ns >= period * _NS:
            writer.sync()
        with self._upkeep:
            writer.roll(now, lambda hot: self._is_due(hot, now))
            self.expire()  # first: it makes room for the others
            if has_arrow():
                self._seal_rolled()
                self._compact(fewest=FEWEST)
            elif len(writer.hot) > 1 and not self._warned:
                self._warned = True
                _log.warning("log of %s: sealing waits for pyarrow: pip install 'meshbus[arrow]'", self.channel)

    def _is_due(self, hot: HotIndex, now: int) -> bool:
        old = now - hot.header.created_ns >= self.config.seal_age_s * _NS
        return old or hot.size >= self.config.seal_bytes

    def _seal_rolled(self) -> int:
        """Seal the hot files that are no longer written."""
        writer, sealed = self._writer, 0
        if len(writer.hot) > 1:
            writer.sync()  # so that recovery finds in the hot files whatever a segment without a manifest holds
        with translated(writer.folder, "cannot seal"):
            while len(writer.hot) > 1:
                hot = writer.hot[0]
                writer.adopt(seal(writer.files, writer.folder, writer.manifest, hot))
                writer.stats.seals += 1
                sealed += hot.end - hot.header.first
        return sealed

    def _compact(self, *, fewest: int) -> int:
        writer, merged = self._writer, 0
        writer.check_open()
        with translated(writer.folder, "cannot compact"):
            while run := choose_run(writer.manifest.segments, self.config.seal_bytes, fewest=fewest):
                writer.adopt(compact(writer.files, writer.folder, writer.manifest, run, self._clock()))
                writer.stats.compactions += 1
                merged += len(run)
        return merged


class Redex:
    """The logs below one folder. Use as a context manager, or `close` it."""

    def __init__(
        self,
        path: Path | str,
        *,
        recorder: int = 0,
        files: Files | None = None,
        clock: Callable[[], int] = time.time_ns,
        background: bool = True,
    ) -> None:
        """Name the folder; it is made when the first log is opened.

        `recorder` is the node id that rows carry. `files` and `clock` (nanoseconds since 1970) are for tests, and so is
        `background=False`: then nobody calls `keep` but you.
        """
        self.path = Path(path)
        self._recorder, self._clock = recorder, clock
        self._files = files or Files()
        self._open: dict[ChannelName, RedexFile] = {}
        self._opening = threading.Lock()
        self._keeper = Keeper(self._each_log) if background else None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def open(
        self,
        channel: str,
        config: LogConfig | None = None,
        *,
        fsync: Fsync | None = None,
        retention: Retention | None = None,
        origin: int = 0,
    ) -> RedexFile:
        """Open the log of a channel for appending, and make it when there is none.

        `fsync` and `retention` are for those who want no more than that. `origin` is the origin hash that rows carry
        unless an append says otherwise. Opening a channel again gives the same object. Raises LogError when the folder
        cannot be used, is being written by another process, or holds damage that recovery must not hide.
        """
        name = ChannelName(channel)
        chosen = config or LogConfig()
        if fsync is not None:
            chosen = msgspec.structs.replace(chosen, fsync=fsync)
        if retention is not None:
            chosen = msgspec.structs.replace(chosen, retention=retention)
        with self._opening:
            if self._closed:
                raise LogError(LogFault.CLOSED, f"{self.path}: these logs are closed: make a new Redex")
            log = self._open.get(name)
            if log is not None and not log.closed:
                if log.config != chosen:
                    raise ConfigError("config", f"the log of {name} is open with other settings: close it first")
                return log
            log = RedexFile(
                folder_of(self.path, name),
                name,
                chosen,
                files=self._files,
                clock=self._clock,
                recorder=self._recorder,
                origin=origin,
            )
            self._open[name] = log
        if self._keeper is not None:
            self._keeper.watch(chosen.fsync.seconds)
        return log

    def close(self) -> None:
        """Close every log; closing twice is fine."""
        with self._opening:
            self._closed = True
            logs = list(self._open.values())
        if self._keeper is not None:
            self._keeper.stop()
        for log in logs:
            log.close()

    def _each_log(self) -> list[RedexFile]:
        with self._opening:
            return [log for log in self._open.values() if not log.closed]
