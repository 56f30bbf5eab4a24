"""Storage faults at every call: nothing but LogError, nothing acknowledged is lost or changed, and it goes on.

One scenario does everything that a log does. It is repeated with each fault at each call to the file layer, with the
fault once and with the fault until the disk is healed. Losses by a crash are in test_crash.py.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from meshbus.errors import LogError
from meshbus.log.durability import Retention, every_n
from meshbus.log.log import RedexFile
from meshbus.log.reader import LogReader
from tests.log.crash import Unsynced
from tests.log.faults import Faults, each_fault, name_of
from tests.log.making import CHANNEL, Clock, numbered, open_log

EVERY_KIND = {
    "make_folder",
    "create",
    "reopen",
    "write",
    "truncate",
    "fsync",
    "rename",
    "remove",
    "fsync_folder",
    "lock",
}


class Life:
    """A log that does everything, and what it acknowledged."""

    def __init__(self, root: Path, files: Faults) -> None:
        self.root, self.files, self.clock = root, files, Clock()
        self.log: RedexFile | None = None
        self.acknowledged: list[bytes] = []
        self.refused = 0

    def live(self) -> None:
        self._try(self._open)
        if self.log is None:
            return
        for count in (1, 3, 1):
            self._try(self._append, count)
        for _ in range(3):
            self._try(self.log.seal)
            self._try(self._append, 2)
        self._try(self.log.compact)
        self._try(self._append, 9)  # a full hot file: the next append begins another
        self._try(self._append, 2)
        for _ in range(2):
            self.clock.forward(60)
            self.log.keep()
            self._try(self._append, 1)

    def seal_most(self) -> None:
        """Seal what there is, and append a little more."""
        assert self.log is not None
        self.log.seal()
        self._append(2)

    def _open(self) -> None:
        self.log = open_log(
            self.root,
            files=self.files,
            clock=self.clock,
            fsync=every_n(1),
            seal_bytes=600,
            grace_s=5,
            retention=Retention(max_events=14),
        )

    def _append(self, count: int) -> None:
        log = self.log
        assert log is not None
        events = numbered(log.next_seq, count)
        before = log.next_seq
        try:
            log.append_batch(events)
        except LogError:
            # A refused sync: the events may be there, but nobody was told so.
            self.acknowledged += events[: log.next_seq - before]
            raise
        self.acknowledged += events

    def _try(self, step: Callable[..., object], *arguments: int) -> None:
        try:
            step(*arguments)
        except LogError:
            self.refused += 1

    def check(self, where: str) -> None:
        """Compare what can be read with what was acknowledged: as it is, without a restart, and after one."""
        self.files.heal()
        if self.log is not None:
            self._compare(self.log, where)
            if not self.log.failed:  # otherwise whoever uses it opens it again, as below
                self._append(1)  # the cause is gone, so it goes on
                self.log.keep()
                self._compare(self.log, where)
            with suppress(LogError):
                self.log.close()
        self._open()
        assert self.log is not None
        self._compare(self.log, f"{where}, opened again")
        assert self.log.verify() == [], where
        self._append(1)
        self.log.keep()
        self._compare(self.log, f"{where}, opened again")
        self.log.close()

    def _compare(self, log: RedexFile, where: str) -> None:
        assert log.next_seq == len(self.acknowledged), where
        found = [event.payload for event in log.read_range(log.first_seq, log.next_seq)]
        assert found == self.acknowledged[log.first_seq :], where
        if not log.closed:
            # A manifest that was renamed but not synced is not used by the writer; others see already what expired.
            snapshot = LogReader(self.root, CHANNEL).snapshot()
            seen = [event.payload for event in snapshot.events()]
            assert snapshot.first >= log.first_seq, where
            assert seen == self.acknowledged[snapshot.first :], f"{where}: another process reads something else"


def faults(every: int, folder: Path) -> Iterator[tuple[int, bool, int]]:
    """Each fault, once and lasting, at each call of the scenario."""
    plain = Life(folder / "plain", Faults())
    plain.live()
    assert plain.refused == 0
    plain.check("without a fault")
    assert set(plain.files.calls) == EVERY_KIND
    return each_fault(len(plain.files.calls), every)


def play(folder: Path, every: int) -> None:
    for error, lasting, at in faults(every, folder):
        root = folder / "one"
        life = Life(root, Faults(at, error, lasting=lasting))
        life.live()
        life.check(f"{name_of(error, lasting=lasting)} at {life.files.hit or at}")
        shutil.rmtree(root)


def test_a_log_survives_any_fault_at_any_call(tmp_path: Path) -> None:
    play(tmp_path, every=9)


@pytest.mark.soak
def test_a_log_survives_every_fault_at_every_call(tmp_path: Path) -> None:
    play(tmp_path, every=1)


def flipped(folder: Path, every: int, seed: int) -> None:
    """Flip one bit of each file at many places: what is read is right, or an error says what is wrong."""
    life = Life(folder / "whole", Faults())
    life.live()
    assert life.log is not None
    first, end = life.log.first_seq, life.log.next_seq
    life.log.close()
    rng = random.Random(seed)
    files = sorted(path for path in (folder / "whole").rglob("*") if path.is_file())
    for path in files:
        content = path.read_bytes()
        for place in range(rng.randrange(every), len(content), every):
            damaged = bytearray(content)
            damaged[place] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            check_flip(folder / "whole", life.acknowledged, range(first, end), f"{path.name} at {place}")
            path.write_bytes(content)


def check_flip(root: Path, acknowledged: list[bytes], stored: range, where: str) -> None:
    found: list[bytes] = []
    with suppress(LogError):
        # One by one: what came before the error counts.
        found.extend(event.payload for event in LogReader(root, CHANNEL).snapshot().events())
    assert found == acknowledged[stored.start : stored.start + len(found)], f"{where}: a reader got something else"
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    with suppress(LogError), open_log(copy, files=Unsynced()) as log:
        assert stored.start <= log.next_seq <= stored.stop, where
        log.verify()
    shutil.rmtree(copy)


def test_a_flipped_bit_is_an_error_and_never_another_event(tmp_path: Path) -> None:
    flipped(tmp_path, every=151, seed=1)


@pytest.mark.soak
def test_every_place_of_a_flipped_bit(tmp_path: Path) -> None:
    flipped(tmp_path, every=7, seed=2)
