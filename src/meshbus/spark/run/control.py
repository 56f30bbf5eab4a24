"""Control files of a pipeline, through which other processes watch and stop it.

    _lock             locked while a runner is active; only one runner may write to the tables
    _status.json      what the runner and its queries are doing, replaced every second
    _stop             created to ask the runner to stop

The runner itself is spark/run/runner.py.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.files import is_full

_STATUS, _STOP, _LOCK = "_status.json", "_stop", "_lock"
_POLL_S = 0.2
"""How often `stop` checks whether the runner has stopped."""


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the lock on the tables; raises PipelineError if another process holds it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        # A lock of the system, not the existence of a file: it is released when a process dies.
        file = (root / _LOCK).open("w")
    except OSError as error:
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"cannot write to {root}: {error.strerror}; choose another directory"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(
                PipelineFault.RUNNING,
                f"a pipeline is already running on {root}; see 'meshbus pipeline status {root}'",
            ) from None
        yield


def write_status(root: Path, status: Mapping[str, Any]) -> None:
    """Replace the status file atomically; on a full disk, write over it, so that it says what is wrong."""
    path, content = root / _STATUS, msgspec.json.encode(status)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    except OSError as error:
        if not is_full(error):
            raise
        aside.unlink(missing_ok=True)
        _write_over(path, content)


def _write_over(path: Path, content: bytes) -> None:
    """Write into the blocks that a file has, in one call: spaces after JSON mean nothing."""
    with path.open("r+b", buffering=0) as file:
        file.write(content.ljust(os.fstat(file.fileno()).st_size))


def status(tables: Path | str) -> dict[str, Any]:
    """Return the status of the last runner; its state is `dead` if it ended without saying so.

    Raises PipelineError if no pipeline has run on the tables.
    """
    root = Path(tables)
    try:
        found: dict[str, Any] = msgspec.json.decode((root / _STATUS).read_bytes())
    except FileNotFoundError:
        raise PipelineError(
            PipelineFault.BAD_TABLE,
            f"no pipeline has run on {root}; check the path, or run 'meshbus pipeline run'",
        ) from None
    if found["state"] == "running" and not _is_locked(root):
        found["state"] = "dead"
    return found


def stop(tables: Path | str, *, timeout_s: float = 60.0) -> bool:
    """Ask a runner to stop after its running batches, and wait for it; returns False if none is running.

    Raises PipelineError if it is still running after `timeout_s`.
    """
    root = Path(tables)
    if not _is_locked(root):
        return False
    (root / _STOP).touch()
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if not _is_locked(root):
            return True
        time.sleep(_POLL_S)
    raise PipelineError(
        PipelineFault.RUNNING,
        f"the pipeline on {root} is still running a batch after {timeout_s:g} s; wait longer, or end its process",
    )


def stop_requested(root: Path) -> bool:
    """Return whether the runner has been asked to stop."""
    return (root / _STOP).exists()


def clear_stop(root: Path) -> None:
    """Clear a request to stop."""
    (root / _STOP).unlink(missing_ok=True)


def _is_locked(root: Path) -> bool:
    try:
        with (root / _LOCK).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file: no pipeline has run here
        return False
    return False
