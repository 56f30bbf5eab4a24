"""Partitions: nodes of one subnet that were lost together, whether others lost them too, and when they are back (0x0800).

    mass failure of a subnet ──► SUSPECTED ── nobody reaches them ──► CONFIRMED ── one is back ──► HEALING ── half are ──► HEALED
                                     └──────── a peer reaches half of them: only paths of this node were lost ──► DISMISSED

Every node tells its peers which nodes it reaches (VIEW), whenever that changes. state.md §6 has the phases; when to confirm
is left to the application there, and here follows from the views. Pure: messages and time in, messages out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from meshbus.compute.failures import FailureWindow, MassFailure, SubnetFailure
from meshbus.compute.reconciling import Outbound
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.errors import MalformedPacket
from meshbus.names.subnet import SubnetId
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.partition import (
    MAX_VIEW,
    Healed,
    PartitionMessage,
    Suspect,
    View,
    decode_partition,
    encode_partition,
)

CONFIRM_S = 3.0
"""After this time, views of peers that noticed the same failure have arrived: detection takes 2 s more at most."""
VIEW_S = 0.5
"""Least time between two views of this node."""
HEALED_SHARE = 0.5
MAX_TRACKED = 4096
"""Nodes that are followed. Our choice."""
MAX_PARTITIONS = 64
"""Partitions that are remembered. Our choice."""
MAX_LOST = MAX_VIEW
"""Nodes of one partition: as many as a view can name."""

BOUNDS = (
    Bound(
        name="tracked_nodes",
        what="nodes whose failures are compared",
        by=By.MEMBER,
        per_node=MAX_TRACKED,
        full="the one that was heard longest ago goes",
        counter=forgotten("tracked_nodes"),
    ),
    Bound(
        name="partitions",
        what="partitions that were noticed",
        by=By.MEMBER,
        per_node=MAX_PARTITIONS,
        per={"partition": MAX_LOST},
        full="the oldest goes",
        counter=forgotten("partitions"),
    ),
    Bound(
        name="views",
        what="nodes that a peer says it reaches",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_VIEW},
        full="the message is dropped",
        counter=Reason.CHAIN_MALFORMED,
    ),
)


class Phase(StrEnum):
    """What is known about a partition."""

    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    HEALING = "healing"
    HEALED = "healed"
    DISMISSED = "dismissed"
    """Peers reach the nodes: there is no partition."""


class Partition(msgspec.Struct, kw_only=True):
    """One partition, as this node sees it."""

    id: int
    subnet: SubnetId
    lost: frozenset[int]
    since: float
    baseline: tuple[tuple[int, int], ...]
    """What this node had observed at the split: the highest sequence of each origin."""
    phase: Phase = Phase.SUSPECTED
    back: set[int] = msgspec.field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """Whether it is not over."""
        return self.phase not in {Phase.HEALED, Phase.DISMISSED}


class PartitionChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A partition was noticed, or its phase changed."""

    id: int
    phase: Phase
    subnet: SubnetId
    lost: frozenset[int]


