"""Room for one manifest on a full disk.

Nothing may be removed from a log before a manifest without it is stored, and on a full disk a manifest cannot be stored.
So a log keeps a small file that means nothing. When the disk is full, the file is removed, the manifest takes its room,
and what has expired can go; when there is room again, the file is made again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshbus.log.files import Files

NAME = "_spare"
_BLOCK = 4_096
_LEAST = 4 * _BLOCK
"""Room for a small manifest, its name, and what the file system needs beside them."""


class Spare:
    """The spare file of one log."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._path = folder / NAME
        self._size = self._path.stat().st_size if self._path.exists() else 0

    def keep(self, manifest_bytes: int) -> None:
        """Make the file if it is missing or too small for a manifest of this size; raises OSError if there is no room."""
        wanted = max(_LEAST, (2 * manifest_bytes // _BLOCK + 2) * _BLOCK)
        if self._size >= wanted:
            return
        self.release()
        handle = self._files.create(self._path)
        try:
            # Random, so that a file system that compresses gives it room too. Not synced: a crash may lose it.
            self._files.write(handle, [os.urandom(wanted)], 0)
        except OSError:
            self._files.remove(self._path)
            raise
        finally:
            self._files.close(handle)
        self._size = wanted

    def release(self) -> bool:
        """Remove the file and return whether there was one."""
        there = self._size > 0
        self._files.remove(self._path)
        self._size = 0
        return there
