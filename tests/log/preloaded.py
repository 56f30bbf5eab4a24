"""A process whose system calls fail: the lives of a log and of a recorder (test_faults.py), below the interpreter.

`test_preloaded.py` starts it with the library of preload.c loaded first. Unlike an injected file layer, that also fails
reads, maps and what libraries do by themselves. It prints the kinds of calls that failed, and a traceback if a life did.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from meshbus.errors import LogError, LogFault
from meshbus.log.files import Files
from meshbus.log.reader import LogReader
from tests.log import test_faults, test_replicated_faults
from tests.log.faults import each_fault, name_of
from tests.log.making import CHANNEL, open_log
from tests.log.packets import test_faults as packet_faults
from tests.node.logs import censuslife


class Layer(Files):
    """Real files, whose system calls fail as the loaded library was told."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def heal(self) -> None:
        """Let all further calls succeed."""
        self._library.fault_set(-1, 0, 0)


class Life(Protocol):
    """What log and recorder have in common here."""

    def live(self) -> None:
        """Do everything."""

    def check(self, where: str) -> None:
        """Compare what is there with what was said to be there."""


@contextmanager
def honestly() -> Iterator[None]:
    """Accept an error, unless it says that the log is damaged, which it is not."""
    try:
        yield
    except LogError as error:
        if error.fault in {LogFault.CORRUPT, LogFault.FOREIGN, LogFault.UNKNOWN}:
            raise AssertionError(str(error)) from error


def stored(root: Path, files: Any) -> test_faults.Life:
    """Write a log without a fault, with a segment, and with events that are not sealed."""
    life = test_faults.Life(root, files)
    life.live()
    life.seal_most()
    return life


class Reading:
    """A log that was written without a fault, and is read while calls fail: right events, or LogError."""

    def __init__(self, root: Path, files: Any) -> None:
        self._life = stored(root, files)
        self._root, self._files = root, files

    def live(self) -> None:
        """Read in every way."""
        for read in (self._range, self._snapshot, self._verify):
            with honestly():
                read()

    def check(self, where: str) -> None:
        """Read again, now that nothing fails."""
        self._files.heal()
        for read in (self._range, self._snapshot, self._verify):
            read()
        self._life.check(where)

    def _range(self) -> None:
        log = self._life.log
        assert log is not None
        found = [event.payload for event in log.read_range(log.first_seq, log.next_seq)]
        assert found == self._life.acknowledged[log.first_seq :]

    def _snapshot(self) -> None:
        snapshot = LogReader(self._root, CHANNEL).snapshot()
        assert [event.payload for event in snapshot.events()] == self._life.acknowledged[snapshot.first :]

    def _verify(self) -> None:
        log = self._life.log
        assert log is not None
        assert log.verify() == [], "damage was reported where there is none"


class Reopening:
    """A log that was written and closed without a fault, and is opened while calls fail."""

    def __init__(self, root: Path, files: Any) -> None:
        self._life = stored(root, files)
        self._root, self._files = root, files
        assert self._life.log is not None
        self._life.log.close()
        self._stored = range(self._life.log.first_seq, self._life.log.next_seq)

    def live(self) -> None:
        """Open it, and compare if that was possible."""
        with honestly():
            self._compare()

    def check(self, where: str) -> None:
        """Open it again, now that nothing fails."""
        self._files.heal()
        self._compare(where)

    def _compare(self, where: str = "") -> None:
        with open_log(self._root, files=self._files) as log:
            assert range(log.first_seq, log.next_seq) == self._stored, where
            found = [event.payload for event in log.read_range(log.first_seq, log.next_seq)]
            assert found == self._life.acknowledged[log.first_seq :], where


LIVES: dict[str, Callable[[Path, Any], Life]] = {
    "log": test_faults.Life,
    "reading": Reading,
    "reopening": Reopening,
    "recorder": packet_faults.Life,
    "replica": test_replicated_faults.Life,
    "census": censuslife.Life,
}


def play(kind: str, root: Path, every: int) -> set[str]:
    """Live with one in `every` faults; return the kinds of calls that failed."""
    library = ctypes.CDLL(None, use_errno=True)
    library.fault_calls.restype = ctypes.c_long
    library.fault_hit.restype = ctypes.c_char_p
    library.fault_set.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int]
    library.fault_root(str(root).encode())
    make = LIVES[kind]
    hit: set[str] = set()

    def live(error: int, at: int, *, lasting: bool) -> int:
        life = make(root, Layer(library))
        library.fault_set(at, error, lasting)
        life.live()
        calls, found = int(library.fault_calls()), library.fault_hit().decode()
        hit.add(found.partition(" ")[0])
        life.check(f"{name_of(error, lasting=lasting)} at {found or at}")
        gc.collect()  # maps and handles of a life that failed, before its folder goes
        shutil.rmtree(root)
        return calls

    for error, lasting, at in each_fault(live(errno.EIO, -1, lasting=False), every):
        live(error, at, lasting=lasting)
    return hit - {""}


if __name__ == "__main__":
    sys.stdout.write(" ".join(sorted(play(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))))
