"""Shapes of fleets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.testing.topology import Links, distances, grid, line, random_graph, ring, size_of, tree


@pytest.mark.parametrize(
    ("links", "nodes", "count", "furthest"),
    [
        (line(5), 5, 4, 4),
        (ring(6), 6, 6, 3),
        (grid(4, 3), 12, 17, 5),
        (tree(7), 7, 6, 2),
        (tree(13, branches=3), 13, 12, 2),
        (line(1), 0, 0, 0),
    ],
)
def test_shapes_have_the_nodes_and_links_they_should(links: Links, nodes: int, count: int, furthest: int) -> None:
    assert (size_of(links), len(links)) == (nodes, count)
    hops = distances(links, 0)
    assert len(hops) == max(nodes, 1)
    assert max(hops.values()) == furthest
    assert all(one < other for one, other in links)


@given(st.integers(2, 60), st.integers(0, 100))
def test_random_graphs_are_connected_and_repeatable(count: int, seed: int) -> None:
    links = random_graph(count, seed)
    assert links == random_graph(count, seed)
    assert set(distances(links, 0)) == set(range(count))


def test_what_is_gone_passes_nothing_on() -> None:
    assert distances(ring(6), 0, without=frozenset({1})) == {0: 0, 5: 1, 4: 2, 3: 3, 2: 4}
    assert distances(line(4), 0, without=frozenset({1})) == {0: 0}
