"""The node that a daemon leaves (compute.md §6), in the role of MigrationSourceHandler.

A move goes through these steps here:

| heard | done |
|---|---|
| TakeSnapshot | the daemon stops, or runs on if it is deterministic; its snapshot is sent in parts |
| events for it | a stopped daemon: kept; a running one: processed, and a copy kept |
| CutoverNotify, ReplayComplete | kept events are sent until the target has processed all; the daemon stops at the latest now |
| the target has everything | MOVED is written, the daemon is removed, CleanupComplete is sent |
| MigrationFailed, or nothing for too long | the daemon goes on here, with the events that were kept |

Writing MOVED is the only step that cannot be taken back by this node alone. A daemon that runs on while its state is
copied is compared at the end: the next link of its chain covers every output, so that the copy must have done the same.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import (
    Outbound,
    Pace,
    Phase,
    Seat,
    confirmation,
    failure,
    is_confirmation,
    is_withdrawal,
)
from meshbus.compute.migration.leaving import Leaving
from meshbus.compute.migration.transfer import Transfer
from meshbus.compute.recovery import revive
from meshbus.compute.store import Mark, Status, Stored, begin
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.errors import DaemonError, LocalProtocolError, MalformedPacket, MigrationError, MigrationFault
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.messages.causal import CausalEvent
from meshbus.wire.messages.envelope import seal_identity
from meshbus.wire.messages.migration import (
    CHUNK_BYTES,
    MAX_BUFFERED,
    BufferedEvent,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    FailureCode,
    MigrationFailed,
    PartsMissing,
    ReplayComplete,
    TakeSnapshot,
    pack_events,
)
from meshbus.wire.messages.snapshot import encode_snapshot

NOT_ON_SOURCE = "the daemon does not run on the source"
_MAX_BEGUN = 1024
"""Our choice: more than messages of old attempts can be under way."""

BOUNDS = (
    Bound(
        name="moves_begun",
        what="attempts to move a daemon away from here",
        by=By.PEER,
        per_node=_MAX_BEGUN,
        full="the oldest goes; the record of its daemon has the last ones too",
        counter="none: the record on disk knows them too",
    ),
)


class MigrationSourceHandler:
    """The daemons that leave this node."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._leaving: dict[int, Leaving] = {}
        self._begun: BoundedMap[int, None] = BoundedMap(_MAX_BEGUN)
        """Attempts that began here: each has one snapshot, so none begins twice."""

    def phase(self, origin: int) -> Phase | None:
        """Return how far a daemon is on its way out, or None."""
        leaving = self._leaving.get(origin)
        return None if leaving is None else leaving.phase

    # ── events for daemons ──────────────────────────────────────────────────────────────────

    def deliver(self, origin: int, event: DaemonEvent) -> list[CausalEvent]:
        """Process an event, or keep it if its daemon is being handed over; return the outputs.

        Raises MigrationError if a moving daemon has no room for it, DaemonError if the daemon fails.
        """
        host = self._host(origin)
        leaving = self._leaving.get(origin)
        if leaving is None:
            return host.deliver(event)
        if len(event.payload) > CHUNK_BYTES or self._is_full(leaving):
            # Better no move than a lost event. The orchestrator learns it from the answer to its next message.
            self._resume(leaving)
            self._seat.counters.count(Reason.REFUSE_MIGRATION_FULL)
            return host.deliver(event)
        if host.paused:
            leaving.keep(event)
            return []
        outputs = host.deliver(event)
        leaving.keep(event)
        return outputs

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def take(self, message: TakeSnapshot, sender: int, now: float) -> list[Outbound]:
        """Begin a move, or send the snapshot of one again."""
        leaving = self._leaving.get(message.origin)
        if leaving is not None:
            return self._take_again(leaving, message, sender, now)
        mark = self._seat.store.marked(message.origin)
        if mark is not None and (mark.status, mark.attempt) == (Status.MOVED, message.attempt):
            # A late repetition: the daemon was handed over in this attempt, which a refusal would deny.
            self._seat.counters.count(Reason.MIGRATION_STALE)
            return []
        if not self._may_move(message.origin, sender):
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return []
        problem = self._problem(message)
        if problem:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_STATE)
            return [(sender, failure(message.origin, message.attempt, problem))]
        if len(self._leaving) >= self._seat.settings.max_moves:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_FULL)
            return [(sender, failure(message.origin, message.attempt, "", FailureCode.NOT_READY))]
        host = self._host(message.origin)
        self._begin(message)
        # Until the snapshot is taken nothing new begins, so that outputs on their way can be published.
        host.paused = True
        leaving = Leaving(message, sender, host, Pace(self._seat.settings, now))
        self._leaving[message.origin] = leaving
        return self._continue(leaving, now)

    def cutover(self, message: CutoverNotify, sender: int, now: float) -> list[Outbound]:
        """Stop the daemon, and confirm it as soon as the target has everything."""
        leaving = self._leaving.get(message.origin)
        if leaving is None or leaving.attempt != message.attempt:
            return self._cutover_again(message, sender)
        if sender != leaving.orchestrator or message.target_node != leaving.target:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return []
        leaving.pace.heard_at = now
        leaving.stopping = True
        if leaving.transfer is not None:
            leaving.transfer.finish()
        return self._continue(leaving, now)

    def missing(self, message: PartsMissing, sender: int, now: float) -> list[Outbound]:
        """Send what the target has not got; the orchestrator passes it on."""
        leaving = self._leaving.get(message.origin)
        if leaving is None or sender != leaving.orchestrator or leaving.attempt != message.attempt:
            self._seat.counters.count(Reason.MIGRATION_STALE)
            return []
        if leaving.transfer is not None:
            leaving.pace.heard_at = now
            leaving.transfer.report(message)
        return self._continue(leaving, now)

    def replayed(self, message: ReplayComplete, sender: int, now: float) -> list[Outbound]:
        """Note how far the target has come; the orchestrator passes it on."""
        leaving = self._leaving.get(message.origin)
        if leaving is None or sender != leaving.orchestrator or leaving.attempt != message.attempt:
            return []
        done = message.replayed_seq + 1 - leaving.first
        if leaving.acked <= done <= leaving.sendable:
            if done > leaving.acked:
                leaving.pace.progress(now)
            leaving.acked, leaving.sent = done, max(done, leaving.sent)
            leaving.target_head = message.target_head
        return self._continue(leaving, now)

    def failed(self, message: MigrationFailed, sender: int) -> list[Outbound]:
        """Take a move back, and confirm it to an orchestrator that may wait for it."""
        if is_confirmation(message):
            return []
        leaving = self._leaving.get(message.origin)
        if leaving is not None and leaving.attempt == message.attempt:
            if sender not in (leaving.orchestrator, leaving.target):
                self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
                return []
            self._resume(leaving)
        elif leaving is None and is_withdrawal(message):
            self._take_back(message, sender)
        if message.attempt is None or not is_withdrawal(message):
            return []
        return [(sender, confirmation(message.origin, message.attempt))]

    def abandon(self, origin: int) -> tuple[list[Outbound], list[DaemonEvent]]:
        """End a move because the daemon has failed; return what to send, and the kept events that it has not processed.

        The caller restores the daemon from its checkpoint, which makes the copy at the target one of the past.
        """
        leaving = self._leaving.pop(origin, None)
        if leaving is None:
            return [], []
        told = failure(origin, leaving.attempt, "the daemon failed while it was moving, and goes on at the source")
        return [(leaving.orchestrator, told)], leaving.events[leaving.processed :]

    def is_stopping(self, origin: int) -> bool:
        """Return whether a daemon is about to be handed over: more events would only keep it from that."""
        leaving = self._leaving.get(origin)
        return leaving is not None and leaving.stopping

    def expects(self, message: ReplayComplete) -> bool:
        """Return whether a ReplayComplete is about a daemon that leaves, or has left, this node."""
        leaving = self._leaving.get(message.origin)
        if leaving is not None:
            return leaving.attempt == message.attempt
        mark = self._seat.store.marked(message.origin)
        return mark is not None and (mark.status, mark.attempt) == (Status.MOVED, message.attempt)

    def tick(self, now: float) -> list[Outbound]:
        """Send what is due, and take back what has waited too long."""
        out: list[Outbound] = []
        for leaving in list(self._leaving.values()):
            if leaving.pace.is_over(now):
                out += self._give_up(leaving)
            else:
                out += self._continue(leaving, now)
        return out

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        return min((self._due_at(leaving) for leaving in self._leaving.values()), default=None)

    # ── one move ────────────────────────────────────────────────────────────────────────────

    def _continue(self, leaving: Leaving, now: float) -> list[Outbound]:
        """Take the next step of a move that is possible now."""
        if leaving.transfer is None:
            return self._snapshot(leaving, now)
        if leaving.transfer.ready:
            return self._burst(leaving, now)
        if not leaving.stopping:
            return []
        if len(leaving.events) - leaving.acked <= self._seat.settings.cutover_lag:
            leaving.host.paused = True
            leaving.phase = Phase.CUTOVER
        if leaving.acked < leaving.sendable and self._is_confirmed(leaving):
            return self._send(leaving, now)
        if not leaving.host.paused or leaving.host.pending:
            return []
        if not leaving.verified:
            return self._verify(leaving, now)
        return self._hand_over(leaving)

    def _snapshot(self, leaving: Leaving, now: float) -> list[Outbound]:
        host = leaving.host
        if host.pending or not self._is_settled(host):
            return []
        try:
            raw = self._encode(leaving, now)
        except (DaemonError, MigrationError, LocalProtocolError) as error:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_STATE)
            self._resume(leaving)
            return [(leaving.orchestrator, failure(leaving.origin, leaving.attempt, str(error)))]
        host.paused = not leaving.shadow
        leaving.snapshot, leaving.first = raw, host.head.sequence + 1
        to = self._next_hop(leaving)
        leaving.transfer = Transfer(to, leaving.origin, leaving.attempt, host.head.sequence, raw)
        leaving.phase = Phase.TRANSFER
        return self._burst(leaving, now)

    def _burst(self, leaving: Leaving, now: float) -> list[Outbound]:
        transfer = leaving.transfer
        assert transfer is not None
        # What waits for the target's word needs no pace.
        if now < leaving.burst_at and not transfer.is_windowed:
            return []
        leaving.burst_at = now + self._seat.settings.pace_s
        leaving.pace.progress(now)
        return transfer.burst(transfer.ready if transfer.is_windowed else self._seat.settings.burst)

    def _send(self, leaving: Leaving, now: float) -> list[Outbound]:
        """Send events within the window: new ones at once, and all of them again when no answer came in time."""
        if leaving.pace.is_due(now):
            leaving.sent = leaving.acked
        start, end = leaving.sent, min(leaving.acked + self._seat.settings.event_window, leaving.sendable)
        leaving.sent = max(start, end)
        return self._events(leaving, leaving.buffered(start, end), self._next_hop(leaving))

    def _verify(self, leaving: Leaving, now: float) -> list[Outbound]:
        """Compare the copy with the daemon that has stopped: the next link covers every output."""
        if leaving.target_head is None:
            return []
        if leaving.target_head != leaving.host.next_link:
            self._resume(leaving)
            text = "the copy did something else than the original, so the daemon is not deterministic"
            return [(leaving.orchestrator, failure(leaving.origin, leaving.attempt, text))]
        leaving.verified = True
        return self._continue(leaving, now)

    def _hand_over(self, leaving: Leaving) -> list[Outbound]:
        # Only a 0.23 orchestrator leaves some: it does not tell what the target has, so they are sent once and directly.
        rest = leaving.buffered(leaving.acked, len(leaving.events))
        out = self._events(leaving, rest, leaving.target)
        mark = Mark(
            status=Status.MOVED,
            attempt=leaving.attempt,
            orchestrator=leaving.orchestrator,
            target=leaving.target,
            moves=leaving.host.moves,
            begun=self._begun_before(leaving.origin),
        )
        if self._seat.store.marked(leaving.origin) is None:
            self._seat.store.save(leaving.origin, Stored(mark=mark, snapshot=leaving.snapshot))
        else:
            self._seat.store.mark(leaving.origin, mark)
        self._seat.registry.remove(leaving.origin)
        del self._leaving[leaving.origin]
        return [*out, (leaving.orchestrator, CleanupComplete(origin=leaving.origin, attempt=leaving.attempt))]

    def _resume(self, leaving: Leaving) -> None:
        """Let the daemon go on here, with what was kept for it."""
        del self._leaving[leaving.origin]
        leaving.host.paused = False
        for event in leaving.events[leaving.processed :]:
            # An event that the daemon fails at is counted by its host, as it is outside of a move.
            with suppress(DaemonError):
                leaving.host.deliver(event)

    def _give_up(self, leaving: Leaving) -> list[Outbound]:
        self._resume(leaving)
        text = "the source waited too long, or had no room for more events"
        return [(leaving.orchestrator, failure(leaving.origin, leaving.attempt, text))]

    # ── repetitions and refusals ────────────────────────────────────────────────────────────

    def _take_again(self, leaving: Leaving, message: TakeSnapshot, sender: int, now: float) -> list[Outbound]:
        same = sender == leaving.orchestrator and message.attempt == leaving.attempt
        if not same or message.target_node != leaving.target:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_BUSY)
            return [(sender, failure(message.origin, message.attempt, "", FailureCode.ALREADY_MIGRATING))]
        leaving.pace.heard_at = now
        if leaving.transfer is not None:
            leaving.transfer.restart()
        return self._continue(leaving, now)

    def _cutover_again(self, message: CutoverNotify, sender: int) -> list[Outbound]:
        """Answer for a move that is over: only what was handed over to this target is confirmed.

        A 0.23 source confirms every CutoverNotify, also when its daemon goes on running (compute.md §6), and the daemon
        then runs twice.
        """
        mark = self._seat.store.marked(message.origin)
        if mark is not None and mark.status == Status.MOVED:
            handed_over = mark.attempt, mark.orchestrator, mark.target
            if handed_over == (message.attempt, sender, message.target_node):
                return [(sender, CleanupComplete(origin=message.origin, attempt=message.attempt))]
        self._seat.counters.count(Reason.MIGRATION_UNEXPECTED)
        return [(sender, failure(message.origin, message.attempt, "the source knows of no such move"))]

    def _take_back(self, message: MigrationFailed, sender: int) -> None:
        """Make a daemon that was handed over run here again, if its orchestrator says that the target never began."""
        stored = self._seat.store.load(message.origin)
        factory = self._seat.registry.factory(message.origin)
        if stored is None or factory is None or message.attempt is None or stored.mark.status != Status.MOVED:
            return
        if (stored.mark.attempt, stored.mark.orchestrator) != (message.attempt, sender):
            self._seat.counters.count(Reason.MIGRATION_STALE)
            return
        mark = Mark(status=Status.ACTIVE, moves=stored.mark.moves, begun=stored.mark.begun)
        try:
            host = revive(msgspec.structs.replace(stored, mark=mark), factory)
        except (DaemonError, MalformedPacket):
            self._seat.counters.count(Reason.REFUSE_MIGRATION_STATE)
            return
        self._seat.store.mark(message.origin, mark)
        self._seat.registry.add(host)

    def _is_settled(self, host: DaemonHost) -> bool:
        """Return whether the ledger of a daemon knows that it runs here, if it has one.

        Before that, its snapshot would name the term of another node, and count as an old one as soon as this node writes.
        """
        factory = self._seat.registry.factory(host.origin)
        return factory is None or not factory.has_ledger or host.in_ledger

    def _may_move(self, origin: int, sender: int) -> bool:
        factory = self._seat.registry.factory(origin)
        named = None if factory is None else factory.orchestrators
        return sender == self._seat.own or named is None or sender in named

    def _problem(self, message: TakeSnapshot) -> str:
        host = self._seat.registry.get(message.origin)
        if host is None:
            return NOT_ON_SOURCE
        if message.target_node == self._seat.own:
            return "the daemon runs on the target already"
        if message.attempt is None and host.inputs:
            return "the daemon reads logs, which only meshbus nodes can continue; all three nodes must be meshbus nodes"
        if message.attempt is not None and self._has_begun(message.origin, message.attempt):
            return "this attempt is over at the source; start another one"
        return ""

    def _begin(self, message: TakeSnapshot) -> None:
        if message.attempt is None:
            return
        self._begun.put(message.attempt, None)
        mark = self._seat.store.marked(message.origin)
        if mark is not None:
            # On disk before the first part leaves: after a crash the daemon goes on, and the snapshot is from the past.
            self._seat.store.mark(message.origin, begin(mark, message.attempt))

    def _has_begun(self, origin: int, attempt: int) -> bool:
        return attempt in self._begun or attempt in self._begun_before(origin)

    def _begun_before(self, origin: int) -> tuple[int, ...]:
        mark = self._seat.store.marked(origin)
        return () if mark is None else mark.begun

    def _next_hop(self, leaving: Leaving) -> int:
        # With the orchestrator on this node everything goes straight to the target (compute.md §5).
        return leaving.target if leaving.orchestrator == self._seat.own else leaving.orchestrator

    def _events(self, leaving: Leaving, events: list[BufferedEvent], to: int) -> list[Outbound]:
        groups = pack_events(events)
        return [(to, BufferedEvents(origin=leaving.origin, attempt=leaving.attempt, events=group)) for group in groups]

    def _encode(self, leaving: Leaving, now: float) -> bytes:
        seat, host = self._seat, leaving.host
        bare = leaving.attempt is None
        snapshot = host.snapshot(seat.wall(now), bare=bare, shadow=leaving.shadow)
        key = seat.noise_key_of(leaving.target) if host.identity.can_sign else None
        if key is not None:
            envelope = seal_identity(host.identity, snapshot.head, key, seat.entropy)
            snapshot = msgspec.structs.replace(snapshot, envelope=envelope)
        raw = encode_snapshot(snapshot)
        limit = seat.settings.max_plain_snapshot_bytes if bare else seat.settings.max_snapshot_bytes
        if len(raw) > limit:
            problem = f"its snapshot has {len(raw)} bytes; this target takes {limit}"
            raise MigrationError(MigrationFault.SNAPSHOT_TOO_LARGE, leaving.origin, problem)
        return raw

    def _host(self, origin: int) -> DaemonHost:
        host = self._seat.registry.get(origin)
        if host is None:
            raise MigrationError(MigrationFault.DAEMON_NOT_FOUND, origin, "it does not run on this node")
        return host

    def _is_full(self, leaving: Leaving) -> bool:
        return len(leaving.events) >= MAX_BUFFERED or leaving.bytes >= self._seat.settings.max_buffered_bytes

    def _is_confirmed(self, leaving: Leaving) -> bool:
        """Return whether someone tells this node what the target has processed: not so a 0.23 orchestrator."""
        return leaving.attempt is not None or leaving.orchestrator == self._seat.own

    def _due_at(self, leaving: Leaving) -> float:
        over = leaving.pace.heard_at + self._seat.settings.give_up_s
        if leaving.transfer is not None and leaving.transfer.ready:
            return leaving.burst_at
        # Everything else waits for a message, or for outputs to be published.
        is_sending = leaving.stopping and leaving.acked < leaving.sendable and self._is_confirmed(leaving)
        return min(leaving.pace.due_at(), over) if is_sending else over
