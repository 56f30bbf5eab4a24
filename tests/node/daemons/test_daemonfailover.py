"""A daemon whose node is killed or stopped goes on elsewhere: its outputs are those of one that ran alone, in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.node.daemons.failoverfleet import FailoverFleet, failover_fleet

pytestmark = pytest.mark.slow


def kill_owner(fleet: FailoverFleet, batches: int, chance: random.Random) -> None:
    """Kill the node of the daemon while another one publishes; bring it back when a third one has continued."""
    owner = fleet.wait_for_owner()
    publisher = chance.choice([one for one in fleet.nodes if one is not owner])
    before = fleet.fed
    fleet.feed(publisher, batches)
    goal = before + chance.randrange(1, batches // 2)
    fleet.wait(lambda: publisher.fed >= goal, "some batches")
    fleet.lose_owner(owner)
    fleet.wait_for_owner(other_than=owner)
    fleet.wait(lambda: publisher.fed == fleet.fed, "all batches")
    fleet.wait_for_all()
    fleet.bring_back(owner)


def test_a_daemon_whose_nodes_are_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    chance = random.Random(3)
    with failover_fleet(tmp_path) as fleet:
        fleet.feed(fleet.nodes[0], 5)
        fleet.wait_for_all()
        for _ in range(2):
            kill_owner(fleet, 40, chance)
        fleet.finish_failover()


@pytest.mark.soak
def test_an_owner_that_comes_back_when_its_successor_dies_does_not_go_on_from_its_old_checkpoint(
    tmp_path: Path,
) -> None:
    with failover_fleet(tmp_path) as fleet:
        fleet.feed(fleet.nodes[0], 5)
        first = fleet.wait_for_all()
        fleet.lose_owner(first)
        second = fleet.wait_for_owner(other_than=first)
        (third,) = [one for one in fleet.nodes if one not in {first, second}]
        fleet.feed(third, 40)
        fleet.wait(lambda: third.fed == fleet.fed, "all batches")
        fleet.wait_for_all()
        fleet.lose_owner(second)
        first.start()
        fleet.feed(third, 40)
        fleet.wait_for_owner(other_than=second)
        fleet.wait_for_all()
        fleet.bring_back(second)
        fleet.finish_failover()


@pytest.mark.soak
def test_an_owner_that_was_stopped_for_longer_than_a_takeover_fences_itself(tmp_path: Path) -> None:
    with failover_fleet(tmp_path) as fleet:
        fleet.feed(fleet.nodes[0], 5)
        owner = fleet.wait_for_all()
        with fleet.stopped(owner):
            fleet.wait_for_owner(other_than=owner)
        fleet.wait_for_fenced(owner)  # without any event
        owner = fleet.wait_for_owner()
        publisher = next(one for one in fleet.nodes if one is not owner)
        fleet.feed(publisher, 40)
        with fleet.stopped(owner):
            fleet.wait_for_owner(other_than=owner)
            fleet.wait_for_all()
        fleet.wait_for_fenced(owner)
        fleet.finish_failover()


@pytest.mark.soak
def test_a_daemon_whose_nodes_are_killed_many_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    for seed in range(5):
        chance, folder = random.Random(seed), tmp_path / str(seed)
        folder.mkdir()
        with failover_fleet(folder) as fleet:
            fleet.feed(fleet.nodes[0], 5)
            fleet.wait_for_all()
            for _ in range(12):
                kill_owner(fleet, chance.randrange(10, 200), chance)
            fleet.finish_failover()
