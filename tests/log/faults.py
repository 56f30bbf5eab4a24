"""A file layer that fails: at one call, or from one call on until it is healed."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from meshbus.log.files import Files, Part

T = TypeVar("T")

ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
SHORT = 0
"""Instead of an error number: a write accepts only a part, once."""


class Faults(Files):
    """Real files, except for call number `at`, which fails with `error`; with `lasting`, all later ones fail too."""

    def __init__(self, at: int = -1, error: int = errno.EIO, *, lasting: bool = False) -> None:
        self.at, self.error, self.lasting = at, error, lasting
        self.calls: list[str] = []
        self.hit = ""
        """What failed first."""

    def heal(self) -> None:
        self.at = -1

    def make_folder(self, path: Path) -> None:
        self._step("make_folder", lambda: super(Faults, self).make_folder(path))

    def create(self, path: Path) -> int:
        return self._step("create", lambda: super(Faults, self).create(path))

    def reopen(self, path: Path) -> int:
        return self._step("reopen", lambda: super(Faults, self).reopen(path))

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        data = b"".join(parts)
        if self._due("write") and self.error in {SHORT, errno.ENOSPC, errno.EIO}:
            half = super().write_some(handle, [data[: len(data) // 2]], at) if len(data) > 1 else 0
            if self.error == SHORT and half:
                self.calls.append("write")
                return half
        return self._step("write", lambda: super(Faults, self).write_some(handle, [data], at))

    def reserve(self, handle: int, at: int, size: int) -> bool:  # noqa: ARG002 - as a file system that cannot
        return False

    def truncate(self, handle: int, size: int) -> None:
        self._step("truncate", lambda: super(Faults, self).truncate(handle, size))

    def fsync(self, handle: int) -> None:  # noqa: ARG002 - nothing crashes here, so nothing has to be synced
        self._step("fsync", lambda: None)

    def close(self, handle: int) -> None:
        super().close(handle)  # POSIX: the handle is closed, whatever close returns

    def rename(self, old: Path, new: Path) -> None:
        self._step("rename", lambda: super(Faults, self).rename(old, new))

    def remove(self, path: Path) -> None:
        self._step("remove", lambda: super(Faults, self).remove(path))

    def fsync_folder(self, path: Path) -> None:  # noqa: ARG002 - the same
        self._step("fsync_folder", lambda: None)

    def lock(self, path: Path) -> int:
        return self._step("lock", lambda: super(Faults, self).lock(path))

    def _due(self, what: str) -> bool:
        number = len(self.calls)
        due = self.at >= 0 and (number >= self.at if self.lasting else number == self.at)
        if due and not self.hit:
            self.hit = f"{what} (call {number})"
        return due

    def _step(self, what: str, work: Callable[[], T]) -> T:
        due = self._due(what)
        self.calls.append(what)
        if due and self.error != SHORT:
            raise OSError(self.error, os.strerror(self.error))
        return work()


def each_fault(calls: int, every: int) -> Iterator[tuple[int, bool, int]]:
    """Yield one in `every` cases: each fault, once and lasting, at each of so many calls."""
    number = 0
    for error in (*ERRORS, SHORT):
        for lasting in (False, True) if error else (False,):
            for at in range(calls):
                number += 1
                if number % every == 0:
                    yield error, lasting, at


def name_of(error: int, *, lasting: bool) -> str:
    """Return a fault in words."""
    return f"{errno.errorcode.get(error, 'short write')}{' lasting' if lasting else ''}"
