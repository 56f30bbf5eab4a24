"""Everything that nodes with daemons say to each other besides moves: chains, proofs, forks, partitions and groups.

One thing to drive: messages, peers and time in, messages out. Peers are those that negotiated these subprotocols. What
happened is in `take_reports`, what daemons of groups emitted in `take_outputs`.

    0x0400 0x0700 0x0701 0x0702 0x0801 ──► ChainKeeper (compute/keeper.py)
    0x0401 0x4D07 ──────────────────────► GroupMember of the group (compute/member.py)
    0x0800 ─────────────────────────────► PartitionDetector (compute/partition.py)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.groups import GroupSpec
from meshbus.compute.keeper import ChainKeeper
from meshbus.compute.member import GroupMember, Output, SlotChanged
from meshbus.compute.migration.reassembler import Reassembler
from meshbus.compute.partition import PartitionChanged, PartitionDetector
from meshbus.compute.reconciling import CaughtUp, Diverged, Outbound
from meshbus.compute.reconciling import Report as ChainReport
from meshbus.compute.registry import Factory
from meshbus.engine.base.counters import Counters
from meshbus.errors import DaemonError, DaemonFault, MalformedPacket
from meshbus.names.subnet import SubnetId
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.groups import GroupRefused, decode_group
from meshbus.wire.messages.migration import SnapshotReady, decode_migration
from meshbus.wire.messages.snapshot import decode_snapshot

IDS = (
    Subprotocol.CAUSAL,
    Subprotocol.SNAPSHOT,
    Subprotocol.CONTINUITY,
    Subprotocol.FORK,
    Subprotocol.PROOF,
    Subprotocol.PARTITION,
    Subprotocol.RECONCILE,
    Subprotocol.GROUPS,
)
"""The subprotocols that are handled here."""
COMPARE_S = 30.0
"""How often chains are compared even if nothing happened: a message may have been dropped where nobody noticed."""
MAX_COPY_BYTES = 64 << 20
"""The largest state of a daemon in a group. Our choice: a quarter of what a move may have, for it is sent again and again."""
MAX_GROUPS = 64
"""Groups of one node. Our choice."""

BOUNDS = (
    Bound(
        name="groups",
        what="groups of daemons that this node takes part in",
        by=By.USER,
        per_node=MAX_GROUPS,
        full="the new one is refused",
        counter="raises DaemonError",
    ),
    Bound(
        name="copy_bytes",
        what="the snapshot of a member of a group that is being received",
        by=By.PEER,
        per_node=None,
        per={"snapshot": MAX_COPY_BYTES},
        unit="bytes",
        full="the part is dropped",
        counter=Reason.MIGRATION_PART,
    ),
)

Report: TypeAlias = ChainReport | PartitionChanged | SlotChanged | GroupRefused


class Coordination:
    """The part of one node."""

    def __init__(self, own: int, counters: Counters, wall: Callable[[float], int]) -> None:
        self._own = own
        self._counters = counters
        self._wall = wall
        self.keeper = ChainKeeper(own, counters)
        self.detector = PartitionDetector(own, counters, self._heads)
        self._groups: dict[int, GroupMember] = {}
        self._up: set[int] = set()
        self._compare_at: float | None = None
        self._copies = Reassembler(MAX_COPY_BYTES)
        self._reports: list[Report] = []

    # ── what this node does ─────────────────────────────────────────────────────────────────

    def join(self, spec: GroupSpec, factory: Factory, now: float) -> list[Outbound]:
        """Take part in a group; raise DaemonError if this node does already, or in too many."""
        if spec.group_id in self._groups or len(self._groups) >= MAX_GROUPS:
            problem = f"this node takes part in the group already, or in {MAX_GROUPS}, the most that it may"
            raise DaemonError(DaemonFault.DUPLICATE, spec.identity(0).origin_hash, problem)
        member = GroupMember(spec, self._own, factory, self.keeper, self._counters, self._wall, now)
        self._groups[spec.group_id] = member
        for node in spec.nodes:
            if node in self._up:
                member.node_up(node, now)
        return member.join()

    def group(self, group_id: int) -> GroupMember:
        """Return a group that this node takes part in; raise DaemonError for another."""
        member = self._groups.get(group_id)
        if member is None:
            raise DaemonError(DaemonFault.UNKNOWN, group_id, "this node does not take part in the group")
        return member

    def send(self, group_id: int, event: DaemonEvent, key: bytes | None = None) -> list[Outbound]:
        """Send an event to a member of a group; `GroupMember.send` has the rules."""
        return self._settled(self.group(group_id).send(event, key))

    def take_reports(self) -> list[Report]:
        """Return what happened since the last call."""
        self._collect()
        reports, self._reports = self._reports, []
        return reports

    def take_outputs(self) -> list[Output]:
        """Return what daemons of groups emitted here since the last call, to be published once each."""
        found = [output for member in self._groups.values() for output in member.outputs]
        for member in self._groups.values():
            member.outputs.clear()
        return found

    def published(self, output: Output) -> None:
        """Record that an output is published."""
        for member in self._groups.values():
            member.published(output)

    # ── peers and messages ──────────────────────────────────────────────────────────────────

    def peer_up(self, node: int, subnet: SubnetId | None, now: float) -> list[Outbound]:
        """Handle a peer with which these subprotocols were negotiated."""
        self._up.add(node)
        self._compare_at = self._compare_at or now + COMPARE_S
        for member in self._groups.values():
            if node in member.spec.nodes:
                member.node_up(node, now)
        return [*self.detector.up(node, subnet, now), *self.keeper.peer_up(node)]

    def peer_down(self, node: int, now: float) -> list[Outbound]:
        """Handle a peer that was lost, or that uses these subprotocols no longer."""
        if node not in self._up:
            return []
        self._up.discard(node)
        for member in self._groups.values():
            if node in member.spec.nodes:
                member.node_down(node, now)
        self.keeper.peer_down(node)
        return self._settled(self.detector.down([node], now))

    def handle(self, subprotocol_id: int, message: bytes, sender: int, now: float) -> list[Outbound]:
        """Handle a message of a peer, and return what to send."""
        if sender not in self._up:
            # Until it has agreed to them here as well, it is nobody's peer.
            self._counters.count(Reason.CHAIN_UNEXPECTED)
            return []
        match subprotocol_id:
            case Subprotocol.PARTITION:
                return self.detector.handle(message, sender, now)
            case Subprotocol.GROUPS | Subprotocol.SNAPSHOT:
                return self._settled(self._for_group(subprotocol_id, message, sender, now))
            case _:
                return self._settled(self.keeper.handle(subprotocol_id, message, sender, now))

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        times = [self.keeper.next_timer(), self.detector.next_timer(), self._compare_at]
        times += [member.next_timer() for member in self._groups.values()]
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> list[Outbound]:
        """Do what is due."""
        out = [*self.keeper.tick(now), *self.detector.tick(now)]
        if self._compare_at is not None and now >= self._compare_at:
            self._compare_at = now + COMPARE_S if self._up else None
            out += self.keeper.compare()
        for member in self._groups.values():
            out += member.tick(now)
        return self._settled(out)

    def _for_group(self, subprotocol_id: int, message: bytes, sender: int, now: float) -> list[Outbound]:
        try:
            if subprotocol_id == Subprotocol.SNAPSHOT:
                self._part(message, sender, now)
                return []
            heard = decode_group(message)
        except MalformedPacket:
            self._counters.count(Reason.CHAIN_MALFORMED)
            return []
        member = self._groups.get(heard.group)
        if member is None or sender not in member.spec.nodes:
            self._counters.count(Reason.CHAIN_UNKNOWN if member is None else Reason.REFUSE_CHAIN_SENDER)
            return []
        return member.handle(heard, sender)

    def _part(self, message: bytes, sender: int, now: float) -> None:
        """Take a part of a snapshot of a group's daemon."""
        part = decode_migration(message)
        found = [one for one in self._groups.values() if part.origin in one.origins]
        if not isinstance(part, SnapshotReady) or not found:
            self._counters.count(Reason.CHAIN_UNKNOWN)
            return
        if not found[0].takes_copy(part.origin, sender):
            self._counters.count(Reason.REFUSE_CHAIN_SENDER)
            return
        whole = self._copies.feed(part, sender, now)
        if isinstance(whole, str):
            self._counters.count(Reason.MIGRATION_PART)
        elif whole is not None:
            found[0].synced(decode_snapshot(whole))

    # ── what follows from reports ───────────────────────────────────────────────────────────

    def _settled(self, out: list[Outbound]) -> list[Outbound]:
        self._collect()
        return [one for one in out if one[0] in self._up]

    def _collect(self) -> None:
        reports = self.keeper.take_reports()
        for report in reports:
            match report:
                # The state of a daemon here is not that of its chain any more; that of the other node comes.
                case Diverged(ours=True, origin=origin, peer=peer) if peer != self._own:
                    self._lost(origin)
                case CaughtUp(origin=origin):
                    self._behind(origin)
                case _:
                    pass
        self._reports += [*reports, *self.detector.take_reports()]
        for member in self._groups.values():
            self._reports += [*member.changes, *member.refused]
            member.changes.clear()
            member.refused.clear()

    def _lost(self, origin: int) -> None:
        for member in self._groups.values():
            member.lost(origin)

    def _behind(self, origin: int) -> None:
        for member in self._groups.values():
            if member.runs(origin):
                member.lost(origin)

    def _heads(self) -> tuple[tuple[int, int], ...]:
        return self.keeper.heads()
