"""A copy of a daemon that runs elsewhere: its last snapshot, and the events that came since (compute.md §8).

The events that a snapshot contains are known exactly, because its checkpoint has the highest sequence of each origin. A
copy therefore repeats no event and skips none when it takes over.
"""

from __future__ import annotations

from collections import deque

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.horizon import Horizon
from meshbus.compute.host import DaemonHost
from meshbus.compute.registry import Factory
from meshbus.engine.base.counters import Counters
from meshbus.names.identity import Identity
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.wire.messages.causal import CausalEvent, hash_event
from meshbus.wire.messages.checkpoint import decode_checkpoint, is_checkpoint
from meshbus.wire.messages.snapshot import StateSnapshot

MAX_BUFFERED_INPUTS = 16_384
"""Events that a copy keeps until the next snapshot contains them. Our choice: with the largest events, 128 MiB."""

BOUNDS = (
    Bound(
        name="buffered_inputs",
        what="events for a daemon of which this node has a copy",
        by=By.PEER,
        per_node=None,
        per={"member of a group": MAX_BUFFERED_INPUTS},
        full="the oldest goes; a takeover then lacks it",
        counter=forgotten("buffered_inputs"),
    ),
)


class StandbyCopy:
    """What one node has of a daemon that runs on another one."""

    def __init__(self, counters: Counters) -> None:
        self.snapshot: StateSnapshot | None = None
        self._counters = counters
        self._highest = -1
        self._seen = Horizon()
        self._buffered: deque[DaemonEvent] = deque()

    def __len__(self) -> int:
        return len(self._buffered)

    @property
    def through(self) -> int:
        """Number of the last output that is in the snapshot."""
        return 0 if self.snapshot is None else self.snapshot.through_seq

    @property
    def digest(self) -> int:
        """The parent hash of the output after it, or 0 if there is no snapshot."""
        if self.snapshot is None:
            return 0
        state = self.snapshot.state
        return decode_checkpoint(state).parent_hash if is_checkpoint(state) else hash_event(self.snapshot.head, state)

    def sync(self, snapshot: StateSnapshot) -> bool:
        """Take a newer snapshot and forget the events that it contains; return whether it is newer.

        Raises MalformedPacket for a damaged checkpoint.
        """
        # state.md §4: not even one that is as new as the newest that was ever here.
        if snapshot.through_seq <= self._highest:
            return False
        observed = decode_checkpoint(snapshot.state).observed if is_checkpoint(snapshot.state) else ()
        self.snapshot, self._highest, self._seen = snapshot, snapshot.through_seq, Horizon(observed)
        self._buffered = deque(event for event in self._buffered if self._is_new(event))
        return True

    def buffer(self, event: DaemonEvent) -> None:
        """Keep an event until a snapshot contains it."""
        if not self._is_new(event):
            return
        if len(self._buffered) >= MAX_BUFFERED_INPUTS:
            self._buffered.popleft()
            self._counters.add("forget", "buffered_inputs")
        self._buffered.append(event)

    def promote(
        self, factory: Factory, identity: Identity, new: DaemonHost | None = None
    ) -> tuple[DaemonHost, list[CausalEvent]]:
        """Return the daemon as it goes on here, and what it emitted for the events that were buffered.

        Without a snapshot it is `new`, or one without a history. Raises DaemonError if the daemon refuses the state or
        fails.
        """
        host = DaemonHost(identity, factory.create()) if new is None else new
        if self.snapshot is not None:
            host = DaemonHost.restored(self.snapshot, factory.create(), identity)
        emitted = [output for event in self._buffered if accepts(host, event) for output in host.deliver(event)]
        self._buffered.clear()
        return host, emitted

    def reset(self) -> None:
        """Begin again: the daemon runs elsewhere with another history."""
        self.snapshot, self._highest, self._seen = None, -1, Horizon()
        self._buffered.clear()

    def _is_new(self, event: DaemonEvent) -> bool:
        return event.sequence > (self._seen.seen(event.origin) or 0)


def accepts(host: DaemonHost, event: DaemonEvent) -> bool:
    """Return whether an event is new to a daemon; the same one may come twice when its node changes."""
    return event.sequence > (host.horizon.seen(event.origin) or 0)
