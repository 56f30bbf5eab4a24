"""The few things that a log does to a disk, behind one small class.

Everything that changes a file or a folder goes through `Files`, so that a test can record each step, lose what was not
synced, or refuse. Reading does not. The rule that all callers rely on: the content of a file is safe after `fsync`, and
its name after `fsync_folder` of where it is; neither implies the other.

Errors of the system become LogError here and nowhere else, by `translated`.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from meshbus.errors import LogError, LogFault

try:
    import fcntl
except ImportError:  # Windows: a second writer is not noticed there
    fcntl = None  # type: ignore[assignment]

Part: TypeAlias = "bytes | bytearray | memoryview"

_SPACE = {errno.ENOSPC, errno.EDQUOT}
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class Files:
    """Write, sync and rename for real; a handle is a file descriptor."""

    def make_folder(self, path: Path) -> None:
        """Make a folder; its name is safe once the folder above is synced."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """Make an empty file and open it for writing; there must be none."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)

    def reopen(self, path: Path) -> int:
        """Open a file for writing."""
        return os.open(path, os.O_WRONLY)

    def write(self, handle: int, parts: Sequence[Part], at: int) -> int:
        """Write all parts one after the other at a place in the file, and give the place behind them."""
        total = sum(map(len, parts))
        done = self.write_some(handle, parts, at)
        if done < total:  # rare: the rest in one piece, as often as it takes
            rest = memoryview(b"".join(parts))
            while done < total:
                done += self.write_some(handle, [rest[done:]], at + done)
        return at + total

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        """Write as much as the system takes at once, and give how many bytes that was."""
        return os.pwritev(handle, parts, at)

    def reserve(self, handle: int, at: int, size: int) -> bool:
        """Give a file room on the disk beyond its end, which stays where it is; False when the system will not."""
        allocate = getattr(_libc(), "fallocate", None)  # Linux; the form in `os` would move the end
        return allocate is not None and not allocate(handle, _KEEP_SIZE, ctypes.c_int64(at), ctypes.c_int64(size))

    def truncate(self, handle: int, size: int) -> None:
        """Cut a file, and give back room that was reserved beyond."""
        os.ftruncate(handle, size)

    def fsync(self, handle: int) -> None:
        """Wait until the content of a file is on the disk."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Give a handle back."""
        os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, replacing what has it."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def fsync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: Path) -> int:
        """Hold a lock file until its handle is closed or the process ends; BlockingIOError when another does."""
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def write_aside(self, path: Path, aside: Path, parts: Sequence[Part]) -> None:
        """Replace a file in one step: written under another name, synced, renamed, and the name synced."""
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
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None


@contextmanager
def translated(path: Path, doing: str) -> Iterator[None]:
    """Make one sentence of what the system refuses, with the next thing to try."""
    try:
        yield
    except OSError as error:
        raise log_error(error, path, doing) from error


def log_error(error: OSError, path: Path, doing: str) -> LogError:
    """Give the LogError of what the system said."""
    why = error.strerror or str(error)
    if error.errno in _SPACE:
        return LogError(
            LogFault.NO_SPACE, f"{doing} {path}: {why}; nothing acknowledged is lost: free some space and try again"
        )
    if error.errno in _REFUSED:
        return LogError(
            LogFault.READ_ONLY, f"{doing} {path}: {why}; give this user write access, or choose another folder"
        )
    if isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError):
        return LogError(LogFault.FOREIGN, f"{doing} {path}: {why}; choose another folder, or move that away")
    return LogError(LogFault.FAILED, f"{doing} {path}: {why}; check the disk, then open the log again")
