"""Groups of daemons over several nodes: which node runs which member, decided alike by all of them (0x4D07).

A group has slots, each of which runs on one node at a time: a replica or fork group has one for each member, a standby group
a single one, which moves to another member when its node fails. Every node tells the others what it runs and what copies
of the state it has, and who runs a slot follows from that, so nobody is elected by votes:

1. A node that runs a slot keeps it.
2. A slot that nobody runs goes to one node: in a standby group to the one with the newest copy (ties: the highest index),
   in others to the slot's own node, or if that is gone to a node that runs nothing of the group (compute.md §8).
3. If several nodes run it, after a partition, their chains decide (compute/reconciling.py); of equal chains the higher
   epoch wins, then the lower node id.

Pure: messages and time in, messages and `Start`/`Stop` out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2s
from typing import NamedTuple, TypeAlias

import msgspec
import xxhash

from meshbus.compute.reconciling import Outbound
from meshbus.errors import LocalProtocolError
from meshbus.names.identity import KEY_BYTES, Identity
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.continuity import ForkRecord
from meshbus.wire.messages.groups import MAX_SLOTS, GroupState, SlotFlags, SlotState, encode_group

_REPLICA_LABEL = b"net-replica-v1"
_FORK_LABEL = b"meshbus-group-fork-v1"
_U32 = 0xFFFFFFFF

TELL_S = 1.0
"""How often a node tells the others what it has, even if nothing changed."""
SETTLE_S = 3.0
"""How long a slot that nobody runs waits, after a node came or went, for the others to say what they have."""
STANDBY_MEMBERS = 2
"""The least number of nodes of a standby group (compute.md §8)."""


class GroupKind(StrEnum):
    """What the members of a group are to each other."""

    REPLICA = "replica"
    """Equal daemons with chains of their own that share the events."""
    STANDBY = "standby"
    """One daemon that runs on one node, with copies of its state on the others."""
    FORK = "fork"
    """Daemons whose chains began as branches of another one."""


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A group, the same on every node that takes part."""

    seed: bytes
    """32 secret bytes, from which the keys of all members follow."""
    kind: GroupKind
    size: int
    """Number of members; of a standby group, of nodes with the daemon or a copy of it."""
    nodes: tuple[int, ...]
    """The nodes that may run members, in the order in which they are preferred."""
    parent_origin: int = 0
    """Of a fork group: the chain from which its members began."""
    fork_seq: int = 0
    """Of a fork group: the number of the first event that they do not share with it."""

    def __post_init__(self) -> None:
        if len(self.seed) != KEY_BYTES:
            raise LocalProtocolError(f"the seed of a group has {KEY_BYTES} bytes, got {len(self.seed)}")
        least = STANDBY_MEMBERS if self.kind == GroupKind.STANDBY else 1
        if not least <= self.size <= MAX_SLOTS:
            raise LocalProtocolError(f"a {self.kind} group has {least} to {MAX_SLOTS} members, got {self.size}")
        if len(set(self.nodes)) != len(self.nodes) or len(self.nodes) < self.size:
            problem = f"a group of {self.size} needs as many different nodes, got {len(set(self.nodes))}"
            raise LocalProtocolError(problem)

    @property
    def group_id(self) -> int:
        """The number of the group on the wire."""
        return xxhash.xxh3_64_intdigest(self.seed) & _U32

    @property
    def slots(self) -> range:
        """What runs on one node at a time."""
        return range(1 if self.kind == GroupKind.STANDBY else self.size)

    def identity(self, slot: int) -> Identity:
        """Return the key of the daemon in a slot, which stays the same wherever it runs."""
        label = _FORK_LABEL if self.kind == GroupKind.FORK else _REPLICA_LABEL
        return Identity.from_seed(member_seed(self.seed, slot, label))

    def fork(self, slot: int) -> ForkRecord | None:
        """Return the record with which the chain of a slot begins, or None if it begins anew."""
        if self.kind != GroupKind.FORK:
            return None
        forked = self.identity(slot).origin_hash
        return ForkRecord(original_origin=self.parent_origin, forked_origin=forked, fork_seq=self.fork_seq)


def member_seed(group_seed: bytes, index: int, label: bytes = _REPLICA_LABEL) -> bytes:
    """Return the secret seed of a member (compute.md §8)."""
    return blake2s(group_seed + bytes((index,)), key=label).digest()


class Start(NamedTuple):
    """This node is to run a slot."""

    slot: int
    epoch: int


class Stop(NamedTuple):
    """This node is to run a slot no longer, because another one does."""

    slot: int


Action: TypeAlias = Start | Stop


