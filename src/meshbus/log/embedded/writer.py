"""The end of a log that is being appended to: its hot files, the open handle of the last one, and what is synced.

A log has three locks, always taken in this order; `lock` is never held during an fsync:

    upkeep    (embedded/log.py) seal, compact, retain: one at a time; none of them blocks an append
    syncing   one fsync at a time; a thread that waited for it usually finds its events already synced (group commit)
    lock      the hot files and the current manifest; held for one write

A write is all or nothing: if the disk refuses it, the file is cut back and no sequence is used. If a sync or that cut
fails, nothing more is accepted until the log is opened again, because only reading the disk tells what it holds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from meshbus.errors import LogError, LogFault
from meshbus.log.columns import number
from meshbus.log.embedded.block import pack_block, pack_cells
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.logmanifest import Manifest
from meshbus.log.embedded.marks import Point, end_of
from meshbus.log.embedded.plain import PlainForm
from meshbus.log.embedded.recovery import Recovered, create_hot, recover
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.files import is_full, log_error, no_handles, translated
from meshbus.log.folder import HOT, LOCK, aside
from meshbus.log.status import LogStats

if TYPE_CHECKING:
    from meshbus.log.backend import Given, OpenOptions

Block: TypeAlias = Sequence[bytes | memoryview]
"""The buffers of a block, one after the other."""

_NS = 1_000_000_000
_ONE_BYTES = 8_192
"""Largest single event whose block is joined into one buffer; measured, above it the copy costs more than it saves."""
_FIRST_RESERVE = 1 << 20
"""Size from which disk space is reserved ahead of the end of a hot file; smaller logs stay small."""
_MOST_RESERVE = 16 << 20
"""Most bytes by which a reservation grows: at most twice as many are reserved and not yet used."""


class Debt(NamedTuple):
    """A hot file that is no longer appended to and not yet synced."""

    end: int
    """One past its last sequence."""
    handle: int


class Written(NamedTuple):
    """What a sync covers."""

    writes: int
    end: int
    point: Point


class Writer:
    """Appends blocks to the folder of one log, as its only writer."""

    def __init__(self, folder: Path, options: OpenOptions) -> None:
        """Lock the folder and recover its contents; raises LogError if that fails."""
        files, channel, clock = options.files, options.channel, options.clock
        self.files, self.folder, self.channel = files, folder, channel
        self.closed = False
        self.stats = LogStats()
        self.grown: list[Callable[[], None]] = []
        """Callbacks after every write and at close."""
        self._clock, self._monotonic, self._seal_bytes = clock, options.monotonic, options.config.file_bytes
        self._plain, self._due = PlainForm(options.defaults), options.due
        self._syncing, self._lock = threading.Lock(), threading.Lock()
        self._more = threading.Condition(self._lock)
        self._waiting = 0
        """Number of threads in `wait_beyond`."""
        self._reserve_at = _FIRST_RESERVE
        """Size of the hot file at which space is reserved again."""
        self._debts: list[Debt] = []
        """Hot files that are no longer appended to and not yet synced."""
        self._begun = self._named = 0
        """Hot files begun since opening, and how many of their names are synced."""
        self.durable = 0
        self._writes = self._synced_writes = 0
        """Changes of hot files since opening, and how many of them are synced."""
        with translated(folder, "cannot open"):
            files.make_folder(folder)
            self._lock_handle = self._take_lock()
            try:
                self.manifest, self.hot, self.report = self._recover(clock())
                self._handle = self._open_last()
            except BaseException:
                files.close(self._lock_handle)
                raise
        self._sync_failed = False
        self.problem: LogError | None = None
        """The error that ended appending, if one did."""
        age_ns = max(clock() - self.hot[-1].header.created_ns, 0)
        self.begun_at = options.monotonic() - age_ns / _NS
        """When the file that is being appended to was begun, by the monotonic clock."""
        self.full = False
        """Whether the disk had no room for the last append."""
        self.durable = self.hot[-1].end
        self.synced_at = options.monotonic()

    @property
    def end(self) -> int:
        """The sequence of the next event."""
        return self.hot[-1].end

    @property
    def first(self) -> int:
        """The first sequence that is part of the log."""
        return self.manifest.first

    @property
    def shown(self) -> int:
        """Readers see the events below this sequence."""
        return self.end

    @property
    def complete(self) -> list[HotIndex]:
        """The hot files that are no longer appended to, and may be sealed or expire."""
        return self.hot[:-1]

    @property
    def floor(self) -> int:
        """Everything below this sequence is to expire, whatever the limits allow."""
        return self.manifest.first

    def described(self) -> Manifest:
        """Return the manifest for a segment to be added to."""
        return self.manifest

    def append(
        self, count: int, offsets: bytes | memoryview, data: bytes | memoryview, given: Given | None, now_ns: int
    ) -> int:
        """Write one block and return the sequence of its first event; see `Backend.append`."""  # hot
        with self._lock:
            if self.closed or self.problem is not None:
                self.check_open()
            if not count:
                return self.end
            last = self.hot[-1]
            if last.size >= self._seal_bytes or last.size >= self._reserve_at:
                last = self._make_room(now_ns)
            first = last.end
            if count == 1 and given is None and len(data) <= _ONE_BYTES:
                block: Block = (self._plain.pack_one(first, data, last.key, now_ns, self.durable),)
            else:
                block = self._pack(last, count, offsets, data, given, now_ns)
            size = self._put(block)
            # Visible to snapshots from here on: the block is with the operating system.
            last.add(size, count, now_ns)
            stats = self.stats
            stats.appended += count
            stats.appended_bytes += size
            self.full = False
            if self._waiting:
                self._more.notify_all()
        if self.grown:
            self._tell()
        return first

    def roll(self, now_ns: int, due: Callable[[HotIndex], bool]) -> None:
        """Begin a new hot file if the last one holds events and is due; the old one is then synced and sealed later."""
        with self._lock:
            self.check_open()
            last = self.hot[-1]
            if last.end > last.header.first and due(last):
                self._begin_file(now_ns)

    def sync(self) -> None:
        """Wait until everything written so far is on the disk; raises LogError if the disk refuses."""
        # Read before waiting for the lock: a sync that starts later covers it.
        wanted = self._writes
        with self._syncing:
            if self._synced_writes >= wanted:
                return  # another thread's sync covered it
            with self._lock:
                self.check_open()
            self._sync_files()

    def adopt(self, manifest: Manifest) -> None:
        """Use a manifest that was stored, and remove the hot files that it supersedes."""
        with self._syncing:  # a sync that is under way keeps its handles until it is done
            with self._lock:
                # Both under one lock, so that a snapshot never sees a row twice or not at all.
                self.manifest = manifest
                stale = [hot for hot in self.hot[:-1] if hot.header.first < manifest.hot_from]
                self.hot = self.hot[len(stale) :]
                # What is sealed, or has expired, is on the disk by the manifest; the hot file need not be.
                self.durable = max(self.durable, manifest.hot_from)
                paid = [debt for debt in self._debts if debt.end <= manifest.hot_from]
                self._debts = [debt for debt in self._debts if debt.end > manifest.hot_from]
            for debt in paid:
                self.files.close(debt.handle)
        # Snapshots that still need these files continue in the segment (embedded/snapshot.py).
        for hot in stale:
            self.files.remove(hot.path)

    def snapshot(self) -> Snapshot:
        """Return the log as it is now."""
        with self._lock:
            return Snapshot(self.folder, self.manifest, tuple(hot.view() for hot in self.hot), self.snapshot)

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an event at a sequence; return False on timeout or if the log was closed first."""
        with self._more:
            self._waiting += 1
            try:
                self._more.wait_for(lambda: self.closed or self.shown > seq, timeout_s)
            finally:
                self._waiting -= 1
            return self.shown > seq

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every write, in the writing thread, and at close; return a function that stops this."""
        self.grown.append(callback)

        def stop() -> None:
            # `stop` may be called twice.
            if callback in self.grown:
                self.grown.remove(callback)

        return stop

    def check_open(self) -> None:
        """Raise LogError if nothing can be appended any more."""
        if self.closed:
            raise LogError(LogFault.CLOSED, f"the log of {self.channel} is closed; open it again")
        if self.problem is not None:
            raise self.problem

    def close(self) -> None:
        """Sync, wake waiting threads and release the lock; does nothing if already closed."""
        with self._syncing:  # a sync that is under way keeps its handle until it is done
            with self._more:
                if self.closed:
                    return
                self.closed = True
                self._more.notify_all()
            try:
                if self._sync_failed:
                    self._write_again()
                elif self.problem is None and self._synced_writes < self._writes:
                    self._sync_files()
            finally:
                self._release()
                for handle in (*(debt.handle for debt in self._debts), self._handle, self._lock_handle):
                    self.files.close(handle)
                self._debts.clear()
        self._tell()

    def _write_again(self) -> None:
        """Write the hot files that could not be synced once more, into new files, so that the log can be opened again.

        After a failed fsync the pages in memory count as written: another fsync of the same file would succeed.
        """
        with suppress(OSError):  # the disk still fails; what is there stays
            for index in self.hot:
                if index.end > self.durable:
                    content = index.path.read_bytes()[: index.size]
                    self.files.write_aside(index.path, aside(self.folder / index.path.name), [content])

    def _pack(
        self,
        last: HotIndex,
        count: int,
        offsets: bytes | memoryview,
        data: bytes | memoryview,
        given: Given | None,
        now_ns: int,
    ) -> Block:
        first, key = last.end, last.key  # a file of an older version is continued in that version
        # Most appends give no columns; their form is prepared (log/embedded/plain.py).
        form = self._plain.pack(first, now_ns) if given is None else pack_cells(number(given[0], first), given[1])
        return pack_block(first, count, form, offsets, data, key=key, written_ns=now_ns, durable=self.durable)

    def _sync_files(self) -> None:
        """Sync what is written, the oldest file first, so that a crash always leaves a prefix."""
        with self._lock:
            written, handle, debts, begun = self._written(), self._handle, tuple(self._debts), self._begun
        try:
            for debt in debts:
                self.files.fsync(debt.handle)
            if self._named < begun:
                self.files.fsync_folder(self.folder / HOT)
            self.files.fsync(handle)
        except OSError as error:
            failure = log_error(error, self.folder, "cannot sync")
            if not no_handles(error):
                # After a failed fsync the kernel may have dropped the pages and report success the next time.
                self.problem, self._sync_failed = failure, True
            raise failure from error
        with self._lock:
            # Only what was written before the sync began; appends continue meanwhile.
            self._settle(written)
            self._debts, self._named = self._debts[len(debts) :], begun
        for debt in debts:
            self.files.close(debt.handle)
        self.stats.syncs += 1
        self.synced_at = self._monotonic()

    def _take_lock(self) -> int:
        try:
            return self.files.lock(self.folder / LOCK)
        except BlockingIOError:
            raise LogError(
                LogFault.LOCKED,
                f"{self.folder} is being written by another process, or twice by this one;"
                " read it with LogReader, or stop the other writer",
            ) from None

    def _open_last(self) -> int:
        """Open the last hot file, or begin the first."""
        if self.hot:
            handle = self.files.reopen(self.hot[-1].path)
            self.files.truncate(handle, self.hot[-1].size)  # also frees the space that a killed writer had reserved
            return handle
        index, handle = self._create(self.manifest.hot_from, self._clock())
        self.files.fsync(handle)
        self.files.fsync_folder(self.folder / HOT)
        self.hot.append(index)
        return handle

    def _recover(self, now_ns: int) -> Recovered:
        return recover(self.files, self.folder, self.channel, now_ns)

    def _create(self, first: int, now_ns: int) -> tuple[HotIndex, int]:
        return create_hot(self.files, self.folder, self.manifest, first, now_ns)

    def _make_room(self, now_ns: int) -> HotIndex:
        """Begin a new hot file if the last one is full, reserve space if it is time to, and return the last one."""
        last = self.hot[-1]
        if last.size >= self._seal_bytes and last.end > last.header.first:  # a file without events is never full
            self._begin_file(now_ns)
            last = self.hot[-1]
        if last.size >= self._reserve_at:
            self._reserve(last.size)
        return last

    def _begin_file(self, now_ns: int) -> None:
        try:
            index, handle = self._create(self.end, now_ns)
        except OSError as error:
            self.stats.refused += 1
            self.full = is_full(error)
            raise log_error(error, self.folder, "cannot append to") from error
        self._go_on_in(index, handle, self.hot)

    def _go_on_in(self, index: HotIndex, handle: int, kept: list[HotIndex]) -> None:
        """Append to another hot file from now on, after those that are kept."""
        self._release()
        # Synced by the next sync, oldest first, unless it is sealed before.
        self._debts.append(Debt(self.end, self._handle))
        self._begun += 1
        self._writes += 1
        self.hot, self._handle = [*kept, index], handle
        self.begun_at = self._monotonic()
        self._due()  # a complete file can be sealed

    def _put(self, parts: Block) -> int:
        """Write at the end of the last hot file, all or nothing, and return the number of bytes."""  # hot
        last = self.hot[-1]
        try:
            size = self.files.write(self._handle, parts, last.size) - last.size
        except OSError as error:
            raise self._refused(error, last) from error
        self._writes += 1
        return size

    def _written(self) -> Written:
        return Written(self._writes, self.end, end_of(self.hot))

    def _settle(self, written: Written) -> None:
        """Take note of what is synced; the caller holds the lock."""
        self.durable, self._synced_writes = max(self.durable, written.end), written.writes

    def _reserve(self, size: int) -> None:
        """Reserve as much disk space as the hot file has already: writes into reserved space are a tenth cheaper."""
        step = min(size, _MOST_RESERVE)
        taken = self.files.reserve(self._handle, size, max(min(2 * step, self._seal_bytes - size), step))
        self._reserve_at = size + step if taken else sys.maxsize  # this file system cannot reserve

    def _release(self) -> None:
        """Free the space that was reserved for the last hot file and not used."""
        if self._reserve_at != _FIRST_RESERVE:
            with suppress(OSError):  # only space, no content: sealing frees it too
                self.files.truncate(self._handle, self.hot[-1].size)
            self._reserve_at = _FIRST_RESERVE

    def _refused(self, error: OSError, last: HotIndex) -> LogError:
        """Cut the part of a block that was written before the disk refused the rest; return the error."""
        self.stats.refused += 1
        self.full = is_full(error)
        if self.full:
            self._release()  # room for the manifest of what is about to expire
        failure = log_error(error, last.path, "cannot append to")
        try:
            self.files.truncate(self._handle, last.size)
        except OSError:
            self.problem = failure  # part of a block remains; recovery cuts it when the log is opened again
        return failure

    def _tell(self) -> None:
        for callback in tuple(self.grown):
            callback()
