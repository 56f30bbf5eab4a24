"""Folders for targets that read files: in memory where the system has such a file system, and removed with the process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - only unique folders are created in it


def new_folder() -> Path:
    """Return a new folder."""
    place = tempfile.mkdtemp(prefix="meshbus-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder by their path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def lay_out(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace what is in a folder by these files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
