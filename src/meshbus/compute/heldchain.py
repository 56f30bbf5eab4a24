"""One chain that a node holds: its events, who else holds it, and the branches that lost against it.

A chain is kept up to a size; of an older event only the last hash is known. Losing branches are kept beside it, each
under an origin that follows from its content, so that all nodes name it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2s
from itertools import count, takewhile

import msgspec

from meshbus.compute.causal import ChainFault, EntityLog
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.names.identity import derive_origin_hash
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.wire.messages.causal import CausalEvent, hash_event
from meshbus.wire.messages.continuity import ForkRecord
from meshbus.wire.messages.reconciliation import MAX_POINTS, Point, Range

MAX_CHAIN_EVENTS = 65_536
"""Events of one chain that are kept. Our choice: more than a proof may span, less one third."""
MAX_CHAIN_BYTES = 16 << 20
"""Payloads of one chain that are kept. Our choice."""
MAX_BRANCHES = 16
"""Losing branches of one chain that are kept in memory. Our choice: each needs a partition that wrote."""
MAX_FORKS = 256
"""Announced forks of one chain. Our choice."""
MAX_WAITING = 16_384
"""Events of a daemon of this node that wait for those before them. Our choice: two turns of a daemon."""
EVENT_BYTES = 64
"""What keeping an event costs beside its payload, about."""

_FORK_LABEL = b"meshbus-fork-v1"

BOUNDS = (
    Bound(
        name="chain_events",
        what="events of a causal chain",
        by=By.PEER,
        per_node=None,
        per={"chain": MAX_CHAIN_EVENTS},
        full="the oldest events go; the hash of the last of them is kept",
        counter=forgotten("chain_events"),
    ),
    Bound(
        name="chain_bytes",
        what="payloads of a causal chain",
        by=By.PEER,
        per_node=None,
        per={"chain": MAX_CHAIN_BYTES},
        unit="bytes",
        full="the oldest events go",
        counter=forgotten("chain_bytes"),
    ),
    Bound(
        name="chain_waiting",
        what="events of a daemon of this node that wait for those before them, or until two histories are settled",
        by=By.PEER,
        per_node=None,
        per={"chain": MAX_WAITING},
        full="the copy of this node begins again with them; while histories are settled, the oldest go",
        counter=forgotten("chain_waiting"),
    ),
    Bound(
        name="branches",
        what="branches of a chain that lost",
        by=By.PEER,
        per_node=None,
        per={"chain": MAX_BRANCHES},
        full="the oldest goes",
        counter=forgotten("branches"),
    ),
    Bound(
        name="forks",
        what="forks of a chain that were announced",
        by=By.PEER,
        per_node=None,
        per={"chain": MAX_FORKS},
        full="the oldest goes",
        counter=forgotten("forks"),
    ),
)


class LostBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch that lost, kept as it was."""

    record: ForkRecord
    """`fork_seq` is the number of its first event, `forked_origin` stands for it."""
    events: tuple[CausalEvent, ...]


def branch_of(origin: int, events: Sequence[CausalEvent]) -> LostBranch:
    """Return a losing branch with the record that names it; the same events have the same record everywhere."""
    first, last = events[0].link.sequence, hash_event(*events[-1])
    # Nobody has a key for this entity, so nobody can go on under it: it only names the branch (state.md §6 draws a
    # random identity instead, and then two sides name one branch differently).
    content = b"".join(number.to_bytes(8, "little") for number in (origin, first, last))
    entity = blake2s(content, key=_FORK_LABEL).digest()
    record = ForkRecord(original_origin=origin, forked_origin=derive_origin_hash(entity), fork_seq=first)
    return LostBranch(record=record, events=tuple(events))


