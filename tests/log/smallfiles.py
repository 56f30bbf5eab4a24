"""Faults of the operating system below Python, for files that do not go through the file layer of the log.

`faulty(at, error)` lets the call number `at` of the ones that change files fail. Reading is not affected.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
CHANGING = (
    "write",
    "pwrite",
    "pwritev",
    "fsync",
    "replace",
    "rename",
    "link",
    "mkdir",
    "unlink",
    "ftruncate",
    "fchmod",
)
"""Functions of `os` that change a file or a folder."""


class Calls:
    """The calls below one folder, and the one that fails."""

    def __init__(self, at: int, error: int) -> None:
        self.at, self.error = at, error
        self.names: list[str] = []

    def step(self, name: str) -> None:
        """Count a call; raise the error if it is the one."""
        self.names.append(name)
        if len(self.names) - 1 == self.at:
            raise OSError(self.error, os.strerror(self.error))


@contextmanager
def faulty(folder: Path, at: int = -1, error: int = errno.EIO) -> Iterator[Calls]:
    """Let one call fail that opens a file below a folder for writing, or changes one."""
    calls = Calls(at, error)

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            calls.step(name)
            return real(*given, **options)

        return call

    real_open, real_io = os.open, io.open

    def opening(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and _is_below(path, folder):
            calls.step("open")
        return real_open(path, flags, *rest, **options)

    def opening_io(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if set(mode) & set("wxa+") and _is_below(path, folder):
            calls.step("open")
        return real_io(path, mode, *rest, **options)

    replaced: dict[str, Any] = {name: wrapped(name, getattr(os, name)) for name in CHANGING}
    replaced["open"] = opening
    with (
        mock.patch.multiple(os, **replaced),
        mock.patch.object(io, "open", opening_io),
    ):
        yield calls


def _is_below(path: Any, folder: Path) -> bool:
    return isinstance(path, str | os.PathLike) and folder in Path(path).parents
