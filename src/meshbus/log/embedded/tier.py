"""Move sealed segments of a log to object storage, in steps after each of which a crash loses nothing.

    copy      manifest, with the object as unused · upload · read back and compare · manifest, with the object as the copy
    remove    look whether the object is still there · remove the local file
    delete    delete the objects that are unused · manifest without them

A crash before the second manifest of a copy repeats it, under the same name; one after it leaves a local file that the
next turn removes. Only an object that the manifest names is read, and whatever may exist on object storage is named in
the manifest first, so nothing is left there forever. Whether a segment with a copy is local too, its folder tells.

Transfers run in a thread of their own (log/log.py) without a lock; `change` takes the lock of upkeep to replace the
manifest. log/tiering.py decides what is due. Failures are retried with growing pauses, and `_waits` in the folder says
why, for other processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.logmanifest import Manifest, unused_of, with_unused
from meshbus.log.folder import WAITS, aside
from meshbus.log.objectstore import (
    Cancelled,
    StoredObject,
    delete_object,
    join_uri,
    put_object,
    show_uri,
    size_of,
    verify_object,
)
from meshbus.log.segment import Segment
from meshbus.log.tiering import Place, local_bytes, next_to_copy, surplus

if TYPE_CHECKING:
    from meshbus.log.backend import OpenOptions
    from meshbus.log.embedded.writer import Writer

Change: TypeAlias = Callable[[Callable[[Manifest], Manifest]], None]
"""Replaces the manifest by what a function makes of it; raises LogError if that fails or the log is closed."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses after a failure, each twice the one before: soon back after a short outage, and no burden in a long one."""
_AT_ONCE = 16
"""Segments that are copied before the next log has its turn: logs share a thread, which comes by once a second."""
_log = logging.getLogger("meshbus.log")


