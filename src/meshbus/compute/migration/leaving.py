"""One daemon on its way out: what its source remembers of the move, and the events that it keeps for the target.

Events are numbered for the replay, from the snapshot's `through_seq` + 1. A 0.23 target reads that number from the link;
meshbus nodes read it from `received_at`, leave the link to the event, and mark in it what the source has not processed
(docs/wire/profile.md).
"""

from __future__ import annotations

from meshbus.compute.daemon import DaemonEvent, is_deterministic
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import Pace, Phase
from meshbus.compute.migration.transfer import Transfer
from meshbus.compute.recovery import UNPROCESSED
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import BufferedEvent, TakeSnapshot


class Leaving:
    """One daemon on its way out."""

    def __init__(self, message: TakeSnapshot, orchestrator: int, host: DaemonHost, pace: Pace) -> None:
        self.origin = message.origin
        self.target = message.target_node
        self.attempt = message.attempt
        self.orchestrator = orchestrator
        self.host = host
        self.pace = pace
        self.phase = Phase.SNAPSHOT
        self.shadow = message.attempt is not None and is_deterministic(host.daemon)
        """Whether the daemon runs on while its state is copied."""
        self.transfer: Transfer | None = None
        self.snapshot = b""
        self.burst_at = 0.0
        self.first = 0
        """Number of the first event after the snapshot."""
        self.events: list[DaemonEvent] = []
        self.bytes = 0
        self.processed = 0
        """Events that the daemon has processed here, too: the first ones, while it ran on."""
        self.verified = not self.shadow
        """Whether the target's copy is known to have done the same with them."""
        self.sent = 0
        self.acked = 0
        """Events that were sent, and that the target has processed, counted from the first one."""
        self.target_head: CausalLink | None = None
        """The next link of the target's copy, after the events that it has processed."""
        self.stopping = False
        """Whether the orchestrator has asked for the handover."""

    def keep(self, event: DaemonEvent) -> None:
        """Add an event for the target."""
        if not self.host.paused:
            self.processed += 1
        self.events.append(event)
        self.bytes += len(event.payload)

    @property
    def sendable(self) -> int:
        """How many of the events may be sent: until the copy is verified, those that it can be compared by."""
        return len(self.events) if self.verified else self.processed

    def buffered(self, start: int, end: int) -> list[BufferedEvent]:
        """Return a range of the kept events as they travel, with their numbers."""
        return [self._buffered(event, self.first + place) for place, event in enumerate(self.events[start:end], start)]

    def _buffered(self, event: DaemonEvent, number: int) -> BufferedEvent:
        if self.attempt is None:
            return BufferedEvent(CausalLink(event.origin, sequence=number), event.payload, number)
        mark = 0 if number < self.first + self.processed else UNPROCESSED
        return BufferedEvent(CausalLink(event.origin, 0, event.sequence, mark), event.payload, number)
