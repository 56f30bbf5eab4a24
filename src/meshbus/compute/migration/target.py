"""The node that a daemon moves to (compute.md §6), in the role of MigrationTargetHandler.

| heard | done |
|---|---|
| SnapshotReady, the last missing part | the daemon is restored, kept as STAGED, and RestoreComplete is sent |
| BufferedEvents | events are processed in the order of their numbers, kept, and ReplayComplete says how far it is |
| ActivateTarget | ACTIVE is written, the daemon runs here, ActivateAck is sent |
| MigrationFailed | what was staged is forgotten |

A staged daemon does nothing that anyone can see. Once ReplayComplete is sent, this node cannot know whether the source
has stopped, so it keeps the daemon until its orchestrator decides, and asks again and again by repeating its answer.

Only the node that sent the first part may go on with a move: it is recorded as the orchestrator. A 0.23 target lets any
peer add events (compute.md §5).
"""

from __future__ import annotations

from contextlib import suppress

from meshbus.compute.host import DaemonHost
from meshbus.compute.migration.base import Outbound, Pace, Phase, Seat, failure, is_confirmation
from meshbus.compute.migration.reassembler import Reassembler
from meshbus.compute.recovery import replay, revive
from meshbus.compute.registry import Factory
from meshbus.compute.store import Mark, Status, Stored
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.errors import AuthError, DaemonError, LocalProtocolError, RemoteProtocolError
from meshbus.names.identity import Identity
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.messages.checkpoint import is_shadow, moves_in
from meshbus.wire.messages.envelope import open_identity
from meshbus.wire.messages.migration import (
    MAX_BUFFERED,
    ActivateAck,
    ActivateTarget,
    BufferedEvent,
    BufferedEvents,
    FailureCode,
    MigrationFailed,
    MigrationMessage,
    PartsMissing,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
)
from meshbus.wire.messages.snapshot import StateSnapshot, decode_snapshot

_MAX_COMPLETED = 1024
"""Our choice: more than orchestrators that still wait for a confirmation."""
BOUNDS = (
    Bound(
        name="moves_completed",
        what="moves to here that are confirmed again if someone asks",
        by=By.PEER,
        per_node=_MAX_COMPLETED,
        full="the oldest goes",
        counter="none: who asks about an older move is told that it is over",
    ),
)

_UNREADABLE = "failed to parse snapshot bytes on target"
"""As 0.23 nodes say it."""


class _Arriving:
    """One daemon that is restored here and does not run yet."""

    def __init__(self, mark: Mark, host: DaemonHost, pace: Pace, snapshot: StateSnapshot) -> None:
        self.mark = mark
        self.host = host
        self.pace = pace
        self.phase = Phase.RESTORE
        self.created_ns = snapshot.created_ns
        self.shadow = is_shadow(snapshot.state)
        """Whether the source publishes the outputs of the events that follow."""
        self.restored = self.through = host.head.sequence
        """Number of the last event of the replay; the snapshot counts as `through_seq` events."""
        self.waiting: dict[int, BufferedEvent] = {}
        self.bytes = 0

    def answer(self) -> MigrationMessage:
        origin, attempt = self.host.origin, self.mark.attempt
        if self.phase == Phase.RESTORE:
            return RestoreComplete(origin=origin, attempt=attempt, restored_seq=self.restored)
        # The link of the last output does not cover its payload; among meshbus nodes the next link does.
        head = self.host.head if attempt is None else self.host.next_link
        return ReplayComplete(origin=origin, attempt=attempt, replayed_seq=self.through, target_head=head)


