"""Child processes of tests: default signals, a process group of their own, and none that outlives its test.

A pytest plugin, loaded by `tests/conftest.py`, and the helper `child`, which starts a process that a test talks to. The plugin
holds for every process, however it was started: by `child`, by asyncio, by the code under test or by another child. Where
there is no /proc, only `child` cleans up.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_STOPPING = [getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM") if hasattr(signal, name)]
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_GRACE_S = 30.0
"""A process whose parent has gone notices that soon, but on a busy machine not at once."""


# ── for tests ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def child(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a process inside `with`, and kill it and its process group at the end of the block.

    `options` are those of `subprocess.Popen`. Unlike `with Popen(...)`, an error in the block does not wait for the process.
    """
    process = subprocess.Popen(command, process_group=0, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter if only a zombie is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was written and not read
                    pipe.close()


# ── the plugin ──────────────────────────────────────────────────────────────────────────────


def pytest_configure(config: pytest.Config) -> None:
    _handle_ignored_signals()
    _adopt_orphans()


def _handle_ignored_signals() -> None:
    """Go on ignoring what this process ignores, but let children have the default.

    A shell ignores SIGINT for a command that it runs in the background, and an ignored signal stays ignored in a child.
    A handler does not: exec resets it to the default.
    """
    for number in _STOPPING:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def _adopt_orphans() -> None:
    """Become the parent of what children leave behind, so that it is found below."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    """Kill what a test has left running, and fail the test.

    What fixtures of a wider scope have started is there before: they are set up first.
    """
    before = _children()
    yield
    if left := _end(_children() - before):
        pytest.fail(f"left running: {', '.join(left)}")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Kill what is left at the end of the run, such as the children of a worker that crashed."""
    _end(_children(), ask=True)


def _end(processes: set[int], *, ask: bool = False) -> list[str]:
    """Wait until processes have ended, kill those that have not in time, and return their command lines."""
    if ask:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _GRACE_S
    while processes := _running(processes):
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    left = [_command_line(pid) for pid in processes]
    while processes:
        before = _children() - processes
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        processes = _children() - before  # what they had started is ours now
    return left


def _running(processes: set[int]) -> set[int]:
    """Return those that have not ended, and wait for those that have: nobody else will."""
    for pid in tuple(processes):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return processes & _children()


def _children() -> set[int]:
    """Return the processes whose parent is this one."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the usual case, and a thousand times quicker than a look at every process
        return set()
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == os.getpid()}


def _parent(path: Path) -> int | None:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended since
        return None


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"
