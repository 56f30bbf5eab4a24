"""A disk that fails at any call of a replica, and bits that flip in any of its files.

What was synced stays, a failed write changes nothing or ends all writing, and no reader ever sees another event.
"""

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import Retention
from meshbus.log.reader import LogReader
from meshbus.log.replicated import ReplicatedLog
from tests.log.crash import Unsynced
from tests.log.faults import Faults, each_fault, name_of
from tests.log.making import CHANNEL, Clock, numbered
from tests.log.replicas import open_replica

SETTINGS = {"seal_bytes": 500, "grace_s": 5.0, "retention": Retention(max_events=60)}


class Life:
    """A replica that does everything, on a disk that may fail; `events` is what it holds as far as writes succeeded."""

    def __init__(self, root: Path, files: Faults) -> None:
        self.root, self.files, self.clock = root, files, Clock()
        self.log: ReplicatedLog | None = None
        self.events: list[bytes] = []
        self.ballot: bytes | None = None
        self.first = 0
        self.set_aside: list[bytes] = []
        self.fixed: dict[int, bytes] = {}
        self.refused = 0

    def live(self) -> None:
        self._open()
        self._do("persist", b"first")
        for _ in range(4):
            self._append(1, 10)
        self._do("sync")
        self._commit(25)
        self._keep()
        self._do("persist", b"second")
        self._append(2, 5)
        self._cut(32)
        self._append(3, 20)
        self._do("sync")
        self._commit(50)
        self._keep()
        if self.log is not None:
            with suppress(LogError):
                self.log.close()
        self._open()
        self._append(4, 30)
        self._cut(60)
        self._append(5, 8)
        self._do("sync")
        self._commit(64)
        self._keep()

    def _open(self) -> None:
        self.log = None
        with suppress(LogError):
            self.log = open_replica(self.root, files=self.files, clock=self.clock, **SETTINGS)
        self.refused += self.log is None

    def _do(self, name: str, *arguments: object) -> bool:
        if self.log is None:
            return False
        try:
            getattr(self.log, name)(*arguments)
        except LogError:
            self.refused += 1
            return False
        if name == "persist":
            (ballot,) = arguments
            assert isinstance(ballot, bytes)
            self.ballot = ballot
        return True

    def _append(self, epoch: int, count: int) -> None:
        events = [b"%d:%s" % (epoch, event) for event in numbered(len(self.events), count)]
        if self._do("append", epoch, len(self.events), events):
            self.events += events

    def _cut(self, seq: int) -> None:
        if len(self.events) > seq and self._do("set_aside", seq):
            self.set_aside += self.events[seq:]
            del self.events[seq:]

    def _commit(self, tail: int) -> None:
        tail = min(tail, len(self.events))
        self.fixed |= dict(enumerate(self.events[:tail]))
        self._do("commit_to", tail)

    def _keep(self) -> None:
        self.clock.forward(4_000)
        if self.log is not None:
            self.log.keep()

    def check(self, where: str) -> None:
        """Compare what is there with what was written: as it is, and after the cause is gone and it was opened again."""
        self.files.heal()
        if self.log is not None:
            self._compare(self.log, where)
            with suppress(LogError):
                self.log.close()
        self._open()
        assert self.log is not None, where
        assert not self.log.recovered.damaged, f"{where}: {self.log.recovered.damage}"
        assert self.log.recovered.ballot == self.ballot, where
        self._compare(self.log, f"{where}, opened again")
        found = [event.payload for one in self.log.asides() for event in self.log.read_aside(one)]
        assert sorted(found) == sorted(self.set_aside), where
        assert self.log.committed.verify() == [], where
        self._append(9, 3)
        self._do("sync")
        self._compare(self.log, f"{where}, opened again")
        self.log.close()

    def _compare(self, log: ReplicatedLog, where: str) -> None:
        first = log.first_retained
        assert log.tail == len(self.events), where
        assert log.read(first, 999, 1 << 20) == tuple(self.events[first:]), where
        check_readers(self.root, self.fixed, where)


def check_readers(root: Path, fixed: dict[int, bytes], where: str) -> None:
    with suppress(LogError):
        # One by one: what came before the error counts.
        for event in LogReader(root, CHANNEL).snapshot().events():
            assert fixed.get(event.seq) == event.payload, f"{where}: a reader got {event.seq}, which is not committed"


def faults(every: int, folder: Path) -> Iterator[tuple[int, bool, int]]:
    plain = Life(folder / "plain", Faults())
    plain.live()
    assert plain.refused == 0
    plain.check("without a fault")
    return each_fault(len(plain.files.calls), every)


def play(folder: Path, every: int) -> None:
    for error, lasting, at in faults(every, folder):
        life = Life(folder / "one", Faults(at, error, lasting=lasting))
        life.live()
        life.check(f"{name_of(error, lasting=lasting)} at {life.files.hit or at}")
        shutil.rmtree(folder / "one")


def test_a_replica_survives_any_fault_at_any_call(tmp_path: Path) -> None:
    play(tmp_path, every=41)


@pytest.mark.soak
def test_a_replica_survives_every_fault_at_every_call(tmp_path: Path) -> None:
    play(tmp_path, every=1)


def flipped(folder: Path, every: int, seed: int) -> None:
    """Flip one bit of each file at many places: the replica opens, and has no other events than it had."""
    life = Life(folder / "whole", Faults())
    life.live()
    assert life.log is not None
    life.log.close()
    first, rng, damaged = life.log.first_retained, random.Random(seed), 0
    for path in sorted(path for path in (folder / "whole").rglob("*") if path.is_file()):
        content = path.read_bytes()
        for place in range(rng.randrange(every), len(content), every):
            changed = bytearray(content)
            changed[place] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            where = f"{path.name} at {place}"
            check_readers(folder / "whole", life.fixed, where)
            damaged += check_flip(folder / "whole", life, first, where)
            path.write_bytes(content)
    assert damaged, "some of it was noticed at once"


def check_flip(root: Path, life: Life, first: int, where: str) -> bool:
    """Open a copy; return whether it was found to be damaged."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    try:
        with open_replica(copy, files=Unsynced()) as log:
            tail = log.tail
            assert tail == len(life.events) or log.recovered.damaged, f"{where}: events are gone and nobody was told"
            assert log.recovered.ballot == life.ballot or log.recovered.damaged, where
            with suppress(LogError):
                found = log.read(first, 999, 1 << 20) if tail > first else ()
                # Events that were set aside may be there again: a damaged replica follows, and sets them aside again.
                stale = set(life.set_aside) if log.recovered.damaged else set()
                wrong = [
                    one for one, right in zip(found, life.events[first:], strict=False) if one not in {right, *stale}
                ]
                assert not wrong, where
            check_readers(copy, life.fixed, where)
            return log.recovered.damaged
    except LogError as error:
        assert error.fault is LogFault.NEWER, f"{where}: {error}"  # noqa: PT017 - it need not be raised
        return False
    finally:
        shutil.rmtree(copy)


def test_a_flipped_bit_is_damage_and_never_another_event(tmp_path: Path) -> None:
    flipped(tmp_path, every=577, seed=1)


@pytest.mark.soak
def test_every_place_of_a_flipped_bit(tmp_path: Path) -> None:
    flipped(tmp_path, every=7, seed=2)
