"""Kill -9 at random points of a replica's writer: the state is that after all writes that returned, or after one more."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from meshbus.log.reader import LogReader
from tests.children import child
from tests.engine.replicas.memorydisk import Content
from tests.house.tree import ROOT
from tests.log.killed_replica import author_of
from tests.log.making import CHANNEL
from tests.log.replicas import epochs_of, open_replica


def kill_often(root: Path, rounds: int, seed: int, longest_s: float = 0.15) -> int:
    """Kill the writer several times, check the replica after each, and return how many writes it has done."""
    rng, writes = random.Random(seed), 0
    tail = committed = 0
    with child(
        [sys.executable, "-m", "tests.log.killed_replica", str(root)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number in range(rounds):
            writer.stdin.write(f"{number} {tail} {committed} {rng.uniform(0, longest_s):.4f}\n")
            writer.stdin.flush()
            done = int(writer.stdout.readline())
            tail, committed = check(root, number, tail, committed, done)
            writes += done
        writer.stdin.close()
    return writes


def check(root: Path, number: int, tail: int, committed: int, done: int) -> tuple[int, int]:
    """Compare a replica with the writes of a round; return where the next round begins."""
    author = author_of(number, Content(first=tail), committed)
    states: list[tuple[object, ...]] = []
    for count in range(1, done + 2):
        author.apply(author.next_write())
        if count % 5 == 0 and count <= done:
            author.commit()
        if count >= done:
            states.append(described(author.content))
    events = list(LogReader(root, CHANNEL).snapshot().events())
    wrong = [one.seq for one in events if one.seq >= tail and author.fixed.get(one.seq) != one.payload]
    assert not wrong, f"round {number}: a reader sees {wrong}, which are not committed"
    with open_replica(root) as log:
        found = log.recovered
        assert not found.damaged, f"round {number}: {found.damage}"
        first = max(tail, found.first_retained)
        state = (found.tail, log.read(first, 1 << 20, 1 << 30), epochs_of(found.tail, first + 1, found.runs)[:-1])
        assert state in states, f"round {number}, after {done} writes"
        return found.tail, max(found.committed, tail)


def described(content: Content) -> tuple[object, ...]:
    epochs = epochs_of(content.tail, content.first + 1, content.recovered().runs)
    return content.tail, tuple(payload for _, payload in content.events), epochs[:-1]


@pytest.mark.slow
def test_twenty_deaths_of_a_replica(tmp_path: Path) -> None:
    assert kill_often(tmp_path / "root", 20, seed=4) >= 20


@pytest.mark.soak
def test_five_hundred_deaths_of_a_replica(tmp_path: Path) -> None:
    assert kill_often(tmp_path / "root", 500, seed=5)
