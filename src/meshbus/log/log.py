"""RedEX: one durable, ordered log per channel.

    with Redex(path) as redex:
        log = redex.open("sensors/lidar", fsync=every_n(1))
        seq = log.append(b"...")
        for event in log.read_range(0, 10): ...

A log has one writer, in one process, which a lock ensures; any number of threads may use it, and any number of other
processes may read it (log/reader.py). A backend stores the events (log/backend.py); here arguments are checked and the
durability policy is applied.

docs/guide/durability.md says which operations block and for how long. The asynchronous version is log/aio.py.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.backend import DEFAULT, Backend, OpenOptions, Snapshot, find_backend
from meshbus.log.columns import MAX_APPEND_BYTES, OFFSET_BYTES, Columns, Defaults, Events, pack_events
from meshbus.log.durability import Fsync, LogConfig, Retention
from meshbus.log.event import LogEvent
from meshbus.log.files import Files
from meshbus.log.keeper import Keeper
from meshbus.log.status import Finding, LogStats, Report
from meshbus.log.tail import Tail
from meshbus.names.channel import ChannelName

_PAIR = struct.Struct("<ii")
_MOVER_S = 5.0
"""How long closing waits for a transfer to object storage that is under way."""
_log = logging.getLogger("meshbus.log")


class RedexFile:
    """The log of one channel, open for appending; returned by `Redex.open`."""

    def __init__(self, options: OpenOptions, backend: Backend) -> None:
        self.channel, self.config = options.channel, options.config
        self._clock, self._defaults = options.clock, options.defaults
        self._backend = backend
        self._syncs = options.config.fsync.events is not None
        """Whether an append may have to wait for the disk."""
        if not self.report.clean:
            _log.warning("log of %s: recovered, %s", self.channel, msgspec.to_builtins(self.report))

    def __repr__(self) -> str:
        return f"<RedexFile {self.channel} [{self.first_seq}, {self.next_seq})>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_backend") and not self.closed:
            warnings.warn(f"the log of {self.channel} was never closed", ResourceWarning, stacklevel=2)

    @property
    def log_id(self) -> bytes:
        """16 bytes, drawn when the log was created; (log_id, seq) identifies a row forever."""
        return self._backend.log_id

    @property
    def report(self) -> Report:
        """What opening the log found and repaired."""
        return self._backend.report

    @property
    def first_seq(self) -> int:
        """The first sequence that has not expired."""
        return self._backend.first

    @property
    def next_seq(self) -> int:
        """The sequence of the next event."""
        return self._backend.end

    @property
    def durable_seq(self) -> int:
        """Every event below this sequence is on the disk."""
        return self._backend.durable

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._backend.closed

    @property
    def stats(self) -> LogStats:
        """Counts since the log was opened."""
        return copy(self._backend.stats)

    # ── append ──────────────────────────────────────────────────────────────────────────────

    def append(self, payload: bytes | memoryview, **columns: Unpack[Columns]) -> int:
        """Append one event and return its sequence, once it is as durable as the policy requires.

        Raises LogError if the disk refuses; then nothing was appended and no sequence is used.
        """
        seq = self.write(payload, **columns)
        if self._syncs:
            self.commit()
        return seq

    def append_batch(self, events: Events, **columns: Unpack[Columns]) -> range:
        """Append events, all or none, and return their sequences, once they are as durable as the policy requires.

        `events` is a list of bytes, (offsets, data) as numpy arrays, or an Arrow array of binary; each of `columns` is
        one value for all events or an array with one per event.
        """
        seqs = self.write_batch(events, **columns)
        self.commit()
        return seqs

    def write(self, payload: bytes | memoryview, **columns: Unpack[Columns]) -> int:
        """Append one event without the sync that the policy may require; call `commit` for that."""
        size = len(payload)
        if size > MAX_APPEND_BYTES:
            raise LogError(LogFault.TOO_LARGE, f"an event of {size} bytes is too large, at most {MAX_APPEND_BYTES} fit")
        # Rare for a single event, so the fast path below has only the defaults.
        if columns:
            return self.write_batch([bytes(payload)], **columns).start
        return self._backend.append(1, _PAIR.pack(0, size), payload, None, self._clock())

    def write_batch(self, events: Events, **columns: Unpack[Columns]) -> range:
        """Append events, all or none, without the sync that the policy may require; call `commit` for that."""
        offsets, data = pack_events(events)
        count = len(offsets) // OFFSET_BYTES - 1
        now = self._clock()
        # Checked before anything is stored: a bad column appends nothing.
        given = self._defaults.cells(columns, count, now) if columns else None
        first = self._backend.append(count, offsets, data, given, now)
        return range(first, first + count)

    @property
    def failed(self) -> bool:
        """Whether nothing can be appended until the log is closed and opened again, because a disk failed."""
        return self._backend.failed

    @property
    def owes_sync(self) -> bool:
        """Whether the policy requires a sync before the events written so far count as appended."""
        limit = self.config.fsync.events
        return limit is not None and self.next_seq - self.durable_seq >= limit

    def commit(self) -> None:
        """Sync if the policy requires it now."""
        if self.owes_sync:
            self.sync()

    def sync(self) -> None:
        """Wait until everything appended so far is on the disk."""
        self._backend.sync()

    # ── read ────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> Snapshot:
        """Return the log as it is now; it stays readable while the log changes, and after `close`."""
        return self._backend.snapshot()

    def read_range(self, start: int, stop: int) -> Iterator[LogEvent]:
        """Yield the events from `start` to `stop` (excluded).

        Raises LogError `range_gone`, with the first available sequence, if the start has expired.
        """
        return self.snapshot().events(start, stop)

    def read_batches(
        self, start: int | None = None, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """Yield a range as `pyarrow.RecordBatch`es with the given columns; everything by default."""
        return self.snapshot().batches(start, stop, columns)

    def tail(self, since: int | None = None) -> Tail:
        """Follow the log from a sequence: stored events, then new ones, without gaps or duplicates.

        Starts at the first available sequence by default. Iterating waits for new events and ends with `close`.
        """
        return Tail(self, self.first_seq if since is None else since)

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an event at a sequence; return False on timeout or if the log was closed first."""
        return self._backend.wait_beyond(seq, timeout_s)

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every append, in the appending thread, and at close; return a function that stops this."""
        return self._backend.listen(callback)

    def verify(self) -> list[Finding]:
        """Read everything, check it, and return the problems; empty if there are none."""
        return self._backend.verify()

    # ── upkeep ──────────────────────────────────────────────────────────────────────────────

    def seal(self) -> int:
        """Write everything appended so far as Parquet and return the number of events sealed."""
        return self._backend.seal()

    def compact(self) -> int:
        """Merge small neighboring segments and return how many were merged."""
        return self._backend.compact()

    def expire(self) -> int:
        """Apply the retention limits now and return the number of events that expired."""
        return self._backend.retain()

    def tier(self) -> int:
        """Move all segments that are due to object storage now and return how many were copied.

        Blocks until they are copied, verified and removed from the disk. Raises LogError `unreachable` if storage does
        not answer or refuses.
        """
        return self._backend.tier()

    @property
    def tiers(self) -> bool:
        """Whether segments move to object storage, or have moved there."""
        return self._backend.tiers

    def keep(self) -> None:
        """Do the maintenance that is due: sync by interval, seal by size and age, expire, compact.

        The background thread calls this. Failures are counted, logged and retried; nothing is raised.
        """
        self._backend.keep()

    def keep_tier(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Move the next segments that are due to object storage, unless a pause after a failure is not over.

        A background thread of its own calls this, because it may take long; it returns soon after `cancelled` returns
        True. Failures are counted, logged and retried; nothing is raised.
        """
        self._backend.keep_tier(cancelled)

    def close(self) -> None:
        """Sync, end the tails and release the lock; does nothing if already closed."""
        self._backend.close()


