"""Channel names that a gateway learned from announcements, so that its rules by prefix apply to their packets.

A packet carries only a hash of its channel's name. Anyone can name a channel: the hash shows whether the name is right,
so a learned name grants nothing by itself. The number of names is limited, and when it is reached, the names of nodes
that others told of are forgotten, fairly among those who told: the rule of the capability index (policy/discovery.py).

The tags are read in policy/tag.py, and the names are used in engine/routes/boundary.py.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

MAX_NAMES = 4096
"""Names kept of all nodes together. Our choice: a policy with that many is built in less than a tenth of a second."""


BOUNDS = (
    Bound(
        name="channel_names",
        what="channel names that nodes announced",
        by=By.PEER,
        per_node=MAX_NAMES,
        full="those of the oldest node that the most talkative neighbor told of go",
        cost="the number of neighbors",
        counter=Reason.EVICT_CHANNEL_NAMES,
    ),
)


class LearnedNames:
    """The channel names that nodes announced."""

    def __init__(self, *, max_names: int = MAX_NAMES) -> None:
        self.version = 0
        """Incremented whenever the set of names changes."""
        self._max_names = max_names
        self._nodes: dict[int, tuple[int | None, tuple[ChannelName, ...]]] = {}
        """By node: the neighbor that told of it, or None if it said it itself, and its names."""
        self._told: dict[int, OrderedDict[int, None]] = {}
        """The nodes that each neighbor told of, the one that was refreshed last at the end."""
        self._sizes: Counter[int] = Counter()
        """How many names each neighbor told of."""
        self._holders: Counter[ChannelName] = Counter()
        """How many nodes announced each name."""
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[ChannelName]:
        return iter(self._holders)

    @property
    def room(self) -> int:
        """How many more names can be kept."""
        return self._max_names - self._total

    def hear(self, node_id: int, names: tuple[ChannelName, ...], via: int | None) -> int:
        """Replace the names of a node; return how many names were forgotten or refused because there was no room."""
        self.forget(node_id)
        lost = 0
        while self._total + len(names) > self._max_names:
            if not self._told:
                return lost + len(names)
            neighbor = max(self._told, key=lambda one: self._sizes[one])
            lost += self.forget(next(iter(self._told[neighbor])))
        if names:
            self._nodes[node_id] = via, names
            self._total += len(names)
            self._add(names, 1)
            if via is not None:
                self._told.setdefault(via, OrderedDict())[node_id] = None
                self._sizes[via] += len(names)
        return lost

    def forget(self, node_id: int) -> int:
        """Remove the names of a node, and return how many it had."""
        via, names = self._nodes.pop(node_id, (None, ()))
        self._total -= len(names)
        self._add(names, -1)
        if via is not None:
            self._sizes[via] -= len(names)
            del self._told[via][node_id]
            if not self._told[via]:
                del self._told[via], self._sizes[via]
        return len(names)

    def keep(self, known: Callable[[int], bool]) -> None:
        """Remove the names of the nodes that are no longer known."""
        for node_id in [node_id for node_id in self._nodes if not known(node_id)]:
            self.forget(node_id)

    def _add(self, names: tuple[ChannelName, ...], step: int) -> None:
        for name in names:
            before = self._holders[name]
            self._holders[name] = before + step
            if not self._holders[name]:
                del self._holders[name]
            if not before or name not in self._holders:
                self.version += 1
