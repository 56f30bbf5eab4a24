"""Finding processes that should be gone."""

import time
from pathlib import Path

_WAIT_S = 20.0
"""The death of a parent is noticed at once, but not in no time."""


def gone(pid: int) -> bool:
    """Wait for a process that is no child of ours to end."""
    return _until(lambda: [pid] if _is_alive(Path(f"/proc/{pid}")) else [])


def none_with(mark: str) -> bool:
    """Wait until no process has something in the environment that it was started with."""
    return _until(lambda: with_mark(mark))


def with_mark(mark: str) -> list[int]:
    """Return the processes that have something in the environment that they were started with."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_alive(path) and _has(path, mark)]


def _until(left: object) -> bool:
    assert callable(left)
    until = time.monotonic() + _WAIT_S
    while left():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _is_alive(path: Path) -> bool:
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _has(path: Path, mark: str) -> bool:
    try:
        return mark.encode() in (path / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
