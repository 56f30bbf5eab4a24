"""A loss of power at any step of a replica: what is found is the state after a prefix of its writes, and never less than
was synced; readers of other processes see committed events only.
"""

import copy
import random
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import Retention
from meshbus.log.reader import LogReader
from meshbus.log.replicated import ReplicatedLog
from tests.engine.replicas.memorydisk import Content
from tests.log.crash import Disk, Loss, Recorder, Unsynced, lay_out
from tests.log.making import CHANNEL, Clock
from tests.log.replicas import Author, carry_out, expected_of, found_in, open_replica
from tests.seeds import for_each_seed

SETTINGS: dict[str, Any] = {"seal_bytes": 700, "grace_s": 5.0, "retention": Retention(max_events=60)}


class Moment(NamedTuple):
    """What is promised from a step on."""

    step: int
    synced: int
    """Writes that were synced."""
    begun: int
    """Writes that were begun."""
    committed: int


class Life:
    """One life of a replica: its steps on the disk, its states, and its promises."""

    def __init__(self, folder: Path, rng: random.Random, length: int) -> None:
        self.author = Author(rng)
        self.states: list[Content] = [Content()]
        self.moments: list[Moment] = []
        self.synced = 0
        self.empty, life = folder / "empty", folder / "life"
        for place in (self.empty, life):
            place.mkdir()
        self.recorder = Recorder(life)
        self._live(life / "root", length)

    def _live(self, root: Path, length: int) -> None:
        rng, author, clock = self.author.rng, self.author, Clock()
        log = open_replica(root, files=self.recorder, clock=clock, **SETTINGS)
        for _ in range(length):
            match rng.randrange(10):
                case 0 | 1:
                    log.sync()
                    self.synced = len(self.states) - 1
                case 2:
                    log.commit_to(author.commit())
                case 3:
                    clock.forward(rng.choice((1, 10, 4_000)))
                    log.keep()
                    assert log.committed.stats.upkeep_failures == 0
                case 4 if rng.random() < 0.3:
                    log.close()
                    self.synced = len(self.states) - 1
                    self._promise(0)
                    log = open_replica(root, files=self.recorder, clock=clock, **SETTINGS)
                    assert not log.recovered.damaged, log.recovered.damage
                case _:
                    write = author.next_write()
                    self._promise(1)
                    carry_out(log, write)
                    author.apply(write)
                    self.states.append(copy.deepcopy(author.content))
                    self._compare_running(log)
            self._promise(0)
        log.close()

    def _promise(self, more: int) -> None:
        begun = len(self.states) - 1 + more
        self.moments.append(Moment(len(self.recorder.steps), self.synced, begun, self.author.committed))

    def _compare_running(self, log: ReplicatedLog) -> None:
        content = self.author.content
        assert log.tail == content.tail
        first = max(log.first_retained, content.first)
        if content.tail > first:
            assert log.read(first, 1 << 20, 1 << 30) == expected_of(content, first)["events"]

    def crash(self, step: int, loss: Loss, target: Path) -> None:
        """Leave the disk as after a step, and look at it."""
        disk = Disk(self.empty)
        for done in self.recorder.steps[:step]:
            disk.take(done)
        lay_out(disk.left(loss, self.author.rng), target)
        before = [moment for moment in self.moments if moment.step < step]
        after = [moment for moment in self.moments if moment.step >= step]
        synced = before[-1].synced if before else 0
        begun = after[0].begun if after else len(self.states) - 1
        self._check(target / "root", synced, begun, f"step {step}, {loss}")

    def _check(self, root: Path, synced: int, begun: int, where: str) -> None:
        self._check_readers(root, where)
        with open_replica(root, files=Unsynced(), **SETTINGS) as log:
            assert not log.recovered.damaged, f"{where}: {log.recovered.damage}"
            self._check_state(log, synced, begun, where)
            first, tail = log.first_retained, log.tail
            self._check_readers(root, f"{where}, opened")
            log.persist(b"goes on")
            log.append(1_000, tail, [b"goes", b"on"])
        with open_replica(root, files=Unsynced(), **SETTINGS) as log:
            assert log.recovered.ballot == b"goes on", where
            assert log.committed.report.clean, where
            assert log.read(first, 1 << 20, 1 << 30)[tail - first :] == (b"goes", b"on"), where

    def _check_state(self, log: ReplicatedLog, synced: int, begun: int, where: str) -> None:
        first = log.first_retained
        possible = [state for state in self.states[synced : begun + 1] if state.first <= first <= state.tail]
        found = found_in(log, first)
        differences = [differing(found, expected_of(state, first)) for state in possible]
        assert {} in differences, f"{where}, writes {synced} to {begun}: {differences}"

    def _check_readers(self, root: Path, where: str) -> None:
        try:
            events = list(LogReader(root, CHANNEL).snapshot().events())
        except LogError as error:
            assert error.fault is LogFault.UNKNOWN, where  # noqa: PT017 - it need not be raised
            return
        wrong = [event.seq for event in events if self.author.fixed.get(event.seq) != event.payload]
        assert not wrong, f"{where}: a reader sees {wrong}, which are not committed"


def differing(found: dict[str, object], expected: dict[str, object]) -> dict[str, object]:
    """Return where two states differ."""
    return {name: (value, expected[name]) for name, value in found.items() if value != expected[name]}


def play(rng: random.Random, length: int, crashes: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        life = Life(folder, rng, length)
        for number in range(crashes):
            loss = rng.choice([*Loss, Loss.RANDOM, Loss.RANDOM])
            life.crash(rng.randint(1, len(life.recorder.steps)), loss, folder / f"crash{number}")


@given(rng=st.randoms(use_true_random=False), length=st.integers(1, 60))
@settings(max_examples=12, deadline=None)
def test_what_a_loss_of_power_leaves_is_a_prefix_of_the_writes(rng: random.Random, length: int) -> None:
    play(rng, length, crashes=6)


@for_each_seed(range(6))
def test_long_lives_lose_nothing_that_was_synced(seed: int) -> None:
    play(random.Random(seed), length=70, crashes=10)


@pytest.mark.soak
@for_each_seed(range(1_000))
def test_many_lives_lose_nothing_that_was_synced(seed: int) -> None:
    play(random.Random(seed), length=90, crashes=25)
