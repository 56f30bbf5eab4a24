"""A finding: an input that ended a target by an error that is not its verdict, as a file, and how to repeat it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

import meshbus

_OURS = Path(meshbus.__file__).parent
MOST_TRIES = 400
"""Runs that are spent on making the input of one finding shorter."""


class Finding(msgspec.Struct, frozen=True):
    """What went wrong with an input."""

    target: str
    error: str
    """The exception, or how the process ended."""
    place: str
    """The innermost line of meshbus."""
    data: bytes

    @property
    def kind(self) -> str:
        """What it has in common with other inputs that show the same mistake."""
        return f"{self.error.partition(':')[0]} at {self.place}"

    def store(self, folder: Path) -> Path:
        """Write the input to a file and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{sha256(self.data).hexdigest()[:12]}"
        path.write_bytes(self.data)
        return path


def finding_of(target: str, error: BaseException, data: bytes) -> Finding:
    """Return what an exception tells about an input."""
    text = " ".join(str(error).split())
    return Finding(target, f"{type(error).__name__}: {text[:200]}", _place(error), data)


def shortened(data: bytes, shows: Callable[[bytes], bool]) -> bytes:
    """Return an input that is no longer and still shows the same; takes away parts of half its length, then smaller ones."""
    tries, size = 0, len(data) // 2
    while size and tries < MOST_TRIES:
        at = 0
        while at < len(data) and tries < MOST_TRIES:
            without = data[:at] + data[at + size :]
            tries += 1
            if shows(without):
                data = without
            else:
                at += size
        size //= 2
    return data


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(_OURS)] or frames
    if not inside:
        return "unknown"
    frame = inside[-1]
    file = Path(frame.filename)
    return f"{file.relative_to(_OURS) if file.is_relative_to(_OURS) else file.name}:{frame.lineno}"
