"""A disk with little room, below one folder: every file takes whole blocks, and a write that does not fit is cut short."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from meshbus.log.files import Files, Part

_BLOCK = 4_096


class SmallDisk(Files):
    """Real files below `base`, as long as they take no more than `room` bytes."""

    def __init__(self, base: Path, room: int) -> None:
        self.base, self.room = base, room

    def used(self) -> int:
        sizes = [path.stat().st_size for path in self.base.rglob("*") if path.is_file()]
        return sum(-(-size // _BLOCK) * _BLOCK for size in sizes)

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        data = b"".join(parts)
        size = os.fstat(handle).st_size
        spare = -size % _BLOCK + max(self.room - self.used(), 0) // _BLOCK * _BLOCK
        fitting = data[: max(size + spare - at, 0)]
        if data and not fitting:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_some(handle, [fitting], at)

    def reserve(self, handle: int, at: int, size: int) -> bool:  # noqa: ARG002 - as a file system that cannot
        return False

    def fsync(self, handle: int) -> None:
        pass

    def fsync_folder(self, path: Path) -> None:
        pass