class MigrationTargetHandler:
    """The daemons that arrive at this node."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._arriving: dict[int, _Arriving] = {}
        self._parts = Reassembler(seat.settings.max_snapshot_bytes)
        self._completed: BoundedMap[tuple[int, int | None], int] = BoundedMap(_MAX_COMPLETED)
        """How far the replay came in moves that were completed, to confirm them again."""

    def phase(self, origin: int) -> Phase | None:
        """Return how far a daemon is on its way here, or None."""
        arriving = self._arriving.get(origin)
        return None if arriving is None else arriving.phase

    def recover(self, now: float) -> None:
        """Continue with what was staged before a restart.

        What cannot be restored stays on disk: its source may have stopped, and another restart may succeed.
        """
        for origin in self._seat.store.origins():
            self.recover_one(origin, now)

    def recover_one(self, origin: int, now: float) -> None:
        """Continue with one daemon that was staged before a restart, if there is one; its factory is here now."""
        mark, factory = self._seat.store.marked(origin), self._seat.registry.factory(origin)
        if mark is None or factory is None or mark.status != Status.STAGED or origin in self._arriving:
            return
        with suppress(DaemonError, RemoteProtocolError):
            stored = self._seat.store.load(origin)
            assert stored is not None
            self._arriving[origin] = self._recovered(stored, factory, now)

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def part(self, message: SnapshotReady, sender: int, now: float) -> list[Outbound]:
        """Take one part of a snapshot, and restore the daemon when it is complete."""
        arriving = self._arriving.get(message.origin)
        if arriving is not None:
            return self._part_again(arriving, message, sender, now)
        refusal = self._refusal(message, sender)
        if refusal is not None:
            return refusal
        whole = self._feed(message, sender, now)
        return self._missing(message, sender) if whole is None else self._restore(message, sender, whole, now)

    def events(self, message: BufferedEvents, sender: int, now: float) -> list[Outbound]:
        """Process events that the daemon has missed."""
        arriving = self._found(message.origin, message.attempt, sender)
        if arriving is None:
            return self._unknown(message, sender)
        if not self._keep(arriving, message):
            self._seat.counters.count(Reason.REFUSE_MIGRATION_FULL)
            return []
        failed = self._replay(arriving)
        if failed is not None:
            return [(sender, failure(message.origin, message.attempt, failed))] if message.attempt is not None else []
        arriving.phase = Phase.REPLAY
        arriving.pace.progress(now)
        return [(arriving.mark.orchestrator, arriving.answer())]

    def activate(self, message: ActivateTarget, sender: int) -> list[Outbound]:
        """Start the daemon here: its source has stopped."""
        origin, attempt = message.origin, message.attempt
        arriving = self._found(origin, attempt, sender)
        if arriving is None:
            return self._activate_again(message, sender)
        if self._replay(arriving) is not None:
            return []
        host = arriving.host
        host.moves = arriving.mark.moves + 1
        begun = arriving.mark.begun
        self._seat.store.mark(origin, Mark(status=Status.ACTIVE, attempt=attempt, moves=host.moves, begun=begun))
        del self._arriving[origin]
        self._seat.registry.add(host)
        self._completed.put((origin, attempt), arriving.through)
        return [(sender, ActivateAck(origin=origin, attempt=attempt, replayed_seq=arriving.through))]

    def failed(self, message: MigrationFailed, sender: int) -> None:
        """Remove what was staged, if its orchestrator says so. What runs is not touched."""
        arriving = self._arriving.get(message.origin)
        if arriving is None:
            self._parts.drop(sender, message.origin)
            return
        if arriving.mark.attempt != message.attempt or is_confirmation(message):
            return
        if sender != arriving.mark.orchestrator:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return
        self._parts.drop(sender, message.origin)
        self._forget(arriving)

    def tick(self, now: float) -> list[Outbound]:
        """Repeat the last answer of moves that wait: an orchestrator that knows nothing of one says so."""
        due = [arriving for arriving in self._arriving.values() if arriving.mark.attempt is not None]
        out: list[Outbound] = [
            (arriving.mark.orchestrator, arriving.answer()) for arriving in due if arriving.pace.is_due(now)
        ]
        for arriving in list(self._arriving.values()):
            # Without a number nobody answers. Before the replay the source cannot have stopped, so it may be forgotten.
            unnumbered = arriving.mark.attempt is None and arriving.phase == Phase.RESTORE
            if unnumbered and arriving.pace.is_over(now):
                self._forget(arriving)
        return out

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        return min((arriving.pace.due_at() for arriving in self._arriving.values()), default=None)

    def _recovered(self, stored: Stored, factory: Factory, now: float) -> _Arriving:
        snapshot = decode_snapshot(stored.snapshot)
        host = revive(stored, factory)
        arriving = _Arriving(stored.mark, host, Pace(self._seat.settings, now), snapshot)
        arriving.restored = snapshot.through_seq
        arriving.through = snapshot.through_seq + len(stored.replayed)
        # It may have confirmed the replay before the restart, and then its source may have stopped.
        arriving.phase = Phase.REPLAY
        return arriving

    def _forget(self, arriving: _Arriving) -> None:
        origin, mark = arriving.host.origin, arriving.mark
        del self._arriving[origin]
        if not mark.begun:
            self._seat.store.remove(origin)
            return
        # It ran here before, and late messages of those attempts may come yet; the next snapshot has as many moves.
        left = Mark(status=Status.MOVED, moves=max(mark.moves - 1, 0), begun=mark.begun)
        self._seat.store.save(origin, Stored(mark=left, snapshot=b""))

    # ── snapshots ───────────────────────────────────────────────────────────────────────────

    def _feed(self, message: SnapshotReady, sender: int, now: float) -> bytes | None:
        """Take a part, and return the snapshot if it is complete."""
        whole = self._parts.feed(message, sender, now)
        if isinstance(whole, str):
            self._seat.counters.count(Reason.MIGRATION_PART)
        return whole if isinstance(whole, bytes) else None

    def _missing(self, message: SnapshotReady, sender: int) -> list[Outbound]:
        """Tell a meshbus source from time to time which parts it has to send, and so that it may go on."""
        ranges = None if message.attempt is None else self._parts.missing(message, sender)
        if ranges is None:
            return []
        told = PartsMissing(
            origin=message.origin,
            attempt=message.attempt,
            seq_through=message.seq_through,
            total_chunks=message.total_chunks,
            ranges=ranges,
        )
        return [(sender, told)]

    def _part_again(self, arriving: _Arriving, message: SnapshotReady, sender: int, now: float) -> list[Outbound]:
        if sender != arriving.mark.orchestrator:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return []
        if message.attempt != arriving.mark.attempt:
            # The orchestrator has given the older attempt up, and says so when it is asked about it.
            self._seat.counters.count(Reason.MIGRATION_STALE)
            return [(sender, arriving.answer())]
        if message.attempt is None:
            return self._plain_again(arriving, message, sender, now)
        # Restored once; the answer was lost. One answer for a whole repetition is enough.
        return [(sender, arriving.answer())] if message.chunk_index + 1 == message.total_chunks else []

    def _plain_again(self, arriving: _Arriving, message: SnapshotReady, sender: int, now: float) -> list[Outbound]:
        """Take a part in a move without a number: of a snapshot that is here, or of a newer one.

        A 0.23 orchestrator gives a move up without a word, its daemon goes on, and it may try again (compute.md §7). Then
        what is staged here is from the past, and to confirm it again, as a 0.23 target does, would lose what followed.
        """
        whole = self._feed(message, sender, now)
        if whole is None:
            return []
        try:
            created_ns = decode_snapshot(whole).created_ns
        except RemoteProtocolError as error:
            return self._refuse(sender, message, f"{_UNREADABLE}: {error}")
        if created_ns <= arriving.created_ns:
            return [(sender, arriving.answer())]
        self._forget(arriving)
        return self._restore(message, sender, whole, now)

    def _refusal(self, message: SnapshotReady, sender: int) -> list[Outbound] | None:
        """Return the answer to a part that is not wanted, or None if it is."""
        origin, attempt = message.origin, message.attempt
        if origin in self._seat.registry:
            if (origin, attempt) in self._completed:
                self._seat.counters.count(Reason.MIGRATION_STALE)
                return []
            self._seat.counters.count(Reason.REFUSE_MIGRATION_BUSY)
            return [(sender, failure(origin, attempt, "the daemon runs on the target already"))]
        factory = self._seat.registry.factory(origin)
        if factory is None:
            self._seat.counters.count(Reason.MIGRATION_UNEXPECTED)
            return [(sender, failure(origin, attempt, "", FailureCode.FACTORY_NOT_FOUND))]
        allowed = factory.orchestrators is None or sender in {*factory.orchestrators, self._seat.own}
        if not allowed:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return []
        if len(self._arriving) >= self._seat.settings.max_moves:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_FULL)
            return [(sender, failure(origin, attempt, "", FailureCode.NOT_READY))]
        return None

    def _restore(self, message: SnapshotReady, sender: int, raw: bytes, now: float) -> list[Outbound]:
        origin, attempt = message.origin, message.attempt
        factory = self._seat.registry.factory(origin)
        assert factory is not None
        try:
            snapshot = decode_snapshot(raw)
            if snapshot.origin_hash != origin or snapshot.through_seq != message.seq_through:
                return self._refuse(sender, message, _UNREADABLE)
            moves = moves_in(snapshot.state)
            if self._is_past(origin, attempt, moves):
                self._seat.counters.count(Reason.MIGRATION_STALE)
                return []
            identity = self._identity(snapshot, factory)
            host = DaemonHost.restored(snapshot, factory.create(), identity)
        except RemoteProtocolError as error:
            return self._refuse(sender, message, f"{_UNREADABLE}: {error}")
        except (AuthError, DaemonError, LocalProtocolError) as error:
            return self._refuse(sender, message, str(error))
        before = self._seat.store.marked(origin)
        begun = () if before is None else before.begun
        mark = Mark(status=Status.STAGED, attempt=attempt, orchestrator=sender, moves=moves, begun=begun)
        seed = identity.seed if identity.can_sign else None
        self._seat.store.save(origin, Stored(mark=mark, snapshot=raw, seed=seed))
        arriving = _Arriving(mark, host, Pace(self._seat.settings, now), snapshot)
        self._arriving[origin] = arriving
        return [(sender, arriving.answer())]

    def _is_past(self, origin: int, attempt: int | None, moves: int) -> bool:
        """Return whether a snapshot is older than what this node has handed over."""
        mark = self._seat.store.marked(origin)
        return mark is not None and mark.status == Status.MOVED and attempt is not None and moves <= mark.moves

    def _identity(self, snapshot: StateSnapshot, factory: Factory) -> Identity:
        if snapshot.envelope is not None:
            key = self._seat.static_private_key
            return open_identity(snapshot.envelope, snapshot.entity_id, snapshot.head, key)
        if factory.identity is None:
            raise LocalProtocolError(
                "the target has no key of the daemon, and the snapshot brings no identity envelope"
            )
        if factory.identity.entity_id != snapshot.entity_id:
            raise LocalProtocolError("the target has another key for the daemon than the snapshot's")
        return factory.identity

    def _refuse(self, sender: int, message: SnapshotReady, text: str) -> list[Outbound]:
        self._seat.counters.count(Reason.REFUSE_MIGRATION_STATE)
        return [(sender, failure(message.origin, message.attempt, text))]

    # ── events ──────────────────────────────────────────────────────────────────────────────

    def _keep(self, arriving: _Arriving, message: BufferedEvents) -> bool:
        for event in message.events:
            # Without a number of the attempt the link has that of the event (compute.md §6).
            number = event.link.sequence if message.attempt is None else event.received_at
            if number <= arriving.through or number in arriving.waiting:
                continue
            size = arriving.bytes + len(event.payload)
            if len(arriving.waiting) >= MAX_BUFFERED or size > self._seat.settings.max_buffered_bytes:
                return False
            arriving.waiting[number] = event
            arriving.bytes = size
        return True

    def _replay(self, arriving: _Arriving) -> str | None:
        """Process what is next, and return why it failed, or None. What was processed counts either way."""
        done: list[BufferedEvent] = []
        problem = None
        while problem is None and (event := arriving.waiting.get(arriving.through + 1)) is not None:
            try:
                replay(arriving.host, event, shadow=arriving.shadow)
            except DaemonError as error:
                problem = str(error)
            else:
                arriving.through += 1
                arriving.bytes -= len(event.payload)
                del arriving.waiting[arriving.through]
                done.append(event)
        if done:
            self._seat.store.append(arriving.host.origin, done)
        return problem

    def _found(self, origin: int, attempt: int | None, sender: int) -> _Arriving | None:
        """Return the move that a message of this sender is about."""
        arriving = self._arriving.get(origin)
        if arriving is None:
            return None
        if sender != arriving.mark.orchestrator:
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return None
        if attempt != arriving.mark.attempt:
            self._seat.counters.count(Reason.MIGRATION_STALE)
            return None
        return arriving

    def _unknown(self, message: BufferedEvents, sender: int) -> list[Outbound]:
        if message.origin in self._arriving:
            return []
        self._seat.counters.count(Reason.MIGRATION_UNEXPECTED)
        if message.attempt is None or (message.origin, message.attempt) in self._completed:
            return []
        mark = self._seat.store.marked(message.origin)
        if mark is not None and mark.attempt == message.attempt:
            return []
        return [(sender, failure(message.origin, message.attempt, "the target knows of no such move"))]

    def _activate_again(self, message: ActivateTarget, sender: int) -> list[Outbound]:
        """Confirm a move again. Any record of the daemon shows that the move is over: a newer one has followed it."""
        origin, attempt = message.origin, message.attempt
        through = self._completed.get((origin, attempt))
        if through is None and origin not in self._arriving:
            mark = self._seat.store.marked(origin)
            is_staged = mark is not None and (mark.status, mark.attempt) == (Status.STAGED, attempt)
            through = 0 if mark is not None and attempt is not None and not is_staged else None
        if through is not None:
            return [(sender, ActivateAck(origin=origin, attempt=attempt, replayed_seq=through))]
        self._seat.counters.count(Reason.MIGRATION_UNEXPECTED)
        return []
