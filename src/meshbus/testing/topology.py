"""Network topologies for simulations: links between nodes, and distances.

A topology is a set of links between nodes numbered from 0; distances are in hops.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

Link = tuple[int, int]
Links = frozenset[Link]


def line(count: int) -> Links:
    """Return a line: each node is linked with the next one."""
    return _links((number, number + 1) for number in range(count - 1))


def ring(count: int) -> Links:
    """Return a line whose ends are linked."""
    return line(count) | _links([(count - 1, 0)])


def grid(width: int, height: int) -> Links:
    """Return a grid: each node is linked with its neighbors to the left and right, above and below."""
    across = ((y * width + x, y * width + x + 1) for y in range(height) for x in range(width - 1))
    down = ((y * width + x, (y + 1) * width + x) for y in range(height - 1) for x in range(width))
    return _links(across) | _links(down)


def tree(count: int, branches: int = 2) -> Links:
    """Return a tree: each node is linked with its parent."""
    return _links((number, (number - 1) // branches) for number in range(1, count))


def random_graph(count: int, seed: int, *, extra: float = 0.5) -> Links:
    """Return a random connected graph: a random tree, and `extra` more links per node."""
    chance = random.Random(f"graph {seed}")  # noqa: S311  repeatable, not secret
    # Linking each node with an earlier one gives a tree, so the graph is connected.
    links = {(number, chance.randrange(number)) for number in range(1, count)}
    for _ in range(int(extra * count)):
        links.add((chance.randrange(count), chance.randrange(count)))
    return _links(link for link in links if link[0] != link[1])


def size_of(links: Iterable[Link]) -> int:
    """Return the number of nodes of a topology."""
    return max((max(link) for link in links), default=-1) + 1


def distances(links: Iterable[Link], start: int, *, without: frozenset[int] = frozenset()) -> dict[int, int]:
    """Return the hops to each reachable node; nodes in `without` are treated as absent."""
    neighbors: dict[int, set[int]] = {}
    for one, other in links:
        neighbors.setdefault(one, set()).add(other)
        neighbors.setdefault(other, set()).add(one)
    hops = {start: 0}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for further in sorted(neighbors.get(node, ())):
            if further not in hops and further not in without:
                hops[further] = hops[node] + 1
                waiting.append(further)
    return hops


def _links(links: Iterable[Link]) -> Links:
    return frozenset((min(link), max(link)) for link in links)
