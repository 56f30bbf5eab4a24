"""Fleets on virtual time: who reaches whom, what failures do, and that a seed tells the same story twice."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from meshbus.engine.base.notices import PeerFailed
from meshbus.testing.fakenet import FakePath
from meshbus.testing.simulation import Simulation, SimulationError
from meshbus.testing.topology import Links, distances, grid, line, random_graph, ring, size_of, tree
from tests.seeds import for_each_seed
from tests.testing.schedules import play_failure, play_schedule, single_failures


def fleet(links: Links, seed: int = 1, keep: int | None = 1000) -> Simulation:
    """Build a fleet and give it the two pingwave intervals that it may take to know itself."""
    sim = Simulation(seed=seed, keep=keep)
    sim.build(links)
    sim.run(for_s=2 * sim.heartbeat_s)
    return sim


@pytest.mark.parametrize(
    "links",
    [line(20), ring(20), tree(20), random_graph(20, 1), pytest.param(grid(10, 5), marks=pytest.mark.slow)],
    ids=["line", "ring", "tree", "random", "grid of 50"],
)
def test_all_pairs_within_the_radius_talk_and_the_others_are_told_why_not(links: Links) -> None:
    sim = fleet(links)
    near = set(sim.within_radius())
    reasons = sim.talk(list(combinations(range(size_of(links)), 2)), within_s=1.0)
    assert {pair for pair, reason in reasons.items() if not reason} == near
    assert all("no route: it is down" in reason for pair, reason in reasons.items() if pair not in near)


@pytest.mark.slow
def test_sampled_pairs_of_a_thousand_nodes_talk() -> None:
    check_sample(tree(1000))


def check_sample(links: Links, count: int = 20) -> None:
    """Connect some pairs within the radius and some beyond it."""
    sim, chance = fleet(links), random.Random(5)
    pairs = []
    for _ in range(count):
        one = chance.randrange(size_of(links))
        hops = distances(links, one)
        for reach in (range(1, sim.radius + 1), range(sim.radius + 1, size_of(links))):
            others = [other for other, away in hops.items() if away in reach]
            pairs += [(one, chance.choice(others))] if others else []
    near = set(sim.within_radius(pairs))
    reasons = sim.talk(pairs, within_s=1.0)
    assert {pair for pair, reason in reasons.items() if not reason} == near
    assert all("unreachable" in reason for pair, reason in reasons.items() if pair not in near)


@pytest.mark.slow
def test_after_any_single_failure_all_who_are_still_connected_talk_again() -> None:
    links = ring(7)
    for kind, what in single_failures(links):
        play_failure(links, kind, what)


@pytest.mark.slow
@for_each_seed(range(50))
def test_fleets_live_through_fault_schedules(seed: int) -> None:
    play_schedule(seed)


def story(seed: int) -> tuple[str, str]:
    sim = Simulation(seed=seed, path=FakePath(loss=0.1, duplication=0.1, jitter_s=0.02, reordering=0.1), keep=None)
    sim.build(ring(5))
    sim.run(for_s=3)
    sim.crash(1)
    sim.run(for_s=4)
    sim.restart(1, memory=False)
    sim.unlink(2, 3)
    sim.talk([(0, 2), (1, 4)], within_s=5)
    sim.partition([0, 1], [2, 3, 4])
    sim.run(for_s=2)
    sim.heal()
    sim.run(for_s=2)
    return sim.transcript, sim.digest


def test_the_same_seed_tells_the_same_story_to_the_last_byte() -> None:
    one, same, other = story(3), story(3), story(4)
    assert one == same
    assert one[0] != other[0]
    assert one[1] != other[1]
    for words in (
        "crash 1",
        "restart 1 without its memory",
        "unlink 2 – 3",
        "partition",
        "heal",
        "pingwave of",
        "lost",
    ):
        assert words in one[0]


def test_a_broken_rule_names_the_seed_and_shows_what_happened() -> None:
    sim = Simulation(seed=42, rules=[lambda sim: "too late" if sim.now > 1.5 else ""])
    sim.build(line(3))
    with pytest.raises(
        SimulationError, match=r"seed 42 at .* s: too late; run it again with Simulation\(seed=42\)"
    ) as e:
        sim.run(for_s=5)
    assert e.value.at > 1.5
    assert "pingwave of" in str(e.value)
    assert len(str(e.value).splitlines()) > 10


def test_a_packet_that_may_go_on_forever_breaks_a_rule() -> None:
    sim = fleet(line(3))
    sim.net.inject("n0", "n1", b"RT\xff\x01" + bytes(14) + bytes(68))
    with pytest.raises(SimulationError, match="a packet may make 255 hops after 1"):
        sim.run(for_s=1)


def test_an_engine_that_raises_is_reported_with_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = fleet(line(2))
    monkeypatch.setattr(sim.node(1).engine.services, "tick", lambda *_: 1 / 0)
    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        sim.run(for_s=2)


@pytest.mark.parametrize("memory", [True, False])
def test_a_node_comes_back(memory: bool) -> None:
    sim = fleet(line(3))
    assert sim.talk([(0, 2)], within_s=1.0) == {(0, 2): ""}
    engine = sim.node(1).engine
    sim.crash(1)
    sim.run(for_s=10)
    assert engine.node_id in {failed.node_id for failed in sim.node(0).happened(PeerFailed)}
    assert sim.within_radius() == []
    sim.restart(1, memory=memory)
    assert (sim.node(1).engine is engine) is memory
    assert sim.node(1).node_id == engine.node_id
    sim.run(for_s=2 * sim.heartbeat_s)
    assert sim.talk([(0, 1), (0, 2), (2, 0)], within_s=1.0) == {(0, 1): "", (0, 2): "", (2, 0): ""}


def test_a_partition_separates_and_heals() -> None:
    sim = fleet(line(4))
    sim.partition([0, 1], [2, 3])
    sim.run(for_s=15)
    assert sim.talk([(0, 1), (0, 3)], within_s=1.0)[0, 3]
    sim.heal()
    sim.run(for_s=sim.healing_s)
    assert sim.talk([(0, 3)], within_s=1.0) == {(0, 3): ""}


def test_links_may_differ() -> None:
    sim = Simulation(seed=2)
    for number in range(3):
        sim.add(number)
    sim.link(0, 1, FakePath(latency_s=0.4))
    sim.link(1, 2)
    sim.run(for_s=3)
    graph = sim.node(0).engine.mesh.graph.get(sim.node(1).node_id)
    assert graph is not None
    assert 400_000 <= graph.latency_us < 410_000


def test_only_the_last_of_the_transcript_is_kept_and_all_of_it_is_summed_up() -> None:
    short, long = fleet(line(3), keep=10), fleet(line(3), keep=None)
    assert len(short.transcript.splitlines()) == 10
    assert long.transcript.endswith(short.transcript)
    assert short.digest == long.digest