class GroupCoordinator:
    """One group, as one node sees it."""

    def __init__(self, spec: GroupSpec, own: int, now: float) -> None:
        if own not in spec.nodes:
            raise LocalProtocolError(f"node {own:016x} is not one of the nodes of the group; add it to `nodes`")
        self.spec = spec
        self._own = own
        self._here = {slot: SlotState(slot) for slot in spec.slots}
        self._heard: dict[int, dict[int, SlotState]] = {}
        """What each node that is reachable has said it has."""
        self._epochs = dict.fromkeys(spec.slots, 0)
        """The highest epoch of each slot that was ever heard of."""
        self._up: set[int] = set()
        self._settled_at = now + SETTLE_S
        self._tell_at = now
        self._turn = 0

    # ── what this node has ──────────────────────────────────────────────────────────────────

    def has(self, slot: int, flags: SlotFlags, through: int, digest: int, epoch: int | None = None) -> None:
        """Record what this node has of a slot: the daemon itself, or a copy of its state."""
        before = self._here[slot]
        now_is = SlotState(slot, flags, before.epoch if epoch is None else epoch, through, digest)
        if now_is.flags != before.flags:
            self._tell_at = 0.0
        self._here[slot] = now_is

    def runs(self, slot: int) -> bool:
        """Return whether a slot runs on this node."""
        return SlotFlags.RUNS in self._here[slot].flags

    def lacking(self, slot: int, through: int) -> list[int]:
        """Return the reachable nodes that neither run a slot nor have a copy of it up to an output."""
        heard = ((node, slots[slot]) for node, slots in sorted(self._heard.items()) if slot in slots)
        return [
            node
            for node, state in heard
            if SlotFlags.RUNS not in state.flags and (SlotFlags.COPY not in state.flags or state.through < through)
        ]

    def runner(self, slot: int) -> int | None:
        """Return the node that runs a slot, as far as this node knows, or None."""
        claims = self._claims(slot)
        return min(claims, key=lambda node: (-claims[node].epoch, node), default=None)

    # ── nodes and messages ──────────────────────────────────────────────────────────────────

    def node_up(self, node: int, now: float) -> None:
        """Record that a node of the group is reachable."""
        self._up.add(node)
        self._settled_at = now + SETTLE_S
        self._tell_at = now

    def node_down(self, node: int, now: float) -> None:
        """Record that a node of the group was lost."""
        self._up.discard(node)
        self._heard.pop(node, None)
        self._settled_at = max(self._settled_at, now + SETTLE_S)

    def heard(self, state: GroupState, sender: int) -> None:
        """Record what another node of the group has."""
        self._heard[sender] = {one.slot: one for one in state.slots if one.slot in self._here}
        for one in self._heard[sender].values():
            self._epochs[one.slot] = max(self._epochs[one.slot], one.epoch)

    def next_timer(self) -> float:
        """Return when `tick` has something to do."""
        return self._tell_at

    def tick(self, now: float) -> tuple[list[Outbound], list[Action]]:
        """Return what to tell the others, and what to start or stop here."""
        actions = [action for slot in self.spec.slots if (action := self._decide(slot, now)) is not None]
        out: list[Outbound] = []
        if now >= self._tell_at:
            self._tell_at = now + TELL_S
            state = GroupState(group=self.spec.group_id, slots=tuple(self._here.values()))
            out = [(node, Subprotocol.GROUPS, encode_group(state)) for node in sorted(self._up)]
        return out, actions

    # ── routing ─────────────────────────────────────────────────────────────────────────────

    def route(self, key: bytes | None = None) -> tuple[int, int] | None:
        """Return a slot for an event and the node that runs it, or None if nothing runs.

        Events with the same key go to the same slot, as long as the same slots run; others take turns.
        """
        running = [(slot, node) for slot in self.spec.slots if (node := self.runner(slot)) is not None]
        if not running:
            return None
        if key is None:
            self._turn += 1
            return running[self._turn % len(running)]
        # Rendezvous hashing: a slot that stops or starts moves only the keys that it had or gets.
        return max(running, key=lambda one: xxhash.xxh3_64_intdigest(key + one[0].to_bytes(1, "little")))

    # ── who runs what ───────────────────────────────────────────────────────────────────────

    def _claims(self, slot: int) -> dict[int, SlotState]:
        known = {node: slots[slot] for node, slots in self._heard.items() if slot in slots}
        known[self._own] = self._here[slot]
        return {node: state for node, state in known.items() if SlotFlags.RUNS in state.flags}

    def _decide(self, slot: int, now: float) -> Action | None:
        claims = self._claims(slot)
        if not claims:
            settled = now >= self._settled_at or (
                self._up <= self._heard.keys() and now >= self._settled_at - SETTLE_S / 2
            )
            return self._vacant(slot) if settled else None
        own = claims.get(self._own)
        rivals = {(state.through, state.hash) for state in claims.values()}
        # Different chains are settled by their events, not by what nodes claim.
        if own is None or len(claims) == 1 or len(rivals) > 1:
            return None
        return None if self.runner(slot) == self._own else Stop(slot)

    def _vacant(self, slot: int) -> Start | None:
        alive = {self._own, *self._up}
        chosen = self._newest_copy(alive) if self.spec.kind == GroupKind.STANDBY else self._placed(alive).get(slot)
        return Start(slot, max(self._epochs[slot], self._here[slot].epoch) + 1) if chosen == self._own else None

    def _newest_copy(self, alive: set[int]) -> int | None:
        known: Mapping[int, Mapping[int, SlotState]] = {**self._heard, self._own: self._here}
        members = [node for node in self.spec.nodes[: self.spec.size] if node in alive]
        copies = {node: known[node][0].through for node in members if node in known and _has_copy(known[node])}
        if not copies:
            return members[0] if members else None
        # compute.md §8: the copy that is synchronized furthest; of equal ones the highest index.
        return max(copies, key=lambda node: (copies[node], self.spec.nodes.index(node)))

    def _placed(self, alive: set[int]) -> dict[int, int]:
        """Return where every slot is to run: those that run stay, others go to distinct nodes while there are some."""
        placed = {slot: node for slot in self.spec.slots if (node := self.runner(slot)) is not None}
        for slot in self.spec.slots:
            if slot in placed:
                continue
            order = [self.spec.nodes[slot], *self.spec.nodes]
            free = [node for node in order if node in alive and node not in placed.values()]
            if free:
                placed[slot] = free[0]
        return placed


def _has_copy(slots: Mapping[int, SlotState]) -> bool:
    return 0 in slots and bool(slots[0].flags & SlotFlags.COPY)
