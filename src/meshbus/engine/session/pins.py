"""Pins: the entity keys of nodes that were seen secure, which are never talked to without it again.

A full table takes no new node: if the oldest made room, any member could bring a node to forget the pins that it wants
to break. Who writes them to disk is node/peers/pinfile.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

MAX_PINS = 8192
"""Nodes that are pinned. Our choice: as many as a node may have peers; a file of them has less than a megabyte."""


BOUNDS = (
    Bound(
        name="secure_pins",
        what="nodes that were seen secure, with their entity keys",
        by=By.MEMBER,
        per_node=MAX_PINS,
        full="the node is not pinned; its session is secure all the same",
        counter=Reason.REFUSE_PINS_FULL,
    ),
)


class Pins:
    """Entity keys by node id."""

    def __init__(self, known: Mapping[int, bytes], full: Callable[[], None]) -> None:
        """Begin with known pins; `full` is called for each node that finds no room."""
        self._entities = dict(list(known.items())[:MAX_PINS])
        self._full = full

    def __len__(self) -> int:
        return len(self._entities)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._entities

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return iter(list(self._entities.items()))

    def get(self, node_id: int) -> bytes | None:
        """Return the entity key of a pinned node, or None."""
        return self._entities.get(node_id)

    def add(self, node_id: int, entity_id: bytes) -> bool:
        """Pin a node, and return whether it was not pinned before and is now."""
        if node_id in self._entities:
            return False
        if len(self._entities) >= MAX_PINS:
            self._full()
            return False
        self._entities[node_id] = entity_id
        return True

    def forget(self, node_id: int) -> bool:
        """Remove the pin of a node, and return whether there was one."""
        return self._entities.pop(node_id, None) is not None
