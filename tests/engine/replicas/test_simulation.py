"""Members in a world of faults: nothing acknowledged is lost, whatever fails (tests/engine/replicas/story.py).

A seed that fails is named by the test; `python -m tests.engine.replicas.story <seed>` plays it again.
"""

from __future__ import annotations

from unittest import mock

import pytest

from meshbus.engine.replicas import candidacy, pacing
from meshbus.errors import MeshError
from tests.engine.replicas.checker import Violation
from tests.engine.replicas.mutants import PATCHES, broken
from tests.engine.replicas.story import play
from tests.engine.replicas.world import World
from tests.seeds import for_each_seed

PLAIN_TO_SEE = [
    "acknowledges before the disk has it",
    "commits with one copy",
    "leads without copying the best log",
    "does not compare the event before",
    "answers reads without a majority",
    "commits old events by counting copies",
]
"""Bugs that a few seeds show; tests/soak searches longer for the others."""


@for_each_seed(range(20))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    play(seed)


@pytest.mark.slow
@for_each_seed(range(20, 200))
def test_nothing_acknowledged_is_lost_in_many_worlds(seed: int) -> None:
    play(seed)


@for_each_seed(range(10))
def test_nothing_acknowledged_is_lost_when_every_candidate_with_a_shorter_log_lets_another_lead(seed: int) -> None:
    play_generous(seed)


def test_candidates_let_others_lead_in_many_of_these_worlds() -> None:
    assert sum("Transfer" in play_generous(seed).kinds for seed in range(200, 210)) > 2


def play_generous(seed: int) -> World:
    """Play a world in which one missing event makes a candidate ask another member to lead, and a few make appends wait."""
    with mock.patch.object(candidacy, "FAR_BEHIND", 0), mock.patch.object(pacing, "PACE_BYTES", 20):
        return play(seed)


def test_the_same_seed_is_the_same_history() -> None:
    first, second = play(3), play(3)
    assert first.checker == second.checker
    assert first.messages == second.messages


@pytest.mark.slow
def test_worlds_are_full_of_faults_and_of_progress() -> None:
    worlds = [play(seed) for seed in range(200, 230)]
    assert {kind for world in worlds for kind in world.kinds} == {
        "Propose", "Promise", "Stale", "Stored", "Fetch", "Data", "Configure",
    }  # fmt: skip
    contents = [host.disk.content for world in worlds for host in world.hosts.values()]
    assert sum(len(world.checker.acknowledged) for world in worlds) > 1000
    assert sum(world.checker.reads for world in worlds) > 100
    assert sum(len(world.checker.leaders) for world in worlds) > 60
    assert any(content.aside for content in contents)
    assert any(content.gaps for content in contents)


@pytest.mark.parametrize("bug", PLAIN_TO_SEE)
def test_a_deliberate_bug_is_found(bug: str) -> None:
    assert find(bug, range(40)) is not None


def find(bug: str, seeds: range) -> int | None:
    """Return the first seed that shows a bug as a broken promise, or None."""
    assert bug in PATCHES
    for seed in seeds:
        with broken(bug):
            try:
                play(seed)
            except Violation:
                return seed
            except (AssertionError, LookupError, MeshError):
                # A bug may also break a world in other ways, which proves less.
                continue
    return None