class PartitionDetector:
    """The partitions that one node has noticed."""

    def __init__(self, own: int, counters: Counters, horizon: Callable[[], tuple[tuple[int, int], ...]]) -> None:
        self._own = own
        self._counters = counters
        self._horizon = horizon
        self._tracked: BoundedMap[int, SubnetId | None] = BoundedMap(MAX_TRACKED, counters.forgetting("tracked_nodes"))
        self._up: set[int] = set()
        self._views: dict[int, View] = {}
        """The last view of each peer that is up."""
        self._suspected: dict[int, set[int]] = {}
        """The nodes that each peer says it has lost with others."""
        self._window = FailureWindow()
        self._next_id = 1
        self._partitions: BoundedMap[int, Partition] = BoundedMap(MAX_PARTITIONS, counters.forgetting("partitions"))
        self._epoch = 0
        self._view_at: float | None = None
        self._last_view = -VIEW_S
        self._reports: list[PartitionChanged] = []

    @property
    def partitions(self) -> list[Partition]:
        """All partitions that are remembered, by their number."""
        return [found for one in self._partitions if (found := self._partitions.get(one)) is not None]

    @property
    def recovery_budget(self) -> int | None:
        """How many nodes may be recovered at the same time now; None for any number."""
        return self._window.recovery_budget

    def take_reports(self) -> list[PartitionChanged]:
        """Return what changed since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def up(self, node: int, subnet: SubnetId | None, now: float) -> list[Outbound]:
        """Record that a node is reachable, and in which subnet it is, if that is known."""
        self._tracked.put(node, subnet)
        if node in self._up:
            return []
        self._up.add(node)
        self._window.recovered(node)
        self._view_due(now)
        found = [one for one in self.partitions if one.is_open and node in one.lost and node not in one.back]
        for partition in found:
            self._found(partition, node)
        return self._tell(Healed(node=node)) if found else []

    def down(self, nodes: list[int], now: float) -> list[Outbound]:
        """Record that nodes were lost."""
        lost = [node for node in nodes if node in self._up]
        if not lost:
            return []
        self._up.difference_update(lost)
        for node in lost:
            self._views.pop(node, None)
            self._suspected.pop(node, None)
        self._view_due(now)
        known = {node: subnet for node in self._tracked if (subnet := self._tracked.get(node)) is not None}
        verdict = self._window.fail(lost, len(self._tracked), known, now)
        if not isinstance(verdict, MassFailure) or not isinstance(verdict.cause, SubnetFailure):
            return []
        return self._suspect(verdict.cause.subnet, frozenset(verdict.nodes[:MAX_LOST]), now)

    def handle(self, message: bytes, sender: int, now: float) -> list[Outbound]:
        """Handle a message of a peer, and return what to send."""
        try:
            heard = decode_partition(message)
        except MalformedPacket:
            self._counters.count(Reason.CHAIN_MALFORMED)
            return []
        if sender not in self._up:
            self._counters.count(Reason.CHAIN_UNEXPECTED)
            return []
        match heard:
            case View():
                self._viewed(heard, sender)
            case Suspect(node=node):
                suspected = self._suspected.setdefault(sender, set())
                if len(suspected) < MAX_VIEW:
                    suspected.add(node)
            case Healed(node=node):
                self._suspected.get(sender, set()).discard(node)
        self._judge(now)
        return []

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        times = [one.since + CONFIRM_S for one in self.partitions if one.phase == Phase.SUSPECTED]
        return min([*times, *([] if self._view_at is None else [self._view_at])], default=None)

    def tick(self, now: float) -> list[Outbound]:
        """Do what is due."""
        self._judge(now)
        if self._view_at is None or now < self._view_at:
            return []
        self._view_at, self._last_view = None, now
        self._epoch += 1
        return self._tell(View(epoch=self._epoch, nodes=tuple(sorted(self._up)[:MAX_VIEW])))

    def _view_due(self, now: float) -> None:
        if self._view_at is None:
            self._view_at = max(now, self._last_view + VIEW_S)

    def _viewed(self, view: View, sender: int) -> None:
        before = self._views.get(sender)
        if before is not None and view.epoch <= before.epoch:
            self._counters.count(Reason.CHAIN_UNEXPECTED)
            return
        self._views[sender] = view

    def _suspect(self, subnet: SubnetId, lost: frozenset[int], now: float) -> list[Outbound]:
        # A failure that goes on belongs to the partition that was noticed with its first nodes.
        going_on = next((one for one in self.partitions if one.phase == Phase.SUSPECTED and one.lost & lost), None)
        if going_on is not None:
            new = lost - going_on.lost
            going_on.lost, going_on.subnet = going_on.lost | lost, subnet
        else:
            new = lost
            partition = Partition(id=self._next_id, subnet=subnet, lost=lost, since=now, baseline=self._horizon())
            self._next_id += 1
            self._partitions.put(partition.id, partition)
            self._report(partition)
        return [out for node in sorted(new) for out in self._tell(Suspect(node=node))]

    def _judge(self, now: float) -> None:
        """Confirm or dismiss what was suspected long enough."""
        for partition in self.partitions:
            if partition.phase != Phase.SUSPECTED:
                continue
            reached = {node for node in partition.lost if any(node in view.nodes for view in self._views.values())}
            if now >= partition.since + CONFIRM_S:
                over = len(reached) >= HEALED_SHARE * len(partition.lost)
                self._enter(partition, Phase.DISMISSED if over else Phase.CONFIRMED)
            elif self._up and all(partition.lost <= self._suspected.get(peer, set()) for peer in self._up):
                self._enter(partition, Phase.CONFIRMED)

    def _found(self, partition: Partition, node: int) -> None:
        partition.back.add(node)
        if partition.phase != Phase.HEALING:
            self._enter(partition, Phase.HEALING)
        if len(partition.back) / len(partition.lost) >= HEALED_SHARE:
            self._enter(partition, Phase.HEALED)

    def _enter(self, partition: Partition, phase: Phase) -> None:
        partition.phase = phase
        self._report(partition)

    def _report(self, partition: Partition) -> None:
        self._reports.append(
            PartitionChanged(id=partition.id, phase=partition.phase, subnet=partition.subnet, lost=partition.lost)
        )

    def _tell(self, message: PartitionMessage) -> list[Outbound]:
        encoded = encode_partition(message)
        return [(node, Subprotocol.PARTITION, encoded) for node in sorted(self._up)]