class Tier:
    """The part of one log that is, or will be, on object storage."""

    def __init__(self, writer: Writer, options: OpenOptions, change: Change) -> None:
        self._writer, self._change = writer, change
        self._limits, self._channel = options.config.tier, options.channel
        self._clock, self._monotonic = options.clock, options.monotonic
        parts = writer.manifest.segments
        self._moved = {part.name for part in parts if part.remote is not UNSET and not self._path(part).exists()}
        """Segments without a local file."""
        self._pause_s, self._retry_at = _FIRST_PAUSE_S, 0.0
        self._told = (writer.folder / WAITS).exists()
        """Whether `_waits` says that storage is waited for; maybe of an earlier process."""

    @property
    def active(self) -> bool:
        """Whether there is anything to do, now or later."""
        return self._limits is not None or self._writer.manifest.has_objects

    @property
    def local_bytes(self) -> int:
        """Size of the local segments and of the hot files."""
        return local_bytes(self._places(self._writer.manifest)) + self._hot_bytes()

    def keep(self, cancelled: Callable[[], bool]) -> None:
        """Do what is due, or a part of that, unless a pause after a failure is not over; never raises."""
        if not self.active or self._monotonic() < self._retry_at:
            return
        try:
            for _ in range(_AT_ONCE):
                if not self.turn(lambda: cancelled() or self._writer.closed):
                    break
            self.clean()
        except Cancelled:
            return
        except LogError as error:
            if not self._writer.closed:
                self._failed(error)
        except Exception:  # noqa: BLE001 - the thread that calls this serves all logs; one of them must not end it
            self._writer.stats.copy_failures += 1
            self._pause()
            _log.exception("log of %s: moving segments failed unexpectedly and will be retried", self._channel)
        else:
            self._succeeded()

    def turn(self, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Copy one segment that is due and remove local files; return whether there was one.

        Raises LogError, and Cancelled soon after `cancelled` returns True.
        """
        if self._limits is None:
            return False
        manifest = self._writer.manifest
        name = next_to_copy(self._places(manifest), self._hot_bytes(), self._limits, self._clock())
        for segment in _named(manifest, [name]):
            self._copy(segment, cancelled)
        manifest = self._writer.manifest
        for segment in _named(manifest, list(surplus(self._places(manifest), self._hot_bytes(), self._limits))):
            self._remove_local(segment)
        return name is not None

    def clean(self) -> None:
        """Delete the objects that are unused; last, because a place that is no longer there must not stop copies to another.

        Raises LogError.
        """
        manifest = self._writer.manifest
        # A copy that was begun is not deleted while its segment is there: it is about to be repeated.
        needed = {self._uri(part) for part in manifest.segments if part.remote is UNSET and self._limits is not None}
        deleted = [uri for uri in unused_of(manifest) if uri not in needed]
        for uri in deleted:
            delete_object(uri)
        if deleted:
            self._change(lambda now: with_unused(now, tuple(uri for uri in unused_of(now) if uri not in deleted)))

    # ── steps ───────────────────────────────────────────────────────────────────────────────

    def _copy(self, segment: Segment, cancelled: Callable[[], bool]) -> None:
        uri = self._uri(segment)
        if uri not in unused_of(self._writer.manifest):
            self._change(lambda manifest: with_unused(manifest, (*unused_of(manifest), uri)))
        try:
            stored = put_object(self._path(segment), uri, cancelled)
        except FileNotFoundError:
            if segment in self._writer.manifest.segments:
                raise LogError(LogFault.CORRUPT, f"{self._path(segment)} is gone; restore it from a copy") from None
            return  # expired or merged meanwhile; the object is deleted
        if stored.bytes != segment.bytes:
            raise LogError(
                LogFault.CORRUPT,
                f"{self._path(segment)} has {stored.bytes} bytes instead of {segment.bytes}; restore it from a copy",
            )
        try:
            verify_object(stored, cancelled)
        except FileNotFoundError as error:
            raise LogError(LogFault.UNREACHABLE, f"{error}, although it was just written; check the storage") from None
        self._change(lambda manifest: _with_copy(manifest, segment, stored))
        self._writer.stats.copied += 1
        self._writer.stats.copied_bytes += stored.bytes

    def _remove_local(self, segment: Segment) -> None:
        """Remove a local file, unless the copy is gone since it was verified: then it is copied again."""
        assert segment.remote is not UNSET
        if size_of(segment.remote.uri) != segment.bytes:
            self._change(lambda manifest: _without_copy(manifest, segment))
            raise LogError(LogFault.UNREACHABLE, f"{show_uri(segment.remote.uri)} is gone; it is copied again")
        self._writer.files.remove(self._path(segment))
        present = {part.name for part in self._writer.manifest.segments}
        self._moved = (self._moved & present) | {segment.name}

    # ── what is where ───────────────────────────────────────────────────────────────────────

    def _places(self, manifest: Manifest) -> list[Place]:
        return [
            Place(part.name, part.bytes, part.written_ns, part.name not in self._moved, part.remote is not UNSET)
            for part in manifest.segments
        ]

    def _hot_bytes(self) -> int:
        return sum(hot.size for hot in self._writer.hot)

    def _path(self, segment: Segment) -> Path:
        return self._writer.folder / segment.name

    def _uri(self, segment: Segment) -> str:
        """Return where a segment is copied to; the id keeps logs of the same channel apart."""
        assert self._limits is not None
        writer = self._writer
        return join_uri(self._limits.uri, writer.folder.name, writer.manifest.log_id, segment.name)

    # ── what others are told ────────────────────────────────────────────────────────────────

    def _failed(self, error: LogError) -> None:
        writer, why = self._writer, str(error)
        writer.stats.copy_failures += 1
        self._pause()
        if why == writer.stats.waits:
            return
        writer.stats.waits = why
        _log.warning("log of %s: waits for object storage: %s", self._channel, why)
        with suppress(OSError):  # it only informs
            path = writer.folder / WAITS
            writer.files.write_aside(path, aside(path), [why.encode()])
            self._told = True

    def _pause(self) -> None:
        self._retry_at = self._monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _succeeded(self) -> None:
        self._pause_s = _FIRST_PAUSE_S
        if self._writer.stats.waits:
            self._writer.stats.waits = ""
            _log.warning("log of %s: object storage answers again", self._channel)
        if self._told:
            with suppress(OSError):
                self._writer.files.remove(self._writer.folder / WAITS)
                self._told = False


def _named(manifest: Manifest, names: Sequence[str | None]) -> list[Segment]:
    return [part for part in manifest.segments if part.name in names]


def _with_copy(manifest: Manifest, segment: Segment, stored: StoredObject) -> Manifest:
    """Name the copy of a segment, unless that expired or was merged meanwhile: then the object stays unused."""
    if segment not in manifest.segments:
        return manifest
    unused = tuple(uri for uri in unused_of(manifest) if uri != stored.uri)
    return with_unused(_replaced(manifest, segment, replace(segment, remote=stored)), unused)


def _without_copy(manifest: Manifest, segment: Segment) -> Manifest:
    return _replaced(manifest, segment, replace(segment, remote=UNSET))


def _replaced(manifest: Manifest, old: Segment, new: Segment) -> Manifest:
    return replace(manifest, segments=tuple(new if part == old else part for part in manifest.segments))
