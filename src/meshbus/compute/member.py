"""One group on one node: daemons that run here, copies of those that run elsewhere, and the events between them.

    input ──► the node that runs the slot (0x4D07); in a standby group to all nodes, which keep it until a snapshot has it
    runs ───► outputs continue the chain (0x0400 to all nodes); its state goes to the others as snapshots (0x0401)
    lost ───► a copy goes on (compute/standby.py); two that went on are settled by their chains (compute/reconciling.py)

compute/groups.py decides who runs what. Whoever drives this publishes `outputs`, each under its number in the chain, so
that one which two nodes emit is published once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from meshbus.compute.causal import ChainHead, EntityLog
from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.groups import GroupCoordinator, GroupKind, GroupSpec, Start, Stop
from meshbus.compute.host import DaemonHost
from meshbus.compute.keeper import ChainKeeper
from meshbus.compute.reconciling import Outbound
from meshbus.compute.registry import Factory
from meshbus.compute.standby import StandbyCopy, accepts
from meshbus.engine.base.counters import Counters
from meshbus.errors import DaemonError, DaemonFault
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.groups import (
    GroupInput,
    GroupMessage,
    GroupRefused,
    GroupState,
    RefusalCode,
    SlotFlags,
    encode_group,
)
from meshbus.wire.messages.migration import SnapshotReady, count_chunks, encode_migration, split_snapshot
from meshbus.wire.messages.snapshot import StateSnapshot, encode_snapshot

SYNC_S = 1.0
"""How often the state of a daemon goes to the other nodes, if it has emitted anything."""
RESEND_S = 5.0
"""A state that a node has not confirmed is sent again after this time."""
BURST = 32
"""Parts of a snapshot that are sent at once, as in moves of daemons."""
PACE_S = 0.01
MAX_PENDING = 16_384
"""Outputs that are not published yet, of a daemon of a group. Our choice: as many as events that may wait for one."""

BOUNDS = (
    Bound(
        name="group_outputs",
        what="outputs of a daemon of a group that are not published yet",
        by=By.PEER,
        per_node=None,
        per={"member of a group": MAX_PENDING},
        full="further events for it are refused",
        counter="a GroupRefused report: paused",
    ),
)


class Output(NamedTuple):
    """Something that a daemon of the group emitted, to be published once under its number."""

    origin: int
    sequence: int
    payload: bytes


class SlotChanged(NamedTuple):
    """A daemon of the group started or stopped on this node."""

    group: int
    slot: int
    runs: bool
    why: str


class _Slot:
    """What this node has of one member."""

    def __init__(self, origin: int, counters: Counters) -> None:
        self.origin = origin
        self.host: DaemonHost | None = None
        self.copy = StandbyCopy(counters)
        self.sent: dict[int, tuple[int, float]] = {}
        """To each node: the last output in the snapshot that was sent to it, and when."""
        self.sync_at = 0.0

    def due(self, node: int, now: float) -> bool:
        """Return whether a node that lacks the present state is to be sent it: not again while it may be on its way."""
        assert self.host is not None
        through, at = self.sent.get(node, (-1, 0.0))
        return through < self.host.head.sequence or now >= at + RESEND_S


class GroupMember:
    """The part of one node in one group."""

    def __init__(
        self,
        spec: GroupSpec,
        own: int,
        factory: Factory,
        keeper: ChainKeeper,
        counters: Counters,
        wall: Callable[[float], int],
        now: float,
    ) -> None:
        self.spec = spec
        self.coordinator = GroupCoordinator(spec, own, now)
        self.outputs: list[Output] = []
        self.changes: list[SlotChanged] = []
        self.refused: list[GroupRefused] = []
        """Events of this node that another one did not take."""
        self._own = own
        self._factory = factory
        self._keeper = keeper
        self._counters = counters
        self._wall = wall
        self._slots = {slot: _Slot(spec.identity(slot).origin_hash, counters) for slot in spec.slots}
        self._parts: deque[Outbound] = deque()
        """Parts of snapshots that wait for their turn."""
        self._parts_at = 0.0

    def join(self) -> list[Outbound]:
        """Hold the chains of all members together with the other nodes."""
        others = [node for node in self.spec.nodes if node != self._own]
        out = []
        for number, slot in self._slots.items():
            record = self.spec.fork(number)
            anchor = None if record is None else CausalEvent(record.genesis, b"")
            out += self._keeper.hold(EntityLog(slot.origin, anchor=anchor), others)
            if record is not None:
                out += self._keeper.announce_fork(record)
        return out

    @property
    def origins(self) -> frozenset[int]:
        """The chains of all members."""
        return frozenset(slot.origin for slot in self._slots.values())

    def runs(self, origin: int) -> bool:
        """Return whether the daemon of a chain runs here."""
        return any(slot.origin == origin and slot.host is not None for slot in self._slots.values())

    def host(self, slot: int) -> DaemonHost | None:
        """Return the daemon of a slot, if it runs here."""
        return self._slots[slot].host

    # ── events ──────────────────────────────────────────────────────────────────────────────

    def send(self, event: DaemonEvent, key: bytes | None = None) -> list[Outbound]:
        """Send an event to the member that is to process it; raise DaemonError if no member runs."""
        where = self.coordinator.route(key)
        if where is None:
            raise DaemonError(
                DaemonFault.UNKNOWN, self._slots[0].origin, "no member of its group runs now; try again later"
            )
        slot, runner = where
        message = GroupInput(
            group=self.spec.group_id, slot=slot, origin=event.origin, sequence=event.sequence, payload=event.payload
        )
        copies = [node for node in self.spec.nodes if self.spec.kind == GroupKind.STANDBY or node == runner]
        out = [(node, Subprotocol.GROUPS, encode_group(message)) for node in copies if node != self._own]
        return [*out, *(self.handle(message, self._own) if self._own in copies else ())]

    def handle(self, message: GroupMessage, sender: int) -> list[Outbound]:
        """Handle a message of a node of the group."""
        match message:
            case GroupState():
                self.coordinator.heard(message, sender)
                return []
            case GroupRefused():
                self.refused.append(message)
                return []
            case GroupInput() if message.slot not in self._slots:
                self._counters.count(Reason.CHAIN_UNKNOWN)
                return []
            case GroupInput():
                return self._input(message, sender)

    def _input(self, message: GroupInput, sender: int) -> list[Outbound]:
        slot = self._slots[message.slot]
        event = DaemonEvent(message.origin, message.sequence, message.payload)
        if slot.host is None:
            slot.copy.buffer(event)
            standby = self.spec.kind == GroupKind.STANDBY
            return [] if standby else self._refuse(message, sender, RefusalCode.NOT_HERE)
        if self._keeper.contested(slot.origin) or len(slot.host.pending) >= MAX_PENDING:
            return self._refuse(message, sender, RefusalCode.PAUSED)
        if not accepts(slot.host, event):
            self._counters.count(Reason.CHAIN_DUPLICATE)
            return []
        try:
            emitted = slot.host.deliver(event)
        except DaemonError as error:
            self._stop(message.slot, str(error))
            return self._refuse(message, sender, RefusalCode.FAILED)
        out = self._keeper.append(slot.origin, emitted)
        self._emit(message.slot, len(emitted))
        return out

    def _refuse(self, message: GroupInput, sender: int, code: RefusalCode) -> list[Outbound]:
        runner = self.coordinator.runner(message.slot) or 0
        refused = GroupRefused(group=message.group, slot=message.slot, code=code, runner=runner)
        if sender == self._own:
            self.refused.append(refused)
            return []
        return [(sender, Subprotocol.GROUPS, encode_group(refused))]

    def published(self, output: Output) -> None:
        """Record that an output is published, with all before it; until then a snapshot contains it."""
        for slot in self._slots.values():
            if slot.origin == output.origin and slot.host is not None:
                slot.host.published(max(output.sequence - slot.host.batch + 1, 0))

    def _emit(self, number: int, count: int) -> None:
        """Hand out the last outputs of a daemon that runs here."""
        host = self._slots[number].host
        assert host is not None
        last = host.pending[len(host.pending) - count :]
        self.outputs += [Output(host.origin, event.link.sequence, event.payload) for event in last]
        self._tell(number)

    def _tell(self, slot: int) -> None:
        """Tell the coordinator what is here of a slot."""
        one = self._slots[slot]
        if one.host is not None:
            chain = one.host.chain
            self.coordinator.has(slot, SlotFlags.RUNS, chain.link.sequence, chain.parent_hash)
        elif one.copy.snapshot is not None:
            self.coordinator.has(slot, SlotFlags.COPY, one.copy.through, one.copy.digest)
        else:
            self.coordinator.has(slot, SlotFlags.NONE, 0, 0)

    # ── who runs what ───────────────────────────────────────────────────────────────────────

    def node_up(self, node: int, now: float) -> None:
        """Record that a node of the group is reachable."""
        self.coordinator.node_up(node, now)

    def node_down(self, node: int, now: float) -> None:
        """Record that a node of the group was lost."""
        self.coordinator.node_down(node, now)
        for slot in self._slots.values():
            slot.sent.pop(node, None)
        self._parts = deque(part for part in self._parts if part[0] != node)

    def next_timer(self) -> float:
        """Return when `tick` has something to do."""
        waiting = self._parts_at if self._parts else self.coordinator.next_timer()
        return min(waiting, self.coordinator.next_timer())

    def tick(self, now: float) -> list[Outbound]:
        """Do what is due."""
        out, actions = self.coordinator.tick(now)
        for action in actions:
            match action:
                case Start(slot=started, epoch=epoch):
                    out += self._start(started, epoch)
                case Stop(slot=stopped):
                    self._stop(stopped, "another node of the group runs it")
        for number, slot in self._slots.items():
            if slot.host is not None and now >= slot.sync_at and not self._parts:
                slot.sync_at = now + SYNC_S
                self._sync(number, slot.host, now)
        if self._parts and now >= self._parts_at:
            self._parts_at = now + PACE_S
            out += [self._parts.popleft() for _ in range(min(BURST, len(self._parts)))]
        return out

    def lost(self, origin: int) -> None:
        """Stop a daemon whose chain went on elsewhere with other events; its state is not that of the chain."""
        for number, slot in self._slots.items():
            if slot.origin == origin and slot.host is not None:
                self._stop(number, "the history of another node won")
            elif slot.origin == origin:
                slot.copy.reset()
                self._tell(number)

    def takes_copy(self, origin: int, sender: int) -> bool:
        """Return whether a node may send the state of a daemon: only the one that runs it, and not to another runner."""
        (number,) = (number for number, slot in self._slots.items() if slot.origin == origin)
        return self._slots[number].host is None and self.coordinator.runner(number) == sender

    def synced(self, snapshot: StateSnapshot) -> None:
        """Take the state of a daemon; raise MalformedPacket for a damaged one."""
        for number, slot in self._slots.items():
            if slot.origin == snapshot.origin_hash:
                if not slot.copy.sync(snapshot):
                    self._counters.count(Reason.CHAIN_DUPLICATE)
                self._tell(number)

    def _start(self, number: int, epoch: int) -> list[Outbound]:
        slot = self._slots[number]
        try:
            host = self._new_host(number) if slot.copy.snapshot is None else None
            host, emitted = slot.copy.promote(self._factory, self.spec.identity(number), host)
            after = host.head.sequence - len(emitted)
            out = self._keeper.take_over(slot.origin, after, emitted)
        except DaemonError as error:
            self.changes.append(SlotChanged(self.spec.group_id, number, False, str(error)))
            return []
        slot.host = host
        slot.sent.clear()
        self.changes.append(SlotChanged(self.spec.group_id, number, True, f"epoch {epoch}"))
        self.coordinator.has(number, SlotFlags.RUNS, 0, 0, epoch)
        # Also those that were in the snapshot: its node may have failed before it published them.
        self._emit(number, len(host.pending))
        return out

    def _new_host(self, number: int) -> DaemonHost:
        host = DaemonHost(self.spec.identity(number), self._factory.create())
        record = self.spec.fork(number)
        if record is not None:
            host.chain = ChainHead(record.genesis)
        return host

    def _stop(self, number: int, why: str) -> None:
        slot = self._slots[number]
        slot.host = None
        slot.copy.reset()
        self.changes.append(SlotChanged(self.spec.group_id, number, False, why))
        self._tell(number)

    # ── copies ──────────────────────────────────────────────────────────────────────────────

    def _sync(self, number: int, host: DaemonHost, now: float) -> None:
        """Send the state of a daemon to the nodes that lack it."""
        slot, through = self._slots[number], host.head.sequence
        nodes = [node for node in self.coordinator.lacking(number, through) if slot.due(node, now)]
        if not nodes:
            return
        try:
            snapshot = encode_snapshot(host.snapshot(self._wall(now)))
        except DaemonError as error:
            self._stop(number, str(error))
            return
        total = count_chunks(len(snapshot))
        slot.sent.update(dict.fromkeys(nodes, (through, now)))
        for index, chunk in enumerate(split_snapshot(snapshot)):
            part = SnapshotReady(
                origin=slot.origin, seq_through=through, chunk_index=index, total_chunks=total, chunk=chunk
            )
            self._parts += [(node, Subprotocol.SNAPSHOT, encode_migration(part)) for node in nodes]
