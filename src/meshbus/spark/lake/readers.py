"""The lock of readers: files of a running query stay in place.

Spark lists files when it plans a query and opens them later, so a file that was replaced must stay for as long as somebody
may still open it. Readers hold a shared lock of the tables (`reading`). Writers do not wait for it: they remove replaced
files only if they get it exclusively (`idle`), and otherwise try again next time.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_LOCK = "_readers.lock"


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """Keep all files of the tables in `root` in place while the block runs.

    A reader that may not write to the root, or whose file system has no locks, runs without this protection.
    """
    with ExitStack() as held:
        with suppress(OSError):
            held.enter_context(_locked(root, fcntl.LOCK_SH))
        yield


@contextmanager
def idle(root: Path) -> Iterator[bool]:
    """Return whether no reader is active; if so, new readers wait until the block ends, which must be short."""
    with ExitStack() as held:
        try:
            held.enter_context(_locked(root, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _locked(root: Path, kind: int) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / _LOCK).open("a") as file:
        fcntl.flock(file, kind)
        yield
