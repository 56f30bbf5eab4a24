"""The files of one recorder: rows are appended to a hot file, hot files become Parquet, and what is too old goes.

    <log_dir>/_packets/<node id, 16 hex digits>/
    ├── 00000000000000000000-00000000000000240000.parquet    sealed: first and one past the last row
    ├── _hot/00000000000000240000.hot                        the tail, in blocks; named by its first row
    ├── _policies/0000000001.json                            what verdicts went by (log/packets/policies.py)
    └── _lock                                                held by the one writer

There is no manifest, because the rename of a sealed file is the one step that decides: a hot file whose first row is in
a sealed file is stale, whoever looks. Rows are numbered; numbers may be missing, none comes twice. A new hot file is
begun at every opening, since the sampling may have changed. Used by one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.arrow import has_arrow
from meshbus.log.durability import Retention
from meshbus.log.files import Files, translated
from meshbus.log.folder import HOT, LOCK, aside, hot_files, hot_name, is_aside, segment_name, segment_range
from meshbus.log.packets.block import Content, UnknownFile, pack_block, pack_file_header, read_content
from meshbus.log.packets.packed import Packed, hashes_in
from meshbus.log.packets.parquet import ParquetFile
from meshbus.log.packets.policies import POLICIES
from meshbus.log.packets.runs import Piece, Whose
from meshbus.log.retention import Unit, expired_until

RECORDERS = "_packets"
"""The folder of all recorders below a log folder."""
GROUP_ROWS = 65_536
"""Rows of each row group of a sealed file but the last; readers count on it."""
SEAL_ROWS = 4 * GROUP_ROWS
"""A hot file is sealed before it has more rows than this."""
SEAL_BYTES = 32 << 20
"""A hot file is sealed before it is larger than this."""
SEAL_AGE_S = 300.0
"""A hot file is sealed when it is this old, however small."""
LEAST_BYTES = 16 << 20
"""The smallest bound of a file set: eight hot files, each with room for one block."""
_PARTS = 8
"""A hot file is at most this part of the bound."""
_SEAL_PARTS = 2
"""Such parts are kept free for what a seal writes: where times alone change, that is half as much again as the hot file."""
_NS = 1_000_000_000


def folder_of(log_dir: Path, recorder: int) -> Path:
    """Give the folder of a recorder."""
    return log_dir / RECORDERS / f"{recorder:016x}"


class Bounds(msgspec.Struct, frozen=True):
    """How much is kept; whichever asks for more to go wins."""

    max_bytes: int = 1 << 30
    """On disk, hot files and what a seal needs included."""
    max_age_s: float = 7 * 86_400.0
    """Since a file was sealed."""

    def __post_init__(self) -> None:
        if self.max_bytes < LEAST_BYTES:
            raise ConfigError("record_max_bytes", f"{self.max_bytes} is less than {LEAST_BYTES}: give the record more")


class _Hot(msgspec.Struct):
    """A hot file as its writer knows it."""

    path: Path
    first: int
    end: int
    size: int
    created_ns: int
    written_ns: int


class PacketStore:
    """Write the file set of one recorder, which nobody else may write meanwhile."""

    def __init__(
        self, folder: Path, whose: Whose, bounds: Bounds, *, clock: Callable[[], int], files: Files | None = None
    ) -> None:
        """Lock the folder and bring it into order; raises LogError when that cannot be done."""
        self.folder = folder
        self.cut_bytes = 0
        """Of torn tails that were found at opening."""
        self.expired = 0
        """Rows that went since."""
        self.damaged = 0
        """Rows that a hot file no longer had when it was sealed."""
        self.files = Files() if files is None else files
        self._whose, self._bounds, self._clock = whose, bounds, clock
        self._seal_bytes = min(SEAL_BYTES, bounds.max_bytes // _PARTS)
        self._room = bounds.max_bytes - _SEAL_PARTS * self._seal_bytes
        self._closed = False
        with translated(folder, "cannot open"):
            for name in (HOT, POLICIES):
                self.files.make_folder(folder / name)
            self._lock = self._take_lock()
            try:
                for place in (folder, *folder.parents[:3]):
                    self.files.fsync_folder(place)
                self._sealed = self._find_sealed()
                self._waiting = self._recover()
                self._handle, self._hot = self._begin(self._end_of_all())
            except BaseException:
                self.files.close(self._lock)
                raise
        self._kept = sum(unit.bytes for _, unit in self._sealed) + sum(hot.size for hot in self._waiting)
        """Bytes of all files but the one that is appended to; more where one was given up since `keep` looked."""
        self._named: set[int] = set()
        """Hashes whose names are in the hot file."""
        self._synced = True

    @property
    def end(self) -> int:
        """The number that the next row gets."""
        return self._hot.end

    def append(self, rows: Packed, names: dict[int, str]) -> None:
        """Write a block of rows behind those before; `names` has the channel of every canonical hash in them.

        Raises LogError when the disk refuses; the rows are lost then.
        """
        hashes = (hashes_in(rows) or set()) - {0}
        now = self._clock()
        parts = pack_block(self._hot.end, rows, _only(names, hashes - self._named), now)
        if self._is_full(rows.length, sum(map(len, parts))):
            self._roll()
            parts = pack_block(self._hot.end, rows, _only(names, hashes), now)
        self._make_room(sum(map(len, parts)))
        hot = self._hot
        with translated(hot.path, "cannot append to"):
            try:
                size = self.files.write(self._handle, parts, hot.size)
            except OSError:
                with contextlib.suppress(OSError):  # what stays behind is cut at the next opening
                    self.files.truncate(self._handle, hot.size)
                raise
        hot.size, hot.end, hot.written_ns = size, hot.end + rows.length, now
        self._named |= hashes
        self._synced = False

    def sync(self) -> None:
        """Wait until all that was appended is on the disk."""
        if not self._synced:
            with translated(self._hot.path, "cannot sync"):
                self.files.fsync(self._handle)
            self._synced = True

    def keep(self, between: Callable[[], None] = lambda: None) -> None:
        """Seal what is due and let go what has expired; `between` is called now and then while that takes long."""
        if self._clock() - self._hot.created_ns >= SEAL_AGE_S * _NS and self._hot.end > self._hot.first:
            self._roll()
        if has_arrow():
            while self._waiting:
                self._seal(self._waiting[0], between)
        self._expire(0)

    def seal(self) -> None:
        """Make Parquet of everything that is hot."""
        if self._hot.end > self._hot.first:
            self._roll()
        self.keep()

    def close(self) -> None:
        """Sync, and let the next writer in; closing twice is fine."""
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
        """Say whether the hot file has no room for so much more; an empty one has."""
        there = self._hot.end - self._hot.first
        return there > 0 and (there + rows > SEAL_ROWS or self._hot.size + size > self._seal_bytes)

    def _roll(self) -> None:
        """Begin a new hot file; the one before waits for its seal."""
        with translated(self._hot.path, "cannot sync"):
            self.files.fsync(self._handle)
            handle, hot = self._begin(self._hot.end)
        self.files.close(self._handle)
        self._waiting.append(self._hot)
        self._kept += self._hot.size
        self._handle, self._hot = handle, hot
        self._named, self._synced = set(), True

    def _begin(self, first: int) -> tuple[int, _Hot]:
        path, now = self.folder / HOT / hot_name(first), self._clock()
        handle = self.files.create(path)
        size = self.files.write(handle, [pack_file_header(first, self._whose, now)], 0)
        self.files.fsync_folder(path.parent)  # the content is synced with its first rows
        return handle, _Hot(path, first, first, size, now, now)

    # ── sealing and expiring ────────────────────────────────────────────────────────────────

    def _seal(self, hot: _Hot, between: Callable[[], None]) -> None:
        with translated(self.folder, "cannot seal"):
            content = _content_of(hot.path)
            if content is None or content.end == content.first:
                self._give_up(hot)
                return
            path = self.folder / segment_name(content.first, content.end)
            size = self._write_sealed(aside(path), content, between)
            if hot not in self._waiting:  # it expired while it was sealed
                self.files.remove(aside(path))
                return
            self.files.rename(aside(path), path)
            self.files.fsync_folder(self.folder)
            self._sealed.append((path, Unit(content.end, size, self._clock())))
            self._kept += size - hot.size
            self.damaged += hot.end - content.end
            self._waiting.remove(hot)
            self.files.remove(hot.path)

    def _write_sealed(self, path: Path, content: Content, between: Callable[[], None]) -> int:
        """Write the rows of a hot file as Parquet, synced, and give its bytes; memory: about one row group."""
        self.files.remove(path)
        handle, size, sealed = self.files.create(path), 0, ParquetFile(content.whose)
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

    def _give_up(self, hot: _Hot) -> None:
        """Let go of a hot file in which nothing can be read any more."""
        self.damaged += hot.end - hot.first
        self._waiting.remove(hot)
        self.files.remove(hot.path)

    def _make_room(self, coming: int) -> None:
        """Expire what must go so that so much fits; there may be thousands of files, which are not counted each time."""
        if self._kept + self._hot.size + coming > self._room:
            self._expire(coming)

    def _expire(self, coming: int) -> None:
        """Remove whole files, the oldest first, until the rest and what is coming fit."""
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
                f"{self.folder} is being written by another node with this identity: stop that one, or set another"
                " log_dir",
            ) from None

    def _find_sealed(self) -> list[tuple[Path, Unit]]:
        """Find what is sealed, and take away what a crash kept from getting its name."""
        found = []
        for path in sorted(self.folder.iterdir()):
            if is_aside(path):
                self.files.remove(path)
            elif span := segment_range(path.name):
                status = path.stat()
                found.append((path, Unit(span[1], status.st_size, status.st_mtime_ns)))
        return found

    def _recover(self) -> list[_Hot]:
        """Cut what is torn, and give the hot files that wait for their seal."""
        sealed_end = self._sealed[-1][1].end if self._sealed else 0
        waiting = []
        for first, path in hot_files(self.folder):
            content, size = _content_of(path), path.stat().st_size
            if content is None or first < sealed_end or content.end == first:
                self.cut_bytes += size if content is None and first >= sealed_end else 0
                self.files.remove(path)
                continue
            if content.size < size:
                self.cut_bytes += size - content.size
                self._cut(path, content.size)
            waiting.append(_Hot(path, first, content.end, content.size, content.created_ns, content.written_ns))
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
        return read_content(np.fromfile(path, np.uint8).data)
    except UnknownFile:
        return None


def _groups(content: Content) -> Iterator[list[Piece]]:
    """Cut rows into row groups."""
    for low in range(content.first, content.end, GROUP_ROWS):
        high = min(low + GROUP_ROWS, content.end)
        yield [
            Piece(rows, max(low - first, 0), min(high - first, rows.length))
            for first, rows in content.blocks
            if first < high and first + rows.length > low
        ]


def _only(names: dict[int, str], hashes: set[int]) -> dict[int, str]:
    return {number: names[number] for number in hashes if number in names}
