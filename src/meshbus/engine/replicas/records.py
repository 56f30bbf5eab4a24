"""Records of a replicated channel: what is kept on disk, what has to be done, and what happened.

A call into the core returns an `Out`. Its writes are carried out in their order; each has a number, and the core hears
with `durable(number)` that this write and all earlier ones survive a loss of power. Messages that depend on a write are
returned only then, so the caller sends whatever it finds in `sends` at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec

from meshbus.engine.replicas.roles import Signal, TagEffect
from meshbus.wire.messages.leadership import Config, LeadershipMessage, Member
from meshbus.wire.messages.redex import RedexMessage, Role


class Ballot(msgspec.Struct, frozen=True, kw_only=True):
    """What a member has promised. It is on disk before any message that depends on it is sent."""

    incarnation: int
    promised: int = 0
    """The highest epoch that was promised; nothing of an earlier one is accepted."""
    leader: int = 0
    """The node to which that epoch was promised."""
    config: Config | None = None
    founders: tuple[int, ...] = ()
    """The nodes with which this one agreed to found the set, if they were chosen by placement. It founds no other."""


# ── writes ──────────────────────────────────────────────────────────────────────────────────


class PersistBallot(msgspec.Struct, frozen=True):
    """Replace the ballot on disk."""

    number: int
    ballot: Ballot


class AppendEvents(msgspec.Struct, frozen=True):
    """Append events that an epoch made; without events, record that the epoch starts here."""

    number: int
    epoch: int
    first_seq: int
    payloads: Sequence[bytes]


class SetAside(msgspec.Struct, frozen=True):
    """Move the events from a sequence on to a side file, together with the starts of epochs after it."""

    number: int
    first_seq: int


class SkipTo(msgspec.Struct, frozen=True):
    """Continue the log at a later sequence and record the gap; `epoch` is that of the last event before it."""

    number: int
    first_seq: int
    epoch: int


Write: TypeAlias = PersistBallot | AppendEvents | SetAside | SkipTo


class LogReader(Protocol):
    """The events of a log, as far as they were appended, durable or not."""

    def read(self, first_seq: int, max_events: int, max_bytes: int) -> Sequence[bytes]:
        """Return consecutive payloads from a sequence on, at least one if it is there.

        May return nothing for events that are not in memory; the caller asks again later.
        """


# ── notices ─────────────────────────────────────────────────────────────────────────────────


class Acks(StrEnum):
    """When an append is acknowledged."""

    LOCAL = "local"
    """When it is on the leader's disk. The loss of the leader may lose it."""
    MAJORITY = "majority"
    """When it is on the disks of a majority, of which the leader is one member."""


class Refusal(StrEnum):
    """Why an append or a change is refused."""

    NOT_LEADER = "not_leader"
    NO_MAJORITY = "no_majority"
    """The leader has not heard from a majority lately."""
    BACKPRESSURE = "backpressure"
    """Too much waits for acknowledgement."""
    BEHIND = "behind"
    """A live follower lacks too much: `Resumed` tells when to try again."""
    TOO_LARGE = "too_large"
    """The payload does not fit one packet with the others' headers, so it cannot be replicated."""
    CHANGING = "changing"
    """Another change of the members, or the start of the epoch, is not finished."""
    NO_CHANGE = "no_change"
    """The member is there already, is unknown, or is the last one."""


class RoleChanged(msgspec.Struct, frozen=True):
    """The role of this node changed."""

    role: Role
    signal: Signal
    tag: TagEffect
    epoch: int


class Acknowledged(msgspec.Struct, frozen=True):
    """An append reached the durability that it asked for."""

    token: int
    first_seq: int
    count: int
    acks: Acks
    confirmed: bool
    """False for a local append by a leader that has not heard from a majority lately: it may be set aside."""


class Refused(msgspec.Struct, frozen=True):
    """An append, a read or a change was refused; nothing was stored."""

    token: int
    reason: Refusal


class Unresolved(msgspec.Struct, frozen=True):
    """This node stopped leading before an append was acknowledged; it may be kept or set aside."""

    token: int
    first_seq: int
    count: int


class Committed(msgspec.Struct, frozen=True):
    """All events below a sequence are on the disks of a majority, and will stay."""

    tail: int


class ReadReady(msgspec.Struct, frozen=True):
    """The events below `committed` include everything acknowledged before the read was asked for."""

    token: int
    committed: int


class Diverged(msgspec.Struct, frozen=True):
    """Own events that the leader does not have were moved to a side file."""

    first_seq: int
    count: int
    epoch: int
    """The epoch of the first of them."""


class Gap(msgspec.Struct, frozen=True):
    """Events that the leader no longer has are missing here."""

    first_seq: int
    until: int


class ConfigChanged(msgspec.Struct, frozen=True):
    """A majority has stored a config."""

    config: Config


class Newcomer(msgspec.Struct, frozen=True):
    """A node follows that the config does not name: a new one, or a member that lost its disk."""

    member: Member


class Resumed(msgspec.Struct, frozen=True):
    """Appends that were refused with BEHIND may be tried again."""


class LeftBehind(msgspec.Struct, frozen=True):
    """A follower that appends waited for is too slow: they go on without it."""

    node: int


class Halted(msgspec.Struct, frozen=True):
    """This node stopped taking part: its disk failed, or contradicts what a majority has. Open it again."""

    problem: str


Notice: TypeAlias = (
    RoleChanged
    | Acknowledged
    | Refused
    | Unresolved
    | Committed
    | ReadReady
    | Diverged
    | Gap
    | ConfigChanged
    | Newcomer
    | Resumed
    | LeftBehind
    | Halted
)


class Send(msgspec.Struct, frozen=True):
    """A message to another member."""

    to: int
    message: LeadershipMessage | RedexMessage


class Out:
    """What a call into the core asks for."""

    __slots__ = ("notices", "sends", "writes")

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.writes: list[Write] = []
        self.notices: list[Notice] = []
