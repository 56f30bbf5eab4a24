"""The files of one recorder: append rows to a hot file, seal hot files as Parquet, and remove what has expired.

    <log_dir>/_packets/<node id, 16 hex digits>/
    ├── 00000000000000000000-00000000000000240000.parquet    sealed: first and one past the last row
    ├── _hot/00000000000000240000.hot                        the hot tail, in blocks; named by its first row
    ├── _policies/0000000001.json                            the policies of the verdicts (log/packets/policies.py)
    └── _lock                                                held by the one writer

There is no manifest, because the rename of a sealed file alone decides: a hot file whose first row is in a sealed file is
stale. Rows are numbered; numbers may be missing, but none is used twice. Each opening begins a new hot file, because the
sampling may have changed. Not thread-safe: the recorder's lock protects it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.arrow import has_arrow
from meshbus.log.durability import Retention
from meshbus.log.files import Files, translated
from meshbus.log.folder import HOT, LOCK, aside, hot_files, hot_name, is_aside, segment_name, segment_range
from meshbus.log.packets.block import Content, UnknownFile, pack_block, pack_file_header
from meshbus.log.packets.hotfile import read_hot
from meshbus.log.packets.packed import Packed, hashes_in
from meshbus.log.packets.parquet import ParquetFile
from meshbus.log.packets.policies import POLICIES
from meshbus.log.packets.runs import Piece, RecordInfo
from meshbus.log.retention import Unit, expired_until

RECORDERS = "_packets"
"""The folder of all recorders below a log folder."""
GROUP_ROWS = 65_536
"""Rows of each row group of a sealed file but the last; readers rely on it."""
SEAL_ROWS = 4 * GROUP_ROWS
"""Most rows in a hot file: a reader of the tail parses all of it."""
SEAL_BYTES = 32 << 20
"""Most bytes in a hot file."""
SEAL_AGE_S = 300.0
"""A hot file is sealed at this age, however small it is."""
LEAST_BYTES = 16 << 20
"""Smallest allowed limit: eight hot files, each with space for one block."""
_PARTS = 8
"""A hot file takes at most one part in this many of the limit."""
_SEAL_PARTS = 2
"""Parts that are kept free for the output of a seal, which can be half as large again as the hot file."""
_NS = 1_000_000_000


def folder_of(log_dir: Path, recorder: int) -> Path:
    """Return the folder of a recorder."""
    return log_dir / RECORDERS / f"{recorder:016x}"


class Bounds(msgspec.Struct, frozen=True):
    """How much is kept; a file is removed as soon as one of the limits requires it."""

    max_bytes: int = 1 << 30
    """Size on the disk, hot files and the output of a running seal included."""
    max_age_s: float = 7 * 86_400.0
    """Age since a file was sealed."""

    def __post_init__(self) -> None:
        if self.max_bytes < LEAST_BYTES:
            raise ConfigError("record_max_bytes", f"must be at least {LEAST_BYTES}, got {self.max_bytes}")


class _Hot(msgspec.Struct):
    """A hot file and its writer's view of it."""

    path: Path
    first: int
    end: int
    size: int
    written_ns: int


