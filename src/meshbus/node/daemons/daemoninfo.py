"""What a node reports about daemons: plain values that are safe to keep."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class DaemonState(StrEnum):
    """What a node is to a daemon, and how the daemon is."""

    RUNNING = "running"
    WAITING = "waiting"
    """It runs here, but an input or its output cannot be reached now; `error` says why."""
    FAILED = "failed"
    """Its code failed; it goes on from its checkpoint after a pause."""
    MOVING = "moving"
    """It is on its way from here to another node."""
    ARRIVING = "arriving"
    """It is on its way to this node, and runs elsewhere."""
    STOPPED = "stopped"
    """It belongs to this node, and does not run."""
    MOVED = "moved"
    """It was handed over to another node."""
    OFFERED = "offered"
    """It may move here."""
    DAMAGED = "damaged"
    """Its record cannot be read, so it is refused."""


class DaemonInput(msgspec.Struct, frozen=True):
    """How far a daemon has read one log."""

    channel: str
    publisher: int | None
    """Node id of the publisher; None for a replicated channel."""
    next_seq: int
    """Sequence of the next event to process."""


class DaemonInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one daemon at one moment, as one node sees it."""

    origin: int
    """Its origin hash, which names it everywhere."""
    name: str | None
    """None if this node knows only its record."""
    state: DaemonState
    node: int | None
    """The node on which it runs, as far as this node knows."""
    phase: str | None = None
    """How far its move has come, if it moves."""
    inputs: tuple[DaemonInput, ...] = ()
    output: str | None = None
    """The channel on which it publishes."""
    outputs: int | None = None
    """Outputs so far, on all nodes; None if it is not here."""
    processed: int | None = None
    """Events that it has processed here since it was started; None if it does not run here."""
    moves: int | None = None
    """How often it has moved; None if this node has no record of it."""
    errors: int = 0
    """How often it has failed here since the node was started."""
    error: str | None = None
    """What is wrong now."""


class DaemonMove(msgspec.Struct, frozen=True):
    """A move that has succeeded."""

    origin: int
    source: int
    target: int
    seconds: float
    """How long it took."""


class DaemonLine(msgspec.Struct, frozen=True):
    """Something that happened to a daemon."""

    at_ns: int
    """Unix nanoseconds."""
    level: str
    """`info`, `warning` or `error`, or as the daemon logged it."""
    text: str
