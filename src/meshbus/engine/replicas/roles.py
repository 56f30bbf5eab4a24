"""Roles of a replicated channel, and the transitions between them (redex.md §5).

    Idle      → Replica    CapabilitySelected             announce
    Replica   → Candidate  MissedHeartbeats
    Candidate → Leader     ElectionWon                    announce
    Candidate → Replica    ElectionLost
    Leader    → Replica    PeerLeaderObserved
    Leader    → Idle       GracefulRelinquish             withdraw
    Leader    → Idle       LeaderDiskPressureWithdraw     withdraw
    Replica   → Idle       DiskPressureWithdraw           withdraw
    Candidate → Idle       CandidateDiskPressureWithdraw  withdraw
    any       → Idle       ChannelClose                   withdraw; nothing at all from Idle

Everything else is refused. `announce` and `withdraw` concern the tag by which other nodes find the holders of a log.
"""

from __future__ import annotations

from enum import Enum, auto

from meshbus.wire.messages.redex import Role


class Signal(Enum):
    """Why a role changes; the names are those of the reference."""

    CAPABILITY_SELECTED = "CapabilitySelected"
    MISSED_HEARTBEATS = "MissedHeartbeats"
    ELECTION_WON = "ElectionWon"
    ELECTION_LOST = "ElectionLost"
    GRACEFUL_RELINQUISH = "GracefulRelinquish"
    DISK_PRESSURE_WITHDRAW = "DiskPressureWithdraw"
    LEADER_DISK_PRESSURE_WITHDRAW = "LeaderDiskPressureWithdraw"
    CANDIDATE_DISK_PRESSURE_WITHDRAW = "CandidateDiskPressureWithdraw"
    CHANNEL_CLOSE = "ChannelClose"
    PEER_LEADER_OBSERVED = "PeerLeaderObserved"


class Verdict(Enum):
    """Whether a transition is allowed."""

    OK = "ok"
    INVALID_PAIR = "InvalidPair"
    """No signal leads from the one role to the other."""
    SIGNAL_MISMATCH = "SignalMismatch"
    """Another signal does."""


class TagEffect(Enum):
    """What a transition does to the tag of the chain."""

    NONE = auto()
    ANNOUNCE = auto()
    WITHDRAW = auto()


_LEGAL: dict[tuple[Role, Role], tuple[Signal, ...]] = {
    (Role.IDLE, Role.REPLICA): (Signal.CAPABILITY_SELECTED,),
    (Role.REPLICA, Role.CANDIDATE): (Signal.MISSED_HEARTBEATS,),
    (Role.CANDIDATE, Role.LEADER): (Signal.ELECTION_WON,),
    (Role.CANDIDATE, Role.REPLICA): (Signal.ELECTION_LOST,),
    (Role.LEADER, Role.REPLICA): (Signal.PEER_LEADER_OBSERVED,),
    (Role.LEADER, Role.IDLE): (
        Signal.GRACEFUL_RELINQUISH,
        Signal.LEADER_DISK_PRESSURE_WITHDRAW,
        Signal.CHANNEL_CLOSE,
    ),
    (Role.REPLICA, Role.IDLE): (Signal.DISK_PRESSURE_WITHDRAW, Signal.CHANNEL_CLOSE),
    (Role.CANDIDATE, Role.IDLE): (Signal.CANDIDATE_DISK_PRESSURE_WITHDRAW, Signal.CHANNEL_CLOSE),
    (Role.IDLE, Role.IDLE): (Signal.CHANNEL_CLOSE,),
}


def judge(old: Role, new: Role, signal: Signal) -> Verdict:
    """Return whether a signal may change one role into another."""
    allowed = _LEGAL.get((old, new))
    if allowed is None:
        return Verdict.INVALID_PAIR
    return Verdict.OK if signal in allowed else Verdict.SIGNAL_MISMATCH


def tag_effect(old: Role, new: Role) -> TagEffect:
    """Return what an allowed transition does to the tag of the chain."""
    if new == Role.LEADER or (old, new) == (Role.IDLE, Role.REPLICA):
        return TagEffect.ANNOUNCE
    return TagEffect.WITHDRAW if new == Role.IDLE != old else TagEffect.NONE
