"""The end of a log that is being written: its hot files, the one open handle, and what is on the disk.

Three locks exist in a log, taken in this order and never held across another's wait:

    upkeep    (log/log.py) seal, compact, expire: one at a time, none of them in the way of an append
    syncing   one fsync at a time; who waits for it usually finds its own events already synced (group commit)
    lock      the hot files and the manifest in force; held for one write

A write is all or nothing: when the disk refuses, the file is cut back and no sequence is used up. When a sync fails, or a
cut does, nothing more is accepted until the log is opened again, because only reading the disk tells what is there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.logmanifest import Manifest
from meshbus.log.embedded.recovery import create_hot, recover
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.files import Files, log_error, translated
from meshbus.log.folder import HOT, LOCK
from meshbus.names.channel import ChannelName

_FIRST_RESERVE = 1 << 20
"""Bytes of a hot file from which on room is reserved for what follows: small logs stay small."""
_MOST_RESERVE = 16 << 20
"""Bytes reserved ahead at most, twice."""


class LogStats(msgspec.Struct):
    """What a log has done since it was opened."""

    appended: int = 0
    """Events."""
    appended_bytes: int = 0
    """Bytes written for them."""
    refused: int = 0
    """Appends that the disk refused; none of them took a sequence."""
    syncs: int = 0
    seals: int = 0
    compactions: int = 0
    expired: int = 0
    """Events."""
    upkeep_failures: int = 0
    """Times that sealing, compacting or expiring failed in the background, to be tried again."""


class Writer:
    """Append blocks to the folder of one log, which nobody else may write meanwhile."""

    def __init__(self, files: Files, folder: Path, channel: ChannelName, clock: Callable[[], int]) -> None:
        """Lock the folder and recover what is in it; raises LogError when that cannot be done."""
        self.files, self.folder, self.channel = files, folder, channel
        self.closed = False
        self.stats = LogStats()
        self.grown: list[Callable[[], None]] = []
        """Called after every write and at close."""
        self._clock = clock
        self._syncing, self._lock = threading.Lock(), threading.Lock()
        self._more = threading.Condition(self._lock)
        self._waiting = 0
        """Threads in `wait_beyond`."""
        self._reserve_at = _FIRST_RESERVE
        """Size of the hot file at which room is reserved again."""
        self._debts: list[int] = []
        """Handles of files that are no longer written and not yet synced."""
        with translated(folder, "cannot open"):
            files.make_folder(folder)
            self._lock_handle = self._take_lock()
            try:
                self.manifest, self.hot, self.report = recover(files, folder, channel, clock())
                self._handle = self._open_last()
            except BaseException:
                files.close(self._lock_handle)
                raise
        self.problem: LogError | None = None
        """Why nothing can be appended any more."""
        self.durable = self.hot[-1].end
        self.synced_ns = clock()

    @property
    def end(self) -> int:
        """The sequence of the next event."""
        return self.hot[-1].end

    def write(
        self, pack: Callable[[int, int], Sequence[bytes | memoryview]], count: int, now_ns: int, seal_bytes: int
    ) -> int:
        """Write one block and give its first sequence; `pack` is told that and the durable sequence."""  # hot
        with self._lock:
            self.check_open()
            if self.hot[-1].size >= seal_bytes:
                self._begin_file(now_ns)
            last = self.hot[-1]
            if last.size >= self._reserve_at:
                self._reserve(last.size, seal_bytes)
            first = last.end
            try:
                size = self.files.write(self._handle, pack(first, self.durable), last.size) - last.size
            except OSError as error:
                raise self._refused(error, last) from error
            last.add(size, count, now_ns)
            self.stats.appended += count
            self.stats.appended_bytes += size
            if self._waiting:
                self._more.notify_all()
        if self.grown:
            self._tell()
        return first

    def roll(self, now_ns: int, due: Callable[[HotIndex], bool]) -> None:
        """Begin a new hot file if the last one holds something and is due; it then waits for its sync and its seal."""
        with self._lock:
            self.check_open()
            last = self.hot[-1]
            if last.end > last.header.first and due(last):
                self._begin_file(now_ns)

    def sync(self) -> None:
        """Wait until everything written so far is on the disk."""
        wanted = self.end
        with self._syncing:
            if self.durable >= wanted and not self._debts:
                return  # another thread's sync covered it
            with self._lock:
                self.check_open()
            self._sync_files()

    def adopt(self, manifest: Manifest) -> None:
        """Put a stored manifest in force, and remove the hot files that it made superfluous."""
        with self._lock:
            self.manifest = manifest
            stale = [hot for hot in self.hot[:-1] if hot.header.first < manifest.hot_from]
            self.hot = self.hot[len(stale) :]
        for hot in stale:
            self.files.remove(hot.path)

    def snapshot(self) -> Snapshot:
        """Give the log as it is now."""
        with self._lock:
            return Snapshot(self.folder, self.manifest, tuple(hot.view() for hot in self.hot), self.snapshot)

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an event at a sequence; False when the time is up or the log was closed."""
        with self._more:
            self._waiting += 1
            try:
                self._more.wait_for(lambda: self.closed or self.end > seq, timeout_s)
            finally:
                self._waiting -= 1
            return self.end > seq

    def check_open(self) -> None:
        """Raise LogError when nothing can be appended any more."""
        if self.closed:
            raise LogError(LogFault.CLOSED, f"the log of {self.channel} is closed: open it again")
        if self.problem is not None:
            raise self.problem

    def close(self) -> None:
        """Sync, wake who waits, and let the next writer in; closing twice is fine."""
        with self._syncing:  # whose turn it is to sync has its handle until then
            with self._more:
                if self.closed:
                    return
                self.closed = True
                self._more.notify_all()
            try:
                if self.problem is None and (self.durable < self.end or self._debts):
                    self._sync_files()
            finally:
                self._release()
                for handle in (*self._debts, self._handle, self._lock_handle):
                    self.files.close(handle)
                self._debts.clear()
        self._tell()

    def _sync_files(self) -> None:
        """Sync what is written, the oldest file first, so that what survives is always a prefix."""
        with self._lock:
            end, handle, debts = self.end, self._handle, tuple(self._debts)
        try:
            for debt in debts:
                self.files.fsync(debt)
            if debts:
                self.files.fsync_folder(self.folder / HOT)
            self.files.fsync(handle)
        except OSError as error:
            self.problem = log_error(error, self.folder, "cannot sync")
            raise self.problem from error
        with self._lock:
            self.durable = max(self.durable, end)
            self._debts = self._debts[len(debts) :]
        for debt in debts:
            self.files.close(debt)
        self.stats.syncs += 1
        self.synced_ns = self._clock()

    def _take_lock(self) -> int:
        try:
            return self.files.lock(self.folder / LOCK)
        except BlockingIOError:
            raise LogError(
                LogFault.LOCKED,
                f"{self.folder} is being written by another process, or twice by this one:"
                " read it with LogReader, or stop the other writer",
            ) from None

    def _open_last(self) -> int:
        """Go on with the last hot file, or begin one."""
        if self.hot:
            handle = self.files.reopen(self.hot[-1].path)
            self.files.truncate(handle, self.hot[-1].size)  # and with it what a writer reserved that was killed
            return handle
        index, handle = create_hot(self.files, self.folder, self.manifest, self.manifest.hot_from, self._clock())
        self.files.fsync(handle)
        self.files.fsync_folder(self.folder / HOT)
        self.hot.append(index)
        return handle

    def _begin_file(self, now_ns: int) -> None:
        try:
            index, handle = create_hot(self.files, self.folder, self.manifest, self.end, now_ns)
        except OSError as error:
            self.stats.refused += 1
            raise log_error(error, self.folder, "cannot append to") from error
        self._release()
        self._debts.append(self._handle)
        self.hot, self._handle = [*self.hot, index], handle

    def _reserve(self, size: int, seal_bytes: int) -> None:
        """Have the system set room aside for as much again as the hot file holds: writes into it are a tenth cheaper."""
        step = min(size, _MOST_RESERVE)
        taken = self.files.reserve(self._handle, size, max(min(2 * step, seal_bytes - size), step))
        self._reserve_at = size + step if taken else sys.maxsize  # not on this disk

    def _release(self) -> None:
        """Give back the room that the last hot file will not need."""
        if self._reserve_at != _FIRST_RESERVE:
            with suppress(OSError):  # it is room on the disk, no content: the seal gives it back as well
                self.files.truncate(self._handle, self.hot[-1].size)
            self._reserve_at = _FIRST_RESERVE

    def _refused(self, error: OSError, last: HotIndex) -> LogError:
        """Take back what the disk took of a block before it refused the rest, and say why it did."""
        self.stats.refused += 1
        failure = log_error(error, last.path, "cannot append to")
        try:
            self.files.truncate(self._handle, last.size)
        except OSError:
            self.problem = failure  # half a block stays behind: only opening again cuts it
        return failure

    def _tell(self) -> None:
        for told in tuple(self.grown):
            told()
