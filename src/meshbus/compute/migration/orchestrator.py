"""The node that drives a move (compute.md §6), in the role of MigrationOrchestrator.

| phase | waits for | repeats |
|---|---|---|
| SNAPSHOT | the first part, from the source | TakeSnapshot |
| TRANSFER | RestoreComplete, from the target | TakeSnapshot, so that the source sends all parts again |
| REPLAY | ReplayComplete, from the target | BufferedEvents without events |
| CUTOVER | CleanupComplete, from the source | CutoverNotify |
| COMPLETE | ActivateAck, from the target | ActivateTarget |

A move can be taken back until it is COMPLETE: until then this node has not told the target to begin, and never will. From
CUTOVER on the source may have stopped, so what was decided is on disk before anyone is told, and is carried out after a
restart. A source that knows nothing of the move refuses CutoverNotify, and so ends it.

Everything is accepted only from the node that the record names, and, in a numbered attempt, only with its number. A 0.23
orchestrator takes RestoreComplete and ReplayComplete from anyone, and can so be led to a wrong target (compute.md §5).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from meshbus.compute.migration.base import Outbound, Pace, Phase, Seat, advance, failure, is_confirmation, withdrawal
from meshbus.compute.migration.source import MigrationSourceHandler
from meshbus.compute.store import Decision, Outcome
from meshbus.errors import MalformedPacket, MigrationError, MigrationFault
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.messages.migration import (
    ActivateAck,
    ActivateTarget,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    FailureCode,
    MigrationFailed,
    MigrationMessage,
    PartsMissing,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
    TakeSnapshot,
)
from meshbus.wire.messages.snapshot import check_snapshot_start

_MAX_ENDED = 1024
"""Our choice: the node takes them after each call."""

BOUNDS = (
    Bound(
        name="moves_ended",
        what="ends of moves that the node has not taken yet",
        by=By.PEER,
        per_node=_MAX_ENDED,
        full="the oldest goes",
        counter="none: the caller of a move that is forgotten times out",
    ),
)

_FAULTS = {
    FailureCode.NOT_READY: MigrationFault.NOT_READY,
    FailureCode.FACTORY_NOT_FOUND: MigrationFault.FACTORY_NOT_FOUND,
    FailureCode.COMPUTE_NOT_SUPPORTED: MigrationFault.COMPUTE_NOT_SUPPORTED,
    FailureCode.STATE_FAILED: MigrationFault.STATE_FAILED,
    FailureCode.ALREADY_MIGRATING: MigrationFault.ALREADY_MIGRATING,
    FailureCode.IDENTITY_TRANSPORT_FAILED: MigrationFault.IDENTITY_TRANSPORT_FAILED,
    FailureCode.NOT_READY_TIMEOUT: MigrationFault.NOT_READY_TIMEOUT,
}


class MoveEnded(NamedTuple):
    """How a move ended."""

    origin: int
    source: int
    target: int
    error: MigrationError | None = None
    """Why the daemon did not move; None if it did."""


class _Move:
    def __init__(self, origin: int, ends: tuple[int, int], attempt: int | None, pace: Pace) -> None:
        self.origin = origin
        self.source, self.target = ends
        self.attempt = attempt
        self.phase = Phase.SNAPSHOT
        self.pace = pace
        self.error: MigrationError | None = None
        """Why the move is being taken back; the source still has to confirm it."""
        self.decided = False

    def decision(self) -> Decision:
        outcome = Outcome.BEGIN if self.phase == Phase.COMPLETE else Outcome.HAND_OVER
        return Decision(
            origin=self.origin,
            source=self.source,
            target=self.target,
            attempt=self.attempt,
            outcome=outcome if self.error is None else Outcome.TAKE_BACK,
        )


class MigrationOrchestrator:
    """The moves that this node drives."""

    def __init__(self, seat: Seat, source: MigrationSourceHandler) -> None:
        self._seat = seat
        self._source = source
        self._moves: dict[int, _Move] = {}
        self.ended: deque[MoveEnded] = deque(maxlen=_MAX_ENDED)
        """Moves that ended, until the caller takes them."""

    def phase(self, origin: int) -> Phase | None:
        """Return how far a move is that this node drives, or None."""
        move = self._moves.get(origin)
        return None if move is None else move.phase

    def start(self, origin: int, source: int, target: int, now: float, *, numbered: bool) -> list[Outbound]:
        """Begin to move a daemon from one node to another.

        `numbered` says that source and target are meshbus nodes that agreed on it. Raises MigrationError if the daemon
        is moving already, or if this node is the source and cannot give it away.
        """
        if origin in self._moves:
            raise MigrationError(MigrationFault.ALREADY_MIGRATING, origin, "it is being moved already")
        if source == target:
            raise MigrationError(MigrationFault.TARGET_UNAVAILABLE, origin, "source and target are the same node")
        if len(self._moves) >= self._seat.settings.max_moves:
            problem = f"{len(self._moves)} daemons are being moved; wait until one of them has arrived"
            raise MigrationError(MigrationFault.BUFFER_FULL, origin, problem)
        attempt = int.from_bytes(self._seat.entropy(8), "little") if numbered else None
        move = _Move(origin, (source, target), attempt, Pace(self._seat.settings, now))
        request = TakeSnapshot(origin=origin, attempt=attempt, target_node=target)
        if source != self._seat.own:
            self._moves[origin] = move
            return [(source, request)]
        out = self._source.take(request, source, now)
        for _, message in out:
            if isinstance(message, MigrationFailed):
                raise MigrationError(_FAULTS[message.code], origin, message.text or "the source refused")
        move.phase = advance(origin, move.phase, Phase.TRANSFER)
        self._moves[origin] = move
        return out

    def cancel(self, origin: int, now: float) -> list[Outbound]:
        """Take a move back.

        Raises MigrationError if there is none, or if the target was told to begin.
        """
        move = self._moves.get(origin)
        if move is None:
            raise MigrationError(MigrationFault.DAEMON_NOT_FOUND, origin, "it is not being moved by this node")
        if move.phase == Phase.COMPLETE:
            raise MigrationError(
                MigrationFault.WRONG_PHASE,
                origin,
                "the source has stopped, so it will run at the target; wait until it does",
            )
        return self._take_back(move, MigrationError(MigrationFault.CANCELED, origin, "cancel requested"), now)

    def recover(self, now: float) -> None:
        """Continue with what was decided before a restart."""
        for decision in self._seat.store.decisions():
            ends = decision.source, decision.target
            move = _Move(decision.origin, ends, decision.attempt, Pace(self._seat.settings, now))
            move.phase = Phase.COMPLETE if decision.outcome == Outcome.BEGIN else Phase.CUTOVER
            move.decided = True
            if decision.outcome == Outcome.TAKE_BACK:
                move.error = MigrationError(MigrationFault.CANCELED, decision.origin, "taken back before a restart")
            self._moves[decision.origin] = move

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def is_taking_back(self, origin: int) -> bool:
        """Return whether a move is being taken back, and waits for the source."""
        move = self._moves.get(origin)
        return move is not None and move.error is not None

    def is_target_of(self, origin: int, node: int) -> bool:
        """Return whether this node moves a daemon to that node."""
        move = self._moves.get(origin)
        return move is not None and move.target == node

    def drives(self, message: MigrationMessage) -> bool:
        """Return whether a message is about a move that this node drives."""
        move = self._moves.get(message.origin)
        return move is not None and move.attempt == message.attempt

    def part(self, message: SnapshotReady, sender: int, now: float) -> list[Outbound]:
        """Pass a part of a snapshot on to the target."""
        move = self._from(message, sender, is_target=False)
        if move is None or move.phase > Phase.TRANSFER:
            return []
        if message.chunk_index == 0:
            try:
                check_snapshot_start(message.chunk, message.origin)
            except MalformedPacket:
                self._seat.counters.count(Reason.MIGRATION_PART)
                return []
            move.phase = Phase.TRANSFER
        move.pace.progress(now)
        return [(move.target, message)]

    def missing(self, message: PartsMissing, sender: int, now: float) -> list[Outbound]:
        """Pass on to the source what the target has not got."""
        move = self._from(message, sender, is_target=True)
        if move is None or move.phase > Phase.TRANSFER or move.error is not None:
            return []
        move.pace.progress(now)
        return [(move.source, message)]

    def restored(self, message: RestoreComplete, sender: int, now: float) -> list[Outbound]:
        """Send the target what the daemon missed: here nothing, the source has the events."""
        move = self._from(message, sender, is_target=True)
        if move is None or move.error is not None:
            return self._not_driven(message, sender, move)
        if move.phase == Phase.TRANSFER:
            move.phase = advance(move.origin, advance(move.origin, move.phase, Phase.RESTORE), Phase.REPLAY)
            move.pace.progress(now)
        return [(sender, self._no_events(move))] if move.phase == Phase.REPLAY else []

    def replayed(self, message: ReplayComplete, sender: int, now: float) -> list[Outbound]:
        """Decide to finish the move, and tell the source how far the target is."""
        move = self._from(message, sender, is_target=True)
        if move is None or move.error is not None:
            return self._not_driven(message, sender, move)
        if move.phase == Phase.COMPLETE:
            return [(sender, ActivateTarget(origin=move.origin, attempt=move.attempt))]
        out: list[Outbound] = []
        if move.phase != Phase.CUTOVER:
            # On disk first: from here on the source may stop, and someone must remember who begins.
            move.phase, move.decided = Phase.CUTOVER, True
            self._seat.store.decide(move.decision())
            move.pace.progress(now)
            out.append((move.source, self._cutover(move)))
        move.pace.heard_at = now
        # A 0.23 source has no use for it.
        tells = move.attempt is not None or move.source == self._seat.own
        return [*out, (move.source, message)] if tells else out

    def events(self, message: BufferedEvents, sender: int) -> list[Outbound]:
        """Pass events from the source on to the target."""
        move = self._from(message, sender, is_target=False)
        if move is None or move.phase not in (Phase.REPLAY, Phase.CUTOVER):
            return []
        return [(move.target, message)]

    def cleaned(self, message: CleanupComplete, sender: int, now: float) -> list[Outbound]:
        """Send the target the word to begin: the source has stopped."""
        move = self._from(message, sender, is_target=False)
        if move is None or move.phase != Phase.CUTOVER or move.error is not None:
            return []
        move.phase = advance(move.origin, move.phase, Phase.COMPLETE)
        # On disk first: once the target is told to begin, the move is never taken back.
        self._seat.store.decide(move.decision())
        move.pace.progress(now)
        return [(move.target, ActivateTarget(origin=move.origin, attempt=move.attempt))]

    def activated(self, message: ActivateAck, sender: int) -> None:
        """End a move that succeeded."""
        move = self._from(message, sender, is_target=True)
        if move is not None and move.phase == Phase.COMPLETE:
            self._end(move)

    def failed(self, message: MigrationFailed, sender: int, now: float) -> list[Outbound]:
        """Take a move back that the source or the target cannot go on with."""
        move = self._moves.get(message.origin)
        if move is None or move.attempt != message.attempt:
            return []
        if sender not in (move.source, move.target):
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return []
        if move.error is not None:
            # Only a confirmation shows that the source has heard of it: it may have stopped before.
            if sender == move.source and is_confirmation(message):
                self._end(move)
            return []
        if move.phase == Phase.COMPLETE:
            # The source may be ahead already: the daemon has come back to it in a later move. The target decides.
            return []
        if message.code == FailureCode.NOT_READY and sender == move.target and move.phase == Phase.TRANSFER:
            # It may be ready soon; the parts are sent again, each time after a longer pause (compute.md §7).
            move.pace.sent_at = now
            return []
        error = MigrationError(_FAULTS[message.code], message.origin, message.text or _FAULTS[message.code])
        return self._take_back(move, error, now, told=sender)

    def tick(self, now: float) -> list[Outbound]:
        """Repeat what was not answered, and take back what makes no progress."""
        out: list[Outbound] = []
        for move in list(self._moves.values()):
            if move.pace.is_over(now) and (overdue := self._overdue(move, now)) is not None:
                out += overdue
            elif move.pace.is_due(now):
                out += self._repeat(move)
        return out

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        return min((move.pace.due_at() for move in self._moves.values()), default=None)

    # ── one move ────────────────────────────────────────────────────────────────────────────

    def _repeat(self, move: _Move) -> list[Outbound]:
        if move.error is not None:
            return [(move.source, self._canceled(move))]
        match move.phase:
            case Phase.SNAPSHOT | Phase.TRANSFER:
                # A 0.23 source ignores a second request (compute.md §7).
                repeats = move.attempt is not None or move.source == self._seat.own
                request = TakeSnapshot(origin=move.origin, attempt=move.attempt, target_node=move.target)
                return [(move.source, request)] if repeats else []
            case Phase.RESTORE | Phase.REPLAY:
                return [(move.target, self._no_events(move))]
            case Phase.CUTOVER:
                return [(move.source, self._cutover(move))]
            case Phase.COMPLETE:
                return [(move.target, ActivateTarget(origin=move.origin, attempt=move.attempt))]

    def _overdue(self, move: _Move, now: float) -> list[Outbound] | None:
        """Return the end of a move that was silent for too long, or None if it must not end by itself."""
        if move.error is not None and not move.decided:
            # The source goes on by itself when it hears nothing.
            self._end(move)
            return []
        if move.decided and move.attempt is not None:
            return None
        if move.phase >= Phase.CUTOVER and not self._is_still_here(move):
            problem = "a 0.23 node did not answer during the handover; look where the daemon runs"
            move.error = MigrationError(MigrationFault.TIMED_OUT, move.origin, problem)
            self._end(move)
            return []
        error = MigrationError(MigrationFault.TIMED_OUT, move.origin, f"no progress in phase {move.phase.name.lower()}")
        return self._take_back(move, error, now)

    def _is_still_here(self, move: _Move) -> bool:
        """Return whether this node is the source, and has not stopped: then it knows that the daemon can go on."""
        return move.source == self._seat.own and self._source.phase(move.origin) is not None

    def _take_back(self, move: _Move, error: MigrationError, now: float, *, told: int | None = None) -> list[Outbound]:
        """Tell source and target that the move does not take place; an attempt with a number ends when the source knows."""
        move.error = error
        move.pace.progress(now)
        canceled = self._canceled(move)
        # A source that refuses has not stopped, or goes on again. But it may have refused a repetition of the first message,
        # before it began, and stop yet, once it was told to: then only its confirmation ends the move.
        is_over = move.attempt is None or (told == move.source and not move.decided)
        knows = told if is_over or told == move.target else None
        out: list[Outbound] = [(node, canceled) for node in (move.source, move.target) if node != knows]
        if is_over:
            self._end(move)
        elif move.decided:
            self._seat.store.decide(move.decision())
        return out

    def _end(self, move: _Move) -> None:
        del self._moves[move.origin]
        if move.decided:
            self._seat.store.settle(move.origin)
        self.ended.append(MoveEnded(move.origin, move.source, move.target, move.error))

    def _from(self, message: MigrationMessage, sender: int, *, is_target: bool) -> _Move | None:
        """Return the move of a message that the right node has sent."""
        move = self._moves.get(message.origin)
        if move is None or move.attempt != message.attempt:
            self._seat.counters.count(Reason.MIGRATION_STALE)
            return None
        if sender != (move.target if is_target else move.source):
            self._seat.counters.count(Reason.REFUSE_MIGRATION_SENDER)
            return None
        return move

    def _not_driven(self, message: MigrationMessage, sender: int, move: _Move | None) -> list[Outbound]:
        """Answer a target that asks about a move which is not going on, so that it forgets it."""
        wrong_sender = move is None and self.drives(message)
        if message.attempt is None or wrong_sender:
            return []
        return [(sender, failure(message.origin, message.attempt, "the orchestrator does not go on with this move"))]

    def _no_events(self, move: _Move) -> BufferedEvents:
        return BufferedEvents(origin=move.origin, attempt=move.attempt)

    def _cutover(self, move: _Move) -> CutoverNotify:
        return CutoverNotify(origin=move.origin, attempt=move.attempt, target_node=move.target)

    def _canceled(self, move: _Move) -> MigrationFailed:
        if move.attempt is not None:
            return withdrawal(move.origin, move.attempt)
        return failure(move.origin, None, str(move.error))
