"""File operations of the log, in one small class.

Every change of a file or folder goes through `Files`, so that tests can record each step, lose what was not synced, or
fail. Reading does not. All callers rely on this rule: the content of a file is durable after `fsync`, and its name after
`fsync_folder` of its folder; neither implies the other.

Errors of the operating system become LogError in `translated`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from meshbus.errors import LogError, LogFault

try:
    import fcntl
except ImportError:  # Windows: a second writer is not detected there
    fcntl = None  # type: ignore[assignment]

Part: TypeAlias = "bytes | bytearray | memoryview"

_OWN_FILE, _OWN_FOLDER = 0o600, 0o700
"""Modes of what is created: events are for the user who runs the node, who may grant more."""
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_SPACE = {errno.ENOSPC, errno.EDQUOT}
_HANDLES = {errno.EMFILE, errno.ENFILE}
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_WAIT, _START_WRITING = 1, 2  # SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE
_CANNOT_WAIT = {errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EPERM}
"""Answers of systems and files that do not know early write-back."""
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class Files:
    """Operations on real files; a handle is a file descriptor."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, for this user only; the name is durable once the parent is synced."""
        for place in reversed([path, *path.parents]):
            # One by one, because `parents=True` would create the parents for everyone.
            with contextlib.suppress(FileExistsError):
                if not place.is_dir():
                    place.mkdir(mode=_OWN_FOLDER)
        path.mkdir(exist_ok=True)  # raises FileExistsError if it is no folder

    def create(self, path: Path) -> int:
        """Create a file and open it for writing; raises FileExistsError if it exists."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWN_FILE)

    def reopen(self, path: Path) -> int:
        """Open an existing file for writing."""
        return os.open(path, os.O_WRONLY)

    def write(self, handle: int, parts: Sequence[Part], at: int) -> int:
        """Write all parts one after the other at an offset and return the offset after them."""
        total = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        done = self.write_some(handle, parts, at)
        if done < total:  # rare: write the rest as one buffer, in as many calls as needed
            rest = memoryview(b"".join(parts))
            while done < total:
                done += self.write_some(handle, [rest[done:]], at + done)
        return at + total

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        """Write as much as the system accepts in one call and return the number of bytes."""
        return os.pwrite(handle, parts[0], at) if len(parts) == 1 else os.pwritev(handle, parts, at)

    def reserve(self, handle: int, at: int, size: int) -> bool:
        """Reserve disk space after an offset without changing the size of the file; return whether that worked."""
        # docs/decisions/0010: writing into reserved space is faster, and a file must not appear longer than it is.
        allocate = getattr(_libc(), "fallocate", None)  # Linux only; os.posix_fallocate would change the size
        return allocate is not None and not allocate(handle, _KEEP_SIZE, ctypes.c_int64(at), ctypes.c_int64(size))

    def begin_sync(self, handle: int, at: int, size: int) -> None:
        """Start writing a range to the disk, so that `fsync` waits less; this alone syncs nothing."""
        start = getattr(_libc(), "sync_file_range", None)  # Linux only; elsewhere fsync does all of it
        if start is not None:
            start(handle, ctypes.c_int64(at), ctypes.c_int64(size), _START_WRITING)

    def end_sync(self, handle: int, at: int, size: int) -> None:
        """Wait until the disk has taken a range that `begin_sync` started; this alone syncs nothing.

        Raises OSError if the disk refused it. The system says so once, so a later `fsync` of the same handle would not.
        """
        wait = getattr(_libc(), "sync_file_range", None)
        if wait is not None and wait(handle, ctypes.c_int64(at), ctypes.c_int64(size), _WAIT):
            number = ctypes.get_errno()
            if number not in _CANNOT_WAIT:
                raise OSError(number, os.strerror(number))

    def truncate(self, handle: int, size: int) -> None:
        """Cut a file at a size and free the space that was reserved after it."""
        os.ftruncate(handle, size)

    def fsync(self, handle: int) -> None:
        """Wait until the content of a file is on the disk."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a handle."""
        os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, replacing one that has the new name."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def fsync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: Path) -> int:
        """Lock a file until its handle is closed or the process ends; raises BlockingIOError if it is locked already."""
        handle = os.open(path, os.O_CREAT | os.O_RDWR | _NO_LINK, _OWN_FILE)
        try:
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    # Who can open the file can lock it, even for reading only; older versions let everyone.
                    os.fchmod(handle, _OWN_FILE)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def write_aside(self, path: Path, aside: Path, parts: Sequence[Part]) -> None:
        """Replace a file atomically: write it under the name `aside`, sync, rename, and sync the folder."""
        self.remove(aside)
        handle = self.create(aside)
        try:
            self.write(handle, parts, 0)
            self.fsync(handle)
        finally:
            self.close(handle)
        self.rename(aside, path)
        self.fsync_folder(path.parent)


@functools.cache
def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return None


@contextlib.contextmanager
def translated(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError into a LogError that says what to do next."""
    try:
        yield
    except OSError as error:
        raise log_error(error, path, doing) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Do the same for reading; a missing file stays a FileNotFoundError, because readers then look for a newer one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise log_error(error, path, "cannot read") from error


def is_full(error: OSError) -> bool:
    """Return whether an error means that there is no room on the disk."""
    return error.errno in _SPACE


def no_handles(error: OSError) -> bool:
    """Return whether an error means that there are too many open files, which says nothing about the disk."""
    return error.errno in _HANDLES


def log_error(error: OSError, path: Path, doing: str) -> LogError:
    """Return the LogError for an OSError."""
    why = error.strerror or str(error)
    if is_full(error):
        return LogError(
            LogFault.NO_SPACE, f"{doing} {path}: {why}; nothing acknowledged is lost: free some space and try again"
        )
    if no_handles(error):
        return LogError(
            LogFault.FAILED,
            f"{doing} {path}: {why}; nothing acknowledged is lost: close some files, or raise the limit (ulimit -n)",
        )
    if error.errno in _REFUSED:
        return LogError(
            LogFault.READ_ONLY, f"{doing} {path}: {why}; give this user write access, or choose another folder"
        )
    if isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError):
        return LogError(
            LogFault.FOREIGN, f"{doing} {path}: {why}; choose another folder, or move the existing file away"
        )
    return LogError(LogFault.FAILED, f"{doing} {path}: {why}; check the disk, then open the log again")
