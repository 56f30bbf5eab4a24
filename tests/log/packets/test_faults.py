"""Storage faults at every call of a recorder: rows are written or counted as lost, and it goes on when the disk does."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from meshbus.errors import LogError
from meshbus.log.packets.recorder import PacketRecorder
from tests.log.faults import Faults, each_fault, name_of
from tests.log.packets.making import POLICY, counters, numbered, open_recorder

ROWS = 5


class Life:
    """A recorder that does everything, and the counters of what it said it wrote."""

    def __init__(self, root: Path, files: Faults) -> None:
        self.root, self.files = root, files
        self.recorder: PacketRecorder | None = None
        self.next = 0
        self.written: list[int] = []

    def live(self) -> None:
        self._try(self._open)
        for _ in range(2):
            self._take()
            self._try(lambda recorder: recorder.sync())
            self._take()
            self._try(lambda recorder: recorder.seal())
        self._take()
        self._try(lambda recorder: recorder.keep())

    def _open(self, _: Any = None) -> None:
        self.recorder = open_recorder(self.root, files=self.files)
        self.recorder.set_policy(POLICY, ())

    def _try(self, step: Callable[[Any], object]) -> None:
        if self.recorder is not None or step == self._open:
            with suppress(LogError):
                step(self.recorder)

    def _take(self) -> None:
        if self.recorder is None:
            return
        before = self.recorder.stats
        self.recorder.take(**numbered(self.next, ROWS))
        self.recorder.drain()
        after = self.recorder.stats
        written, lost = after.written - before.written, after.lost_disk - before.lost_disk
        assert written + lost == ROWS, "every row is written or counted as lost"
        self.written += range(self.next, self.next + written)
        self.next += ROWS

    def check(self, where: str) -> None:
        self.files.heal()
        if self.recorder is not None:
            there = len(self.written)
            self._take()
            assert len(self.written) == there + ROWS, f"{where}: it does not go on"
            self.recorder.sync()
            self.recorder.keep()
            assert counters(self.root) == self.written, where
            assert self.recorder.stats.damaged == 0, where
            self.recorder.close()
        self._open()
        assert self.recorder is not None
        self._take()
        self.recorder.seal()
        self.recorder.close()
        assert counters(self.root) == self.written, f"{where}, opened again"


def faults(folder: Path, every: int) -> Iterator[tuple[int, bool, int]]:
    plain = Life(folder / "plain", Faults())
    plain.live()
    plain.check("without a fault")
    return each_fault(len(plain.files.calls), every)


def play(folder: Path, every: int) -> None:
    for error, lasting, at in faults(folder, every):
        life = Life(folder / "one", Faults(at, error, lasting=lasting))
        life.live()
        life.check(f"{name_of(error, lasting=lasting)} at {life.files.hit or at}")
        shutil.rmtree(folder / "one")


def test_a_recorder_survives_any_fault_at_any_call(tmp_path: Path) -> None:
    play(tmp_path, every=11)


@pytest.mark.soak
def test_a_recorder_survives_every_fault_at_every_call(tmp_path: Path) -> None:
    play(tmp_path, every=1)


def flipped(folder: Path, every: int, seed: int) -> None:
    """Flip one bit of each file at many places: what is read is right, or an error says what is wrong."""
    life = Life(folder / "whole", Faults())
    life.live()
    assert life.recorder is not None
    life.recorder.close()
    rng = random.Random(seed)
    for path in sorted(path for path in (folder / "whole").rglob("*") if path.is_file()):
        content = path.read_bytes()
        for place in range(rng.randrange(every), len(content), every):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :])
            with suppress(LogError):
                found = counters(folder / "whole")
                assert set(found) <= set(life.written), f"{path.name} at {place}: a reader got something else"
            with suppress(LogError):  # a recorder that is opened on it goes on, or says why not
                open_recorder(shutil.copytree(folder / "whole", folder / "copy")).close()
            shutil.rmtree(folder / "copy", ignore_errors=True)
            path.write_bytes(content)


def test_a_flipped_bit_is_an_error_and_never_another_packet(tmp_path: Path) -> None:
    flipped(tmp_path, every=331, seed=1)


@pytest.mark.soak
def test_every_place_of_a_flipped_bit(tmp_path: Path) -> None:
    flipped(tmp_path, every=7, seed=2)