class HeldChain:
    """A chain, its members and its branches."""

    def __init__(self, log: EntityLog, members: frozenset[int], counters: Counters) -> None:
        self.log = log
        self.members = members
        """The other nodes that hold the chain; nobody else may add to it."""
        self.branches: BoundedMap[int, LostBranch] = BoundedMap(MAX_BRANCHES, counters.forgetting("branches"))
        self.forks: BoundedMap[int, ForkRecord] = BoundedMap(MAX_FORKS, counters.forgetting("forks"))
        self.rivals: set[int] = set()
        """Nodes with which a different history is being settled; meanwhile this node adds nothing to the chain."""
        self.waiting: list[CausalEvent] = []
        """What a daemon of this node emitted and the chain cannot take yet, because events before it are missing here."""
        self.asked: set[int] = set()
        """Members that were asked for those events."""
        self._counters = counters
        self._bytes = sum(len(event.payload) for event in log.events)

    @property
    def origin(self) -> int:
        """The name of the chain."""
        return self.log.origin_hash

    @property
    def size(self) -> int:
        """Bytes of payloads that are kept."""
        return self._bytes

    def append(self, event: CausalEvent) -> ChainFault | None:
        """Take the next event, or return why it is not the next one."""
        fault = self.log.append(event)
        if fault is None and event.link.sequence:
            self._bytes += len(event.payload)
            self._prune()
        return fault

    def replace_after(self, sequence: int, events: Sequence[CausalEvent]) -> None:
        """Put other events in the place of those after a number."""
        self.log.replace_after(sequence, events)
        self._bytes = sum(len(event.payload) for event in self.log.events)
        self._prune()

    def restart(self, at: Point) -> None:
        """Begin after an event that is known by its hash only; what is kept goes."""
        if self.log.events:
            self._counters.add("forget", "chain_events", len(self.log.events))
        link = msgspec.structs.replace(self.log.anchor.link, sequence=at.sequence)
        self.log = EntityLog(self.origin, anchor=CausalEvent(link, b""), anchor_hash=at.hash)
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more events may wait."""
        return len(self.waiting) >= MAX_WAITING

    def has(self, event: CausalEvent) -> bool:
        """Return whether the chain has this event, or had it before it was pruned."""
        sequence = event.link.sequence
        return sequence <= self.log.anchor.link.sequence or self.log.get(sequence) == event

    def wait(self, events: Sequence[CausalEvent]) -> None:
        """Add events of a daemon of this node to those that wait; the same ones may come again."""
        last = self.waiting[-1].link.sequence if self.waiting else 0
        self.waiting += [event for event in events if event.link.sequence > last]
        over = len(self.waiting) - MAX_WAITING
        if self.rivals and over > 0:
            del self.waiting[:over]
            self._counters.add("forget", "chain_waiting", over)

    def take_run(self) -> list[CausalEvent]:
        """Return those that wait, up to the next gap: the daemon may have been elsewhere in between."""
        numbers = zip(count(self.waiting[0].link.sequence), self.waiting) if self.waiting else ()
        run = [event for _, event in takewhile(lambda one: one[0] == one[1].link.sequence, numbers)]
        del self.waiting[: len(run)]
        self.asked.clear()
        return run

    def lacks(self) -> bool:
        """Return whether events before those that wait are missing."""
        return bool(self.waiting) and self.waiting[0].link.sequence > self.log.head.link.sequence + 1

    def range(self) -> Range:
        """Return what this node has of the chain, as a message."""
        log = self.log
        first = log.anchor.link.sequence + 1
        return Range(origin=self.origin, first=first, last=log.head.link.sequence, hash=log.head_hash)

    def points(self) -> tuple[Point, ...]:
        """Return some events from the head backwards, at distances that double, and the anchor."""
        head, anchor = self.log.head.link.sequence, self.log.anchor.link.sequence
        back = [0, *(1 << power for power in range(MAX_POINTS - 2))]
        places = [head - distance for distance in back if head - distance > anchor]
        return tuple(Point(place, self.log.hash_at(place) or 0) for place in [*places, anchor])

    def shared(self, points: Sequence[Point]) -> int | None:
        """Return the number of the newest of these points that this chain has too, or None."""
        return next((point.sequence for point in points if self.log.hash_at(point.sequence) == point.hash), None)

    def keep(self, branch: LostBranch) -> bool:
        """Keep a losing branch, and return whether it is new."""
        if branch.record.forked_origin in self.branches:
            return False
        self.branches.put(branch.record.forked_origin, branch)
        self.forks.put(branch.record.forked_origin, branch.record)
        return True

    def _prune(self) -> None:
        log = self.log
        if len(log.events) > MAX_CHAIN_EVENTS:
            self._counters.add("forget", "chain_events", self._forget(len(log.events) - MAX_CHAIN_EVENTS))
        while self._bytes > MAX_CHAIN_BYTES and log.events:
            # A sixteenth at a time, so that the list is not moved for each event.
            self._counters.add("forget", "chain_bytes", self._forget(max(len(log.events) // 16, 1)))

    def _forget(self, count: int) -> int:
        gone = self.log.events[:count]
        self._bytes -= sum(len(event.payload) for event in gone)
        self.log.prune_through(gone[-1].link.sequence)
        return count
