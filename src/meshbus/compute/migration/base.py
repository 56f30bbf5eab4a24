"""What all roles of a migration share: phases, settings, the node they belong to, and small messages."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.compute.registry import DaemonRegistry
from meshbus.compute.store import DaemonStore
from meshbus.engine.base.counters import Counters
from meshbus.errors import MigrationError, MigrationFault
from meshbus.names.identity import Entropy
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.messages.migration import MAX_BUFFERED, FailureCode, MigrationFailed, MigrationMessage

Outbound: TypeAlias = tuple[int, MigrationMessage]
"""A message and the node that it is for."""

_MIB = 1 << 20


class Phase(IntEnum):
    """How far a move has come (compute.md §6)."""

    SNAPSHOT = 0
    TRANSFER = 1
    RESTORE = 2
    REPLAY = 3
    CUTOVER = 4
    COMPLETE = 5


def advance(origin: int, phase: Phase, to: Phase) -> Phase:
    """Return the next phase; raise MigrationError unless it is the one that follows."""
    if to != phase + 1:
        problem = f"a move in phase {phase.name.lower()} cannot go to {to.name.lower()}"
        raise MigrationError(MigrationFault.WRONG_PHASE, origin, problem)
    return to


MAX_MOVES = 64
MAX_MOVE_BYTES = 64 * _MIB

BOUNDS = (
    Bound(
        name="moves",
        what="daemons on their way: to here, from here, and between others",
        by=By.PEER,
        per_node=3 * MAX_MOVES,
        per={"role of this node": MAX_MOVES},
        full="the move is refused",
        counter=Reason.REFUSE_MIGRATION_FULL,
    ),
    Bound(
        name="move_events",
        what="events that wait for a daemon on its way",
        by=By.PEER,
        per_node=None,
        per={"move": MAX_MOVE_BYTES, "move, in events": MAX_BUFFERED},
        unit="bytes",
        full="on the source the move is taken back, and on the target the events are dropped and sent again",
        counter=Reason.REFUSE_MIGRATION_FULL,
    ),
)


class MigrationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times of moves."""

    resend_s: float = 0.5
    """After this time without an answer a message is sent again; the time doubles with each repetition."""
    max_resend_s: float = 5.0
    give_up_s: float = 30.0
    """A move that makes no progress for this long is taken back. compute.md §7 has the same budget."""
    burst: int = 32
    """Parts of a snapshot that are sent at once, about 220 kB: what the receive buffer of a node takes in one turn."""
    pace_s: float = 0.01
    """Time between two bursts."""
    max_snapshot_bytes: int = 256 * _MIB
    max_plain_snapshot_bytes: int = 64 * _MIB
    """What a 0.23 target buffers (compute.md §4)."""
    max_buffered_bytes: int = MAX_MOVE_BYTES
    max_moves: int = MAX_MOVES
    """Daemons that can be on their way at the same time, in each role."""
    event_window: int = 512
    """Events that are under way to the target at the same time."""
    cutover_lag: int = 64
    """Events that the target may still lack when a running daemon is stopped."""


class Seat(msgspec.Struct, kw_only=True):
    """The node that takes part, as its roles see it."""

    own: int
    """Node id."""
    registry: DaemonRegistry
    store: DaemonStore
    counters: Counters
    settings: MigrationSettings
    wall: Callable[[float], int]
    """Converts a monotonic `now` to Unix nanoseconds."""
    entropy: Entropy
    static_private_key: bytes
    """The Noise key of this node, which opens envelopes."""
    noise_key_of: Callable[[int], bytes | None]
    """Returns the Noise public key of a peer, for envelopes; None if it is not known."""


class Pace:
    """When something is sent again: after a time that doubles, and not for ever."""

    __slots__ = ("_settings", "heard_at", "sent_at", "tries")

    def __init__(self, settings: MigrationSettings, now: float) -> None:
        self._settings = settings
        self.sent_at = now
        self.heard_at = now
        """When the move last made progress."""
        self.tries = 0

    def progress(self, now: float) -> None:
        """Record that something new was heard."""
        self.sent_at = self.heard_at = now
        self.tries = 0

    def due_at(self) -> float:
        """Return when to send again."""
        return self.sent_at + min(self._settings.resend_s * (1 << self.tries), self._settings.max_resend_s)

    def is_due(self, now: float) -> bool:
        """Return whether it is time to send again, and if so count the repetition."""
        if now < self.due_at():
            return False
        self.sent_at = now
        # Bounded: the time stops growing long before.
        self.tries = min(self.tries + 1, 16)
        return True

    def is_over(self, now: float) -> bool:
        """Return whether nothing was heard for too long."""
        return now >= self.heard_at + self._settings.give_up_s


def failure(
    origin: int, attempt: int | None, text: str, code: FailureCode = FailureCode.STATE_FAILED
) -> MigrationFailed:
    """Return the message that a move does not take place."""
    return MigrationFailed(origin=origin, attempt=attempt, code=code, text=text)


# Code 6 is one that 0.23 nodes never send (compute.md §4). In a numbered attempt its byte says who has decided what, so
# that neither a refusal of one part is taken for the end of the move, nor a confirmation confirmed.
_CONFIRMED, _TAKEN_BACK = 0, 1


def withdrawal(origin: int, attempt: int) -> MigrationFailed:
    """Return the decision of an orchestrator to take a numbered attempt back: the target never begins."""
    return MigrationFailed(origin=origin, attempt=attempt, code=FailureCode.NOT_READY_TIMEOUT, attempts=_TAKEN_BACK)


def is_withdrawal(message: MigrationFailed) -> bool:
    """Return whether a message is the decision of an orchestrator."""
    return _is_about_decision(message) and message.attempts == _TAKEN_BACK


def confirmation(origin: int, attempt: int) -> MigrationFailed:
    """Return the answer of a source to a withdrawal: the daemon goes on here."""
    return MigrationFailed(origin=origin, attempt=attempt, code=FailureCode.NOT_READY_TIMEOUT, attempts=_CONFIRMED)


def is_confirmation(message: MigrationFailed) -> bool:
    """Return whether a message confirms a withdrawal."""
    return _is_about_decision(message) and message.attempts == _CONFIRMED


def _is_about_decision(message: MigrationFailed) -> bool:
    return message.attempt is not None and message.code == FailureCode.NOT_READY_TIMEOUT
