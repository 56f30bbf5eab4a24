"""What a node knows about its replicated channels, for people and programs: `Node.replicas`."""

from __future__ import annotations

import msgspec

from meshbus.engine.replicas.coordinator import ReplicationCoordinator
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.records import Acks
from meshbus.wire.messages.redex import Role


class ReplicaMemberStatus(msgspec.Struct, frozen=True):
    """One member of a replicated channel, as this node sees it."""

    node_id: int
    name: str | None
    """What it is called; None if it never announced a name."""
    connected: bool
    """Whether this node has a session with it, or is it."""
    stored: int | None = None
    """How far its log is on its disk and equal to the leader's; None if this node does not know."""
    lag: int | None = None
    """How many events of the leader's log it has not confirmed; None if this node does not know."""


NO_MEMBER = "publisher"
"""The role of a node that stores nothing."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replicated channel of a node."""

    channel: str
    role: str
    """`leader`, `replica`, `candidate` or `idle`; `publisher` if this node stores nothing and only publishes."""
    epoch: int
    leader: int | None
    """The node that leads, as far as this node knows."""
    members: tuple[ReplicaMemberStatus, ...]
    """The members by the config of the set, or those that are to found it."""
    tail: int
    """The next sequence of the own log."""
    committed: int
    """Everything below this sequence is on the disks of a majority and can be read."""
    lag_s: float | None
    """For how long the slowest other member was not heard, or for a follower, the leader; None if it is not known."""
    acks: Acks
    """What a publish waits for unless it says otherwise."""
    waiting: str | None = None
    """Why the channel takes no appends with `acks = majority` now, as a sentence; None if it does."""


def progress_of(member: Leadership | ReplicationCoordinator) -> dict[int, int]:
    """Return how far each follower has confirmed, if this node leads; otherwise nothing is known."""
    return {} if member.lead is None else member.lead.confirmed()


def role_of(member: Leadership | ReplicationCoordinator) -> str:
    """Return the role of a member as a word."""
    return Role(member.role).name.lower()
