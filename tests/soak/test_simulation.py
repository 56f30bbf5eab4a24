"""Simulated fleets for longer: thousands of fault schedules, every single failure of more shapes, a thousand nodes."""

from __future__ import annotations

import pytest

from meshbus.testing.topology import Links, grid, line, random_graph, ring, tree
from tests.seeds import for_each_seed
from tests.testing.schedules import play_failure, play_schedule, single_failures
from tests.testing.test_simulation import check_sample

pytestmark = pytest.mark.soak


@for_each_seed(range(1000, 3000))
def test_fleets_live_through_thousands_of_fault_schedules(seed: int) -> None:
    play_schedule(seed)


@pytest.mark.parametrize("links", [grid(3, 3), ring(12), line(7), tree(7), random_graph(10, 4)])
def test_every_single_failure_of_more_shapes_heals(links: Links) -> None:
    for kind, what in single_failures(links):
        play_failure(links, kind, what)


@pytest.mark.parametrize("links", [line(1000), ring(1000), grid(40, 25), random_graph(1000, 7)])
def test_a_thousand_nodes_of_every_shape_talk(links: Links) -> None:
    check_sample(links, 40)
