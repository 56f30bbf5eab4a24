"""All migration messages of one node: to the role that they are for, and back to the node itself without the network.

Every node has all three roles, and one node can have several in one move (compute.md §5). A message to the node itself
is handled at once, breadth first, with itself as sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.migration.base import Outbound, Phase, Seat, is_confirmation
from meshbus.compute.migration.orchestrator import MigrationOrchestrator, MoveEnded
from meshbus.compute.migration.source import MigrationSourceHandler
from meshbus.compute.migration.target import MigrationTargetHandler
from meshbus.compute.registry import DaemonRegistry
from meshbus.engine.base.counters import Counters
from meshbus.policy.reason import Reason
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.migration import (
    ActivateAck,
    ActivateTarget,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    MigrationFailed,
    MigrationMessage,
    PartsMissing,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
    TakeSnapshot,
)

MAX_SELF_DELIVERIES = 32
"""In a row, for one message from outside (compute.md §5)."""


class MigrationSubprotocolHandler:
    """The three roles of one node, as one thing to drive: messages and time in, messages out."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.source = MigrationSourceHandler(seat)
        self.target = MigrationTargetHandler(seat)
        self.orchestrator = MigrationOrchestrator(seat, self.source)

    @property
    def registry(self) -> DaemonRegistry:
        """The daemons of this node."""
        return self._seat.registry

    @property
    def counters(self) -> Counters:
        """What was dropped and refused."""
        return self._seat.counters

    def recover(self, now: float) -> None:
        """Continue with what is on disk, once, after the daemons that run here are registered."""
        self.target.recover(now)
        self.orchestrator.recover(now)

    def start(self, origin: int, source: int, target: int, now: float, *, numbered: bool) -> list[Outbound]:
        """Begin to move a daemon; `MigrationOrchestrator.start` has the rules."""
        return self._loop(self.orchestrator.start(origin, source, target, now, numbered=numbered), now)

    def cancel(self, origin: int, now: float) -> list[Outbound]:
        """Take a move back that this node drives."""
        return self._loop(self.orchestrator.cancel(origin, now), now)

    def deliver(self, origin: int, event: DaemonEvent) -> list[CausalEvent]:
        """Deliver an event to a daemon of this node, also while it moves; return its outputs."""
        return self.source.deliver(origin, event)

    def phase(self, origin: int) -> Phase | None:
        """Return how far a move of a daemon is that this node takes part in, or None."""
        phases = (role.phase(origin) for role in (self.orchestrator, self.source, self.target))
        return next((phase for phase in phases if phase is not None), None)

    def take_ended(self) -> list[MoveEnded]:
        """Return the moves that ended since the last call."""
        ended = list(self.orchestrator.ended)
        self.orchestrator.ended.clear()
        return ended

    def handle(self, message: MigrationMessage, sender: int, now: float) -> list[Outbound]:
        """Handle a message of a peer, and return what to send."""
        return self._loop(self._dispatch(message, sender, now), now)

    def tick(self, now: float) -> list[Outbound]:
        """Do what is due; call it also after the outputs of a daemon were published."""
        return self._loop([*self.orchestrator.tick(now), *self.source.tick(now), *self.target.tick(now)], now)

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        times = (role.next_timer() for role in (self.orchestrator, self.source, self.target))
        return min((time for time in times if time is not None), default=None)

    def _loop(self, out: Iterable[Outbound], now: float) -> list[Outbound]:
        waiting = deque((to, message, 0) for to, message in out)
        outside: list[Outbound] = []
        while waiting:
            to, message, depth = waiting.popleft()
            if to != self._seat.own:
                outside.append((to, message))
            elif depth >= MAX_SELF_DELIVERIES:
                self._seat.counters.count(Reason.MIGRATION_LOOP)
            else:
                waiting.extend((to, answer, depth + 1) for to, answer in self._dispatch(message, to, now))
        return outside

    def _dispatch(self, message: MigrationMessage, sender: int, now: float) -> list[Outbound]:
        match message:
            case TakeSnapshot():
                return self.source.take(message, sender, now)
            case SnapshotReady() if self._passes_on(message, sender):
                return self.orchestrator.part(message, sender, now)
            case SnapshotReady():
                return self.target.part(message, sender, now)
            case PartsMissing():
                return self._missing(message, sender, now)
            case RestoreComplete():
                return self.orchestrator.restored(message, sender, now)
            case BufferedEvents() if self._passes_on(message, sender):
                return self.orchestrator.events(message, sender)
            case BufferedEvents():
                return self.target.events(message, sender, now)
            case ReplayComplete():
                return self._replayed(message, sender, now)
            case CutoverNotify():
                return self.source.cutover(message, sender, now)
            case CleanupComplete():
                return self.orchestrator.cleaned(message, sender, now)
            case ActivateTarget():
                return self.target.activate(message, sender)
            case ActivateAck():
                self.orchestrator.activated(message, sender)
                return []
            case MigrationFailed():
                return self._failed(message, sender, now)

    def _passes_on(self, message: SnapshotReady | BufferedEvents, sender: int) -> bool:
        # From itself a message is for the target: this node has passed it on just now.
        return sender != self._seat.own and self.orchestrator.drives(message)

    def _missing(self, message: PartsMissing, sender: int, now: float) -> list[Outbound]:
        if self._is_from_target(message, sender):
            return self.orchestrator.missing(message, sender, now)
        return self.source.missing(message, sender, now)

    def _is_from_target(self, message: MigrationMessage, sender: int) -> bool:
        """Return whether the target says something to this node as the orchestrator, and not this node to its source."""
        own = self._seat.own
        is_from_outside = sender != own or self.orchestrator.is_target_of(message.origin, own)
        return self.orchestrator.drives(message) and is_from_outside

    def _replayed(self, message: ReplayComplete, sender: int, now: float) -> list[Outbound]:
        if self._is_from_target(message, sender):
            return self.orchestrator.replayed(message, sender, now)
        if self.source.expects(message):
            # Passed on by the orchestrator.
            return self.source.replayed(message, sender, now)
        return self.orchestrator.replayed(message, sender, now)

    def _failed(self, message: MigrationFailed, sender: int, now: float) -> list[Outbound]:
        own, drives = self._seat.own, self.orchestrator.drives(message)
        if drives and (sender != own or not self.orchestrator.is_taking_back(message.origin)):
            return self.orchestrator.failed(message, sender, now)
        if drives and is_confirmation(message):
            return self.orchestrator.failed(message, sender, now)
        self.target.failed(message, sender)
        return self.source.failed(message, sender)