class PacketStore:
    """Writes the files of one recorder, as their only writer."""

    def __init__(
        self,
        folder: Path,
        info: RecordInfo,
        bounds: Bounds,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        files: Files | None = None,
    ) -> None:
        """Lock the folder and repair what a crash left; raises LogError if that fails."""
        self.folder = folder
        self.cut_bytes = 0
        """Bytes of torn tails that were cut at opening."""
        self.expired = 0
        """Rows that expired since opening."""
        self.damaged = 0
        """Rows that could not be read back when their hot file was sealed."""
        self.files = Files() if files is None else files
        self._info, self._bounds, self._clock, self._monotonic = info, bounds, clock, monotonic
        # With a small limit, hot files are smaller too, so that expiring one does not remove most of the record.
        self._seal_bytes = min(SEAL_BYTES, bounds.max_bytes // _PARTS)
        self._room = bounds.max_bytes - _SEAL_PARTS * self._seal_bytes
        self._closed = False
        with translated(folder, "cannot open"):
            for name in (HOT, POLICIES):
                self.files.make_folder(folder / name)
            self._lock = self._take_lock()
            try:
                # The first opening creates several levels, and each name is durable only after its parent is synced.
                for place in (folder, *folder.parents[:3]):
                    self.files.fsync_folder(place)
                self._sealed = self._find_sealed()
                self._waiting = self._recover()
                self._handle, self._hot = self._begin(self._end_of_all())
            except BaseException:
                self.files.close(self._lock)
                raise
        self._kept = sum(unit.bytes for _, unit in self._sealed) + sum(hot.size for hot in self._waiting)
        """Size of all files except the one being appended to; too high by files discarded since `_expire` computed it."""
        self._named: set[int] = set()
        """Hashes whose channel names are in the hot file already."""
        self._synced = True

    @property
    def end(self) -> int:
        """The number of the next row."""
        return self._hot.end

    def append(self, rows: Packed, names: dict[int, str]) -> None:
        """Append a block of rows; `names` has the channel of every canonical hash in them.

        Raises LogError if the disk refuses; the rows are lost then.
        """
        hashes = (hashes_in(rows) or set()) - {0}
        now = self._clock()
        parts = pack_block(self._hot.end, rows, _only(names, hashes - self._named), now)
        if self._is_full(rows.length, sum(map(len, parts))):
            self._roll()
            # A new file has no names yet, so the block needs all of them.
            parts = pack_block(self._hot.end, rows, _only(names, hashes), now)
        self._make_room(sum(map(len, parts)))
        hot = self._hot
        with translated(hot.path, "cannot append to"):
            try:
                size = self.files.write(self._handle, parts, hot.size)
            except OSError:
                with contextlib.suppress(OSError):  # what remains is cut at the next opening
                    self.files.truncate(self._handle, hot.size)
                raise
        hot.size, hot.end, hot.written_ns = size, hot.end + rows.length, now
        self._named |= hashes
        self._synced = False

    def sync(self) -> None:
        """Wait until everything appended so far is on the disk."""
        if not self._synced:
            with translated(self._hot.path, "cannot sync"):
                self.files.fsync(self._handle)
            self._synced = True

    def keep(self, between: Callable[[], None] = lambda: None) -> None:
        """Seal what is due and remove what has expired; `between` is called after each row group, so that rows can be drained."""
        if self._monotonic() - self._begun_at >= SEAL_AGE_S and self._hot.end > self._hot.first:
            self._roll()
        if has_arrow():
            while self._waiting:
                self._seal(self._waiting[0], between)
        self._expire(0)

    def seal(self) -> None:
        """Write everything that is hot as Parquet."""
        if self._hot.end > self._hot.first:
            self._roll()
        self.keep()

    def close(self) -> None:
        """Sync and release the lock; does nothing if already closed."""
        if self._closed:
            return
        self._closed = True
        try:
            self.sync()
        finally:
            self.files.close(self._handle)
            self.files.close(self._lock)

    # ── hot files ───────────────────────────────────────────────────────────────────────────

    def _is_full(self, rows: int, size: int) -> bool:
        """Return whether the hot file has no space for this much more; an empty one always has."""
        there = self._hot.end - self._hot.first
        return there > 0 and (there + rows > SEAL_ROWS or self._hot.size + size > self._seal_bytes)

    def _roll(self) -> None:
        """Begin a new hot file; the old one is sealed later."""
        with translated(self._hot.path, "cannot sync"):
            self.files.fsync(self._handle)
            # Before the old handle is closed: if the new file cannot be created, the old one stays in use.
            handle, hot = self._begin(self._hot.end)
        self.files.close(self._handle)
        self._waiting.append(self._hot)
        self._kept += self._hot.size
        self._handle, self._hot = handle, hot
        self._named, self._synced = set(), True

    def _begin(self, first: int) -> tuple[int, _Hot]:
        path, now = self.folder / HOT / hot_name(first), self._clock()
        self.files.remove(path)  # left without rows by an attempt that failed
        handle = self.files.create(path)
        try:
            size = self.files.write(handle, [pack_file_header(first, self._info, now)], 0)
            self.files.fsync_folder(path.parent)  # the content is synced with its first rows
        except OSError:
            self.files.close(handle)
            raise
        self._begun_at = self._monotonic()
        return handle, _Hot(path, first, first, size, now)

    # ── sealing and expiring ────────────────────────────────────────────────────────────────

    def _seal(self, hot: _Hot, between: Callable[[], None]) -> None:
        with translated(self.folder, "cannot seal"):
            content = _content_of(hot.path)
            if content is None or content.end == content.first:
                self._discard(hot)
                return
            path = self.folder / segment_name(content.first, content.end)
            size = self._write_sealed(aside(path), content, between)
            if hot not in self._waiting:  # it expired while it was being sealed
                self.files.remove(aside(path))
                return
            # The decisive step: from here on the hot file is stale, even if a crash prevents its removal.
            self.files.rename(aside(path), path)
            self.files.fsync_folder(self.folder)
            # The age counts from sealing, which the modification time tells after a restart.
            self._sealed.append((path, Unit(content.end, size, self._clock())))
            self._kept += size - hot.size
            self.damaged += hot.end - content.end
            self._waiting.remove(hot)
            self.files.remove(hot.path)

    def _write_sealed(self, path: Path, content: Content, between: Callable[[], None]) -> int:
        """Write the rows of a hot file as Parquet, sync it, and return its size; needs memory for one row group."""
        self.files.remove(path)
        handle, size, sealed = self.files.create(path), 0, ParquetFile(content.info)
        try:
            for pieces in _groups(content):
                size = self.files.write(handle, [sealed.group(pieces, content.names)], size)
                between()
            size = self.files.write(handle, [sealed.footer()], size)
            self.files.fsync(handle)
        except BaseException:
            self.files.remove(path)
            raise
        finally:
            self.files.close(handle)
        return size

    def _discard(self, hot: _Hot) -> None:
        """Remove a hot file that cannot be read any more."""
        self.damaged += hot.end - hot.first
        self._waiting.remove(hot)
        self.files.remove(hot.path)

    def _make_room(self, coming: int) -> None:
        """Expire files if `coming` bytes would not fit; does not sum up thousands of files each time."""
        if self._kept + self._hot.size + coming > self._room:
            self._expire(coming)

    def _expire(self, coming: int) -> None:
        """Remove whole files, the oldest first, until the rest and `coming` bytes fit."""
        units = [unit for _, unit in self._sealed]
        units += [Unit(hot.end, hot.size, hot.written_ns) for hot in self._waiting]
        self._kept = sum(unit.bytes for unit in units)
        limits = Retention(max_age_s=self._bounds.max_age_s, max_bytes=self._room)
        until = expired_until(units, self._hot.end, self._hot.size + coming, limits, self._clock())
        if not until:
            return
        before = self._first()
        with translated(self.folder, "cannot expire"):
            for path in [path for path, unit in self._sealed if unit.end <= until]:
                self.files.remove(path)
            for hot in [hot for hot in self._waiting if hot.end <= until]:
                self.files.remove(hot.path)
        self._sealed = [(path, unit) for path, unit in self._sealed if unit.end > until]
        self._waiting = [hot for hot in self._waiting if hot.end > until]
        self._kept -= sum(unit.bytes for unit in units if unit.end <= until)
        self.expired += self._first() - before

    def _first(self) -> int:
        for path, _ in self._sealed:
            span = segment_range(path.name)
            assert span is not None
            return span[0]
        return self._waiting[0].first if self._waiting else self._hot.first

    # ── opening ─────────────────────────────────────────────────────────────────────────────

    def _take_lock(self) -> int:
        try:
            return self.files.lock(self.folder / LOCK)
        except BlockingIOError:
            raise LogError(
                LogFault.LOCKED,
                f"{self.folder} is being written by another node with this identity; stop that node, or set another"
                " log_dir",
            ) from None

    def _find_sealed(self) -> list[tuple[Path, Unit]]:
        """Return the sealed files, and remove temporary ones that a crash left."""
        found = []
        for path in sorted(self.folder.iterdir()):
            if is_aside(path):
                self.files.remove(path)
            elif span := segment_range(path.name):
                status = path.stat()
                found.append((path, Unit(span[1], status.st_size, status.st_mtime_ns)))
        return found

    def _recover(self) -> list[_Hot]:
        """Cut torn tails, and return the hot files that are to be sealed."""
        sealed_end = self._sealed[-1][1].end if self._sealed else 0
        waiting = []
        for first, path in hot_files(self.folder):
            content, size = _content_of(path), path.stat().st_size
            # Without a header, sealed already, or empty: nothing in it is needed.
            if content is None or first < sealed_end or content.end == first:
                self.cut_bytes += size if content is None and first >= sealed_end else 0
                self.files.remove(path)
                continue
            if content.size < size:
                self.cut_bytes += size - content.size
                self._cut(path, content.size)
            waiting.append(_Hot(path, first, content.end, content.size, content.written_ns))
        return waiting

    def _cut(self, path: Path, size: int) -> None:
        handle = self.files.reopen(path)
        try:
            self.files.truncate(handle, size)
            self.files.fsync(handle)
        finally:
            self.files.close(handle)

    def _end_of_all(self) -> int:
        ends = [unit.end for _, unit in self._sealed] + [hot.end for hot in self._waiting]
        return max(ends, default=0)


def _content_of(path: Path) -> Content | None:
    try:
        return read_hot(path)
    except UnknownFile:
        return None


def _groups(content: Content) -> Iterator[list[Piece]]:
    """Divide rows into row groups."""
    for low in range(content.first, content.end, GROUP_ROWS):
        high = min(low + GROUP_ROWS, content.end)
        yield [
            Piece(rows, max(low - first, 0), min(high - first, rows.length))
            for first, rows in content.blocks
            if first < high and first + rows.length > low
        ]


def _only(names: dict[int, str], hashes: set[int]) -> dict[int, str]:
    return {number: names[number] for number in hashes if number in names}