class Redex:
    """The logs below one folder. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        path: Path | str,
        *,
        recorder: int = 0,
        backend: str = DEFAULT,
        files: Files | None = None,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        background: bool = True,
    ) -> None:
        """Choose the folder; it is created when the first log is opened.

        `recorder` is the node id that rows carry, `backend` a name in log/backend.py. `files`, `clock` (nanoseconds
        since 1970), `monotonic` (seconds, for durations) and `background=False` are for tests: without the background
        thread, call `keep` yourself.
        """
        self.path = Path(path)
        self._recorder, self._clock, self._monotonic = recorder, clock, monotonic
        self._factory = find_backend(backend)
        self._files = files or Files()
        self._open: dict[ChannelName, RedexFile] = {}
        self._opening = threading.Lock()
        self._stopping = threading.Event()
        self._keeper = Keeper(lambda: [log.keep for log in self._each_log()]) if background else None
        self._mover = Keeper(self._each_move, "meshbus-log-mover") if background else None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def exists(self, channel: str) -> bool:
        """Return whether a channel has a log here, open or not."""
        return self._factory.exists(self.path, ChannelName(channel))

    def open(
        self,
        channel: str,
        config: LogConfig | None = None,
        *,
        fsync: Fsync | None = None,
        retention: Retention | None = None,
        origin: int = 0,
    ) -> RedexFile:
        """Open the log of a channel for appending, and create it if there is none.

        `fsync` and `retention` override those of `config`. `origin` is the origin hash of rows for which an append
        gives none. Opening an open channel again, with the same settings or without any, returns the same object.
        Raises LogError if the folder cannot be used, if another process appends to the log, or if durable events are
        damaged.
        """
        name = ChannelName(channel)
        chosen = config or LogConfig()
        if fsync is not None:
            chosen = msgspec.structs.replace(chosen, fsync=fsync)
        if retention is not None:
            chosen = msgspec.structs.replace(chosen, retention=retention)
        with self._opening:
            if self._closed:
                raise LogError(LogFault.CLOSED, f"the logs in {self.path} are closed; create a new Redex")
            log = self._open.get(name)
            if log is not None and not log.closed:
                # Two callers with different guarantees cannot share one log silently.
                if log.config != chosen and not (config is None and fsync is None and retention is None):
                    raise ConfigError("config", f"the log of {name} is open with other settings; close it first")
                return log
            defaults = Defaults(recorder=self._recorder, origin=origin)
            options = OpenOptions(name, chosen, defaults, self._clock, self._files, self._monotonic)
            if self._keeper is not None:
                options = msgspec.structs.replace(options, due=self._keeper.wake)
            log = RedexFile(options, self._factory.open(self.path, options))
            self._open = {channel: known for channel, known in self._open.items() if not known.closed}
            self._open[name] = log
        if self._keeper is not None:
            self._keeper.watch(chosen.fsync.seconds)
        if self._mover is not None and log.tiers:
            self._mover.watch(None)
        return log

    def close(self) -> None:
        """Close every log; does nothing if already closed."""
        with self._opening:
            self._closed = True
            logs = list(self._open.values())
        self._stopping.set()
        if self._keeper is not None:
            # First the thread, so that it does not use a log that is being closed.
            self._keeper.stop()
        if self._mover is not None:
            # A request that storage does not answer ends by itself later, and then finds the log closed.
            self._mover.stop(_MOVER_S)
        for log in logs:
            log.close()

    def _each_move(self) -> list[Callable[[], None]]:
        return [partial(log.keep_tier, self._stopping.is_set) for log in self._each_log()]

    def _each_log(self) -> list[RedexFile]:
        with self._opening:
            return [log for log in self._open.values() if not log.closed]
