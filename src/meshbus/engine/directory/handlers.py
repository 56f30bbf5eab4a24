"""Handlers: which nodes handle a subprotocol and match a filter, the nearest first (subprotocols.md §5).

A node announces a tag for each subprotocol that it handles. A message for whoever handles one therefore has a destination
without anybody knowing the node: the nearest that announced the tag and matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshbus.engine.directory.directory import Directory
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.registry import SubprotocolRegistry

Distance = Callable[[int], int | None]
"""Returns how far a node is, in microseconds, or None if that was not measured."""


def nearest_first(nodes: Iterable[int], distance: Distance) -> list[int]:
    """Return nodes by their distance; those of unknown distance come last, and equal ones in the order of their ids."""

    def rank(node_id: int) -> tuple[bool, int, int]:
        far = distance(node_id)
        return far is None, far or 0, node_id

    return sorted(nodes, key=rank)


def find_handlers(
    directory: Directory,
    distance: Distance,
    subprotocol_id: int,
    now: float,
    capability_filter: CapabilityFilter | None = None,
) -> list[int]:
    """Return the nodes that handle a subprotocol and match a filter, the nearest first; this node may be among them."""
    found = set(directory.find_nodes(SubprotocolRegistry.capability_filter_for(subprotocol_id), now))
    if capability_filter is not None:
        found &= set(directory.find_nodes(capability_filter, now))
    return nearest_first(found, distance)
