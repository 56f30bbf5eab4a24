"""Correlated failures: whether nodes that fail at about the same time have a common cause (state.md §6).

Many failures within a short time are a mass failure, and if most of the nodes are in one subnet, that subnet is the cause.
A single failure says nothing about the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil
from typing import NamedTuple, TypeAlias

from meshbus.names.subnet import SubnetId

WINDOW_S = 2.0
"""Failures within this time belong together."""
MASS_SHARE = 0.30
"""The share of all nodes that makes failures a mass failure."""
SUBNET_SHARE = 0.80
"""The share of failed nodes that must be in a subnet for it to be the cause."""
RECOVERY_BUDGET = 3
"""Recoveries at the same time during a mass failure."""


class SubnetFailure(NamedTuple):
    """Most of the nodes that failed are in one subnet."""

    subnet: SubnetId


class BroadOutage(NamedTuple):
    """The nodes that failed are in different subnets."""


class UnknownCause(NamedTuple):
    """It is not known in which subnets the nodes are."""


Cause: TypeAlias = SubnetFailure | BroadOutage | UnknownCause


class Independent(NamedTuple):
    """Too few nodes failed to say more than that they did."""

    nodes: tuple[int, ...]
    """Only those that are new."""


class MassFailure(NamedTuple):
    """Many nodes failed at about the same time."""

    nodes: tuple[int, ...]
    cause: Cause


class FailureWindow:
    """The failures of the last two seconds."""

    def __init__(self) -> None:
        self._failed: dict[int, float] = {}
        self.massive = False
        """Whether the last failures were a mass failure."""

    @property
    def recovery_budget(self) -> int | None:
        """How many nodes may be recovered at the same time; None for any number."""
        return RECOVERY_BUDGET if self.massive else None

    def fail(
        self, nodes: Iterable[int], tracked: int, subnets: dict[int, SubnetId], now: float
    ) -> Independent | MassFailure:
        """Judge failures that were found now; `tracked` is the number of all nodes, failed or not."""
        new = tuple(nodes)
        self._failed = {node: then for node, then in self._failed.items() if now - then <= WINDOW_S}
        self._failed.update(dict.fromkeys(new, now))
        self.massive = bool(tracked) and len(self._failed) / tracked >= MASS_SHARE
        if not self.massive:
            return Independent(new)
        failed = tuple(sorted(self._failed))
        return MassFailure(failed, find_cause([subnets[node] for node in failed if node in subnets]))

    def recovered(self, node: int) -> None:
        """Take a node back out: it is there."""
        self._failed.pop(node, None)
        self.massive = self.massive and bool(self._failed)


def find_cause(subnets: list[SubnetId]) -> Cause:
    """Return the common cause of failures, from the subnets of the nodes that failed."""
    if not subnets:
        return UnknownCause()
    counts = Counter(part for subnet in subnets for part in _parts(subnet))
    enough = ceil(SUBNET_SHARE * len(subnets))
    hit = [subnet for subnet, count in counts.items() if count >= enough]
    if not hit:
        return BroadOutage()
    return SubnetFailure(min(hit, key=lambda subnet: (-subnet.depth, subnet)))


def _parts(subnet: SubnetId) -> Iterator[SubnetId]:
    """Yield a subnet and its ancestors below GLOBAL."""
    while subnet != SubnetId.GLOBAL:
        yield subnet
        subnet = subnet.parent
