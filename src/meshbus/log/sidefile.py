"""A small JSON file beside a log that tells something about its events, such as their schemas (log/schemas.py).

    <log folder>/_<stem>.json      {"version": 1, …}
    <log folder>/_<stem>.lock      held while the file is replaced

It is not the writer's: it may be changed while a node writes the log. It is replaced atomically, so a reader needs no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from meshbus.errors import UNDECODABLE, ConfigError, LogError, LogFault
from meshbus.formats import Format
from meshbus.log.files import Files, translated
from meshbus.log.folder import aside

FORMAT = 1

ON_DISK = (
    Format(
        name="side file of a log",
        where="`log_dir/*/*/_schemas.json`, `_positions.json`",
        what="what payloads were when they were written; which numbers are positions in a replicated log",
        version=FORMAT,
        mark='`"version"`',
        refused="declaring schemas and positions, and tables that need them; the log itself is read and written",
    ),
)


class Content(msgspec.Struct, frozen=True):
    """What every such file has."""

    version: int


T = TypeVar("T", bound=Content)


class SideFile(Generic[T]):
    """One kind of file."""

    def __init__(self, stem: str, content: type[T], what: str) -> None:
        """Describe the file; `what` names its entries in messages."""
        self._name, self._lock, self._content, self._what = f"_{stem}.json", f"_{stem}.lock", content, what

    def read(self, folder: Path) -> T | None:
        """Return the content, or None if there is no file. Raises LogError if it is damaged or newer."""
        place = folder / self._name
        with translated(place, "cannot read"):
            content = place.read_bytes() if place.exists() else b""
        if not content:
            return None
        try:
            if problem := ON_DISK[0].problem(msgspec.json.decode(content, type=Content).version):
                raise LogError(LogFault.NEWER, f"{place}: {problem}")
            return msgspec.json.decode(content, type=self._content)
        except (*UNDECODABLE, ConfigError) as error:
            raise LogError(
                LogFault.CORRUPT,
                f"{place} is damaged ({error}); restore it from a copy, or remove it and declare the {self._what} again",
            ) from None

    def change(self, folder: Path, change: Callable[[T | None], T | None]) -> bool:
        """Replace the content by what `change` makes of it, and return whether that was not None.

        Raises LogError if the file cannot be written, or if another process is writing it.
        """
        place, files = folder / self._name, Files()
        with translated(place, "cannot write"):
            try:
                handle = files.lock(folder / self._lock)
            except BlockingIOError:
                raise LogError(
                    LogFault.LOCKED, f"another process is declaring {self._what} in {folder}; try again"
                ) from None
            try:
                content = change(self.read(folder))
                if content is not None:
                    files.write_aside(place, aside(place), [msgspec.json.encode(content)])
            finally:
                files.close(handle)
        return content is not None
