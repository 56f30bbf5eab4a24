"""A daemon that moves through a world of faults does what one that never moves does (tests/compute/migration/story.py).

A seed that fails is named by the test; `python -m tests.compute.migration.story <seed>` plays it again.
"""

from __future__ import annotations

import pytest

from meshbus.compute.migration.base import Phase
from meshbus.errors import MeshError
from tests.compute.migration.heldworld import HeldWorld
from tests.compute.migration.mutants import PATCHES, broken
from tests.compute.migration.story import MOVES, play
from tests.compute.migration.world import Violation, World
from tests.seeds import for_each_seed

HARD_TO_SEE = {"takes two snapshots in one attempt", "stages snapshots of the past"}
"""Bugs that need a rare coincidence; tests/soak searches longer for them."""


@for_each_seed(range(20))
def test_nothing_is_lost_or_done_twice(seed: int) -> None:
    assert play(seed).moved >= MOVES


def test_the_same_seed_is_the_same_history() -> None:
    first, second = (play(3, events=500, moves=10) for _ in range(2))
    assert [machine.output for machine in first.machines.values()] == [
        machine.output for machine in second.machines.values()
    ]
    assert first.counters.snapshot() == second.counters.snapshot()


def test_worlds_are_full_of_faults_and_of_progress() -> None:
    worlds = [play(seed, events=1000, moves=15) for seed in range(30, 50)]
    # An orchestrator passes RESTORE at once, so that no crash finds it there.
    phases = set(Phase) - {Phase.RESTORE}
    crashed = {phase: sum(world.crashed.get(phase, 0) for world in worlds) for phase in phases}
    assert min(crashed.values()) > 0, f"crashes by phase: {crashed}"
    assert sum(world.failed for world in worlds) > 50
    counted = {name for world in worlds for names in world.counters.snapshot().values() for name in names}
    assert {"migration_stale", "migration_unexpected", "migration_busy", "migration_state"} <= counted


@for_each_seed(range(6))
def test_the_history_of_the_daemon_is_one_chain_on_all_machines(seed: int) -> None:
    assert play(seed, events=1000, moves=20, kind=HeldWorld).moved >= 20


def test_two_owners_are_a_violation() -> None:
    world = World(1, 10)
    first, second = world.machines[1], world.machines[2]
    second.store.records |= first.store.records
    with pytest.raises(Violation, match="belongs to"):
        world.owner()


@pytest.mark.parametrize("bug", sorted(PATCHES.keys() - HARD_TO_SEE))
def test_a_deliberate_bug_is_found(bug: str) -> None:
    assert find(bug, range(60)) is not None


def find(bug: str, seeds: range) -> int | None:
    """Return the first seed that shows a bug as a broken promise, or None."""
    for seed in seeds:
        with broken(bug):
            try:
                play(seed, events=1000, moves=20)
            except Violation:
                return seed
            except (AssertionError, LookupError, MeshError):
                # A bug may also break a world in other ways, which proves less.
                continue
    return None
