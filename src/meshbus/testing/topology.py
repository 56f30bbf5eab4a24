"""Shapes of fleets: who is linked with whom, and how far apart that leaves everyone.

A shape is a set of links between numbered nodes; distances are hops.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

Link = tuple[int, int]
Links = frozenset[Link]


def line(count: int) -> Links:
    """Link each node with the next one."""
    return _links((number, number + 1) for number in range(count - 1))


def ring(count: int) -> Links:
    """Close a line to a circle."""
    return line(count) | _links([(count - 1, 0)])


def grid(width: int, height: int) -> Links:
    """Link nodes with those beside and below them."""
    across = ((y * width + x, y * width + x + 1) for y in range(height) for x in range(width - 1))
    down = ((y * width + x, (y + 1) * width + x) for y in range(height - 1) for x in range(width))
    return _links(across) | _links(down)


def tree(count: int, branches: int = 2) -> Links:
    """Link each node with its parent."""
    return _links((number, (number - 1) // branches) for number in range(1, count))


def random_graph(count: int, seed: int, *, extra: float = 0.5) -> Links:
    """Link nodes at random so that all are connected; `extra` links for each node, beside those that this takes."""
    chance = random.Random(f"graph {seed}")  # noqa: S311  repeatable, not secret
    links = {(number, chance.randrange(number)) for number in range(1, count)}
    for _ in range(int(extra * count)):
        links.add((chance.randrange(count), chance.randrange(count)))
    return _links(link for link in links if link[0] != link[1])


def size_of(links: Iterable[Link]) -> int:
    """Count the nodes of a shape: they are numbered from 0."""
    return max((max(link) for link in links), default=-1) + 1


def distances(links: Iterable[Link], start: int, *, without: frozenset[int] = frozenset()) -> dict[int, int]:
    """Give how many hops each node that can be reached is away; nodes in `without` pass nothing on."""
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
