"""The pieces of a log that a batch takes: whole sealed files, which become files of a table as they are, and rows."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from meshbus.spark.io.inputs import Seen

_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}
"""Why a hard link may fail although a copy works: another file system, or one without links."""


class Piece(NamedTuple):
    """Consecutive rows of one log."""

    first: int
    end: int
    """One past the last row."""
    file: Path | None
    """The sealed file that has exactly these rows; None if there is none."""


def pieces_of(seen: Seen, first: int, end: int) -> list[Piece]:
    """Divide a range into whole files and rows."""
    found: list[Piece] = []
    at = first
    for segment in seen.rows.segments:
        begin, stop = max(segment.first, at), min(segment.end, end)
        if begin >= stop:
            continue
        whole = (begin, stop) == (segment.first, segment.end) and segment.path.exists()
        found.append(Piece(begin, stop, segment.path if whole else None))
        at = stop
    if at < end:
        found.append(Piece(at, end, None))
    return found


def put_file(source: Path, folder: Path, name: str) -> None:
    """Make a file part of a folder: as a second name for the same file where the file system can, else as a copy."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)
