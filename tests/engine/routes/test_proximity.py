"""Proximity graph: nodes, edges, latencies, paths and scores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.routes import proximity
from meshbus.engine.routes.proximity import Abilities, ProximityGraph, smoothed
from meshbus.wire.pingwave import Health, Pingwave
from tests.vectors import load

EWMA: list[dict[str, Any]] = load("mesh")["routing_scenarios"]["ewma"]
SELF = 1


def wave(origin: int, *, seq: int = 1, hops: int = 0, at_us: int = 1_000_000, **fields: Any) -> Pingwave:
    return Pingwave(node_id=origin, seq=seq, hop_count=hops, timestamp_us=at_us, **fields)


def heard(graph: ProximityGraph, origin: int, sender: int, now: float = 0.0, **fields: Any) -> bool:
    delay_us = fields.pop("delay_us", 0)
    return graph.observe(wave(origin, **fields), sender, f"at {sender}", now, 1_000_000 + delay_us)


@pytest.mark.parametrize("row", EWMA)
def test_latencies_are_smoothed_as_the_other_side_does_it(row: dict[str, Any]) -> None:
    if not row.get("first_insert"):
        assert smoothed(row["prev"], row["sample"]) == row["latency_us"]
        return
    graph = ProximityGraph(SELF)
    heard(graph, 3, 2, hops=1, delay_us=row["sample"])
    edge = graph.edge(2, 3)
    assert edge is not None
    assert edge.latency_us == row["latency_us"]


@given(st.integers(0, 2**40), st.lists(st.integers(1, 2**40), max_size=20))
def test_a_latency_stays_between_its_samples(first: int, samples: list[int]) -> None:
    latency = first
    for sample in samples:
        latency = smoothed(latency, sample)
        assert 0 <= latency <= max(first, *samples) + 8


def test_the_shortest_copy_describes_a_node() -> None:
    graph = ProximityGraph(SELF)
    heard(graph, 9, 2, hops=3, delay_us=300)
    heard(graph, 9, 3, hops=1, delay_us=500)
    heard(graph, 9, 4, hops=2, delay_us=100, load=7)
    node = graph.get(9)
    assert node is not None
    assert (node.heard_from, node.hops, node.latency_us, node.load) == ("at 3", 2, 500, 7)


def test_abilities_follow_the_newest_version() -> None:
    graph = ProximityGraph(SELF)
    heard(graph, 9, 2, capability_version=2, gpu=1)
    heard(graph, 9, 2, seq=2, capability_version=1, gpu=0)
    node = graph.get(9)
    assert node is not None
    assert (node.abilities, node.last_seq) == (Abilities(capability_version=2, gpu=1), 2)


def test_a_path_has_the_fewest_hops() -> None:
    graph = ProximityGraph(SELF)
    for origin, sender, hops in ((2, 2, 0), (3, 3, 0), (4, 2, 1), (5, 3, 1), (4, 3, 2)):
        heard(graph, origin, sender, hops=hops)
    assert graph.path_to(5) == [3, 5]
    assert graph.path_to(4) in ([2, 4], [3, 4])
    assert graph.path_to(4, avoid=2) == [3, 4]
    assert graph.path_to(5, avoid=3) == []
    assert graph.path_to(77) == []
    assert graph.path_to(SELF) == []


def test_a_failed_neighbor_may_be_reached_through_another() -> None:
    graph = ProximityGraph(SELF)
    for origin, sender, hops in ((2, 2, 0), (3, 3, 0), (2, 3, 1)):
        heard(graph, origin, sender, hops=hops)
    assert graph.path_to(2) == [2]
    assert graph.path_to(2, avoid=2) == [3, 2]


def test_the_nearest_and_the_best() -> None:
    graph = ProximityGraph(SELF)
    heard(graph, 2, 2, delay_us=9_000)
    heard(graph, 3, 3, delay_us=2_000, health=Health.UNHEALTHY)
    heard(graph, 4, 4, delay_us=3_000, load=255)
    nearest, best = graph.nearest(), graph.best()
    assert nearest is not None
    assert best is not None
    assert (nearest.node_id, best.node_id) == (3, 2)
    chosen = graph.best(lambda node: node.node_id > 2)
    assert chosen is not None
    assert chosen.node_id == 4
    assert graph.nearest(lambda _node: False) is None


def test_without_a_latency_hops_count() -> None:
    graph = ProximityGraph(SELF)
    graph.seed(2, "at 2", 0.0)
    node = graph.get(2)
    assert node is not None
    assert (node.latency_us, node.hops, node.score) == (0, 1, 10.0)


def test_nodes_that_are_not_heard_are_removed() -> None:
    graph = ProximityGraph(SELF)
    heard(graph, 2, 2, now=0.0)
    heard(graph, 3, 2, now=50.0, hops=1)
    assert graph.sweep(91.0, 90.0) == 1
    assert (graph.get(2), graph.edge(SELF, 2) is not None, graph.edge(2, 3) is not None) == (None, True, True)
    assert graph.sweep(200.0, 90.0) == 1
    assert (len(graph), list(graph), graph._edges, graph._edge_count) == (0, [], {}, 0)


def test_an_edge_to_a_neighbor_is_written_once_a_second() -> None:
    graph = ProximityGraph(SELF)
    for now in (0.0, 0.5, 0.9, 1.2):
        heard(graph, 2, 2, now=now)
    edge = graph.edge(SELF, 2)
    assert edge is not None
    assert edge.seen_at == 1.2


def test_many_new_origins_displace_no_known_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proximity, "MAX_NODES", 3)
    monkeypatch.setattr(proximity, "MAX_EDGES", 2)
    graph = ProximityGraph(SELF)
    assert [heard(graph, origin, 2, hops=1) for origin in range(10, 16)] == [True] * 3 + [False] * 3
    assert (len(graph), graph._edge_count) == (3, 2)


def test_clocks_that_differ_give_no_negative_latency() -> None:
    graph = ProximityGraph(SELF)
    heard(graph, 3, 2, hops=1, at_us=2**63)
    node = graph.get(3)
    assert node is not None
    assert node.latency_us == 0


def test_a_latency_that_was_not_measured_is_not_zero() -> None:
    graph = ProximityGraph(SELF)
    graph.seed(2, "at 2", 0.0)
    heard(graph, 3, 3, delay_us=400)
    assert [graph.latency_to(node_id) for node_id in (2, 3, 4)] == [None, 400, None]


def test_a_node_with_another_id_keeps_its_place_in_the_graph() -> None:
    graph = ProximityGraph(1)
    graph.seed(2, "two", 0.0)
    graph.observe(Pingwave(node_id=3, seq=1, ttl=1, timestamp_us=0, hop_count=1), 2, "two", 0.0, 0)
    graph.rename(2, 9)
    assert graph.get(2) is None
    assert graph.path_to(3) == [9, 3]
    graph.rename(1, 8)  # this node itself
    assert graph.path_to(3) == [9, 3]
