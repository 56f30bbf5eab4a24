"""A daemon moves between real processes while nodes are killed: its state and its outputs are those of one that ran alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.node.daemons.daemonfleet import DaemonFleet, Process, daemon_fleet

pytestmark = pytest.mark.slow


class Death(NamedTuple):
    """Who dies, and at which write of its records."""

    who: str
    operation: str
    what: str
    before: bool


DEATHS = [
    Death("source", "mark", "moved", before=True),
    Death("source", "mark", "moved", before=False),
    Death("target", "save", "staged", before=False),
    Death("target", "mark", "active", before=True),
    Death("target", "mark", "active", before=False),
    Death("orchestrator", "decide", "hand_over", before=False),
    Death("orchestrator", "decide", "begin", before=True),
    Death("orchestrator", "decide", "begin", before=False),
]
FEW = [DEATHS[1], DEATHS[4], DEATHS[5]]


def feed(fleet: DaemonFleet, events: int) -> None:
    fleet.nodes[0].do("publish", events, 20, 0.01)


def moves(fleet: DaemonFleet, count: int) -> None:
    """Move the daemon back and forth, driven by every node in turn."""
    for number in range(count):
        owner = fleet.nodes[1 + number % 2]
        target = fleet.nodes[2 - number % 2]
        driver = fleet.nodes[number % len(fleet.nodes)]
        before = driver.moved
        fleet.move(driver, target)
        fleet.wait(lambda driver=driver, before=before: driver.moved > before or bool(driver.failed), f"move {number}")  # type: ignore[misc]
        assert not driver.failed, (driver.failed, owner.number)


def die(fleet: DaemonFleet, death: Death) -> None:
    """Let one node die in a move, start it again, and wait until the daemon runs on exactly one node."""
    fleet.wait(fleet.is_quiet, "the daemon to run")
    source = fleet.owner()
    assert source is not None
    target = next(node for node in fleet.nodes[1:] if node is not source)
    roles: dict[str, Process] = {"source": source, "target": target, "orchestrator": fleet.nodes[0]}
    victim = roles[death.who]
    victim.do("die", death.operation, death.what, death.before)
    fleet.move(fleet.nodes[0], target)
    victim.buried()
    victim.status = {}
    victim.start()
    fleet.wait(fleet.is_connected, "sessions")
    fleet.wait(fleet.is_quiet, f"the daemon to run after {death}")


def test_a_daemon_that_moves_on_a_bad_network_counts_as_one_that_does_not(tmp_path: Path) -> None:
    events = 2_000
    with daemon_fleet(tmp_path) as fleet:
        fleet.net.loss, fleet.net.duplication, fleet.net.delay_s = 0.02, 0.05, 0.005
        feed(fleet, events)
        moves(fleet, 8)
        fleet.finish(events)


def test_nodes_that_are_killed_in_a_move_lose_and_repeat_nothing(tmp_path: Path) -> None:
    events = 1_500
    with daemon_fleet(tmp_path) as fleet:
        for number, death in enumerate(FEW, 1):
            feed(fleet, number * events // 4)
            die(fleet, death)
        feed(fleet, events)
        fleet.finish(events)


@pytest.mark.soak
def test_nodes_that_are_killed_at_every_write_lose_and_repeat_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    deaths = [death for _ in range(5) for death in chance.sample(DEATHS, len(DEATHS))]
    with daemon_fleet(tmp_path) as fleet:
        for number, death in enumerate(deaths, 1):
            feed(fleet, 100 * number)
            die(fleet, death)
        feed(fleet, 100 * len(deaths) + 100)
        fleet.finish(100 * len(deaths) + 100)
