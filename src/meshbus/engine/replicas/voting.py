"""Voting: the state of a member of a replicated channel, what it promises, and what it confirms.

Everything here follows one rule: a promise or a confirmation states what is on disk (`journal.synced`), never what is
only written. candidacy.py adds campaigns, leadership.py the inputs.
"""

from __future__ import annotations

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.replicas.base import ReplicaSettings, Seat
from meshbus.engine.replicas.belief import MISSED_BEATS, silence_s
from meshbus.engine.replicas.campaign import Campaign
from meshbus.engine.replicas.election import Standing
from meshbus.engine.replicas.following import Following
from meshbus.engine.replicas.journal import Journal, Recovered
from meshbus.engine.replicas.leading import Leading
from meshbus.engine.replicas.records import Ballot, Committed, Halted, LogReader, Out, RoleChanged
from meshbus.engine.replicas.roles import Signal, Verdict, judge, tag_effect
from meshbus.names.identity import Entropy
from meshbus.policy.reason import Reason
from meshbus.wire.messages.leadership import (
    MAX_MEMBERS,
    Config,
    Data,
    Fetch,
    Member,
    Promise,
    Propose,
    Stale,
    Stored,
)
from meshbus.wire.messages.redex import Role

_HALT_SIGNALS = {
    Role.LEADER: Signal.LEADER_DISK_PRESSURE_WITHDRAW,
    Role.REPLICA: Signal.DISK_PRESSURE_WITHDRAW,
    Role.CANDIDATE: Signal.CANDIDATE_DISK_PRESSURE_WITHDRAW,
}


_SLOWEST = 8
"""How much longer campaigns become at most. Our choice: then a round trip may take twelve heartbeat periods."""


class Voting:
    """One member of one replicated channel: its state."""

    def __init__(
        self,
        channel_id: bytes,
        own: int,
        found: Recovered,
        reader: LogReader,
        settings: ReplicaSettings,
        *,
        entropy: Entropy,
    ) -> None:
        ballot = found.ballot
        self._memory = 0
        """The write that stores the incarnation; it must be durable before anyone learns of it."""
        if ballot is None or found.damaged:
            # What was confirmed before may be gone, so this member must not be counted for it any more.
            incarnation = int.from_bytes(entropy(8), "little")
            ballot = msgspec.structs.replace(ballot or Ballot(incarnation=0), incarnation=incarnation)
            self._memory = 1
        journal = Journal(found, ballot, reader)
        self.seat = Seat(channel_id, own, settings, journal, entropy)
        self.role = Role.IDLE
        self.leader: int | None = None
        """The leader that was heard in this epoch."""
        self.lead: Leading | None = None
        self.halted = False
        self._campaign: Campaign | None = None
        # Retention removes committed events only.
        self._follow = Following(journal, max(found.first_retained, found.committed))
        self._known_epoch = 0
        self._heard_at = float("-inf")
        self._campaign_at = float("inf")
        self._lost_campaigns = 0
        """How many campaigns were lost in a row, without a leader that was heard."""
        self._fetch_at = float("-inf")
        """When missing events may be asked for again."""
        self._fetched = 0
        """The sequence that was asked for last."""
        self._heard: dict[int, float] = {}
        self._rtt_us: dict[int, int] = {}
        self._newcomers: BoundedMap[int, int | None] = BoundedMap(MAX_MEMBERS)
        """Nodes that may become members, with their incarnation once it is known."""

    # ── what it knows ───────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """The highest epoch that this member has promised."""
        return self.seat.journal.ballot.promised

    @property
    def config(self) -> Config | None:
        """The newest config that this member has."""
        return self.seat.journal.ballot.config

    @property
    def committed(self) -> int:
        """Everything below this sequence is on the disks of a majority, as far as this member knows."""
        return self._follow.committed if self.lead is None else self.lead.committed

    @property
    def _remembers(self) -> bool:
        return self.seat.journal.synced.number >= self._memory

    def _hears_leader(self, now: float) -> bool:
        if self.lead is not None:
            return not self.lead.fenced(now)
        return now - self._heard_at < self._patience_s

    def lag_s(self, now: float) -> float | None:
        """Return for how long the slowest other member, or for a follower the leader, was not heard; None if never."""
        if self.lead is None:
            return None if self.leader is None else silence_s([self._heard_at], now)
        others = [member.node for member in self._members() if member.node != self.seat.own]
        return silence_s([self._heard.get(node) for node in others], now)

    def _members(self) -> tuple[Member, ...]:
        return () if self.config is None else self.config.members

    def _nodes(self) -> set[int]:
        return {member.node for member in self._members()} | set(self.seat.settings.nodes) | set(self._newcomers)

    def _knows(self, node: int) -> bool:  # hot: every message asks
        return node in self.seat.settings.nodes or node in self._nodes()

    def _standings(self, now: float) -> list[Standing]:
        nodes = self._nodes() if self.config is None else {member.node for member in self.config.members}
        return [
            Standing(
                node,
                self._rtt_us.get(node),
                node == self.seat.own or now - self._heard.get(node, float("-inf")) < self._patience_s,
            )
            for node in nodes
        ]

    def _next_epoch(self) -> int:
        return max(self.epoch, self._known_epoch) + 1

    @property
    def _patience_s(self) -> float:
        return MISSED_BEATS * self.seat.settings.heartbeat_s

    @property
    def _slowness(self) -> int:
        """By how much campaigns take longer than the first one: disks or nodes may be too slow for it just now."""
        return min(_SLOWEST, 1 << self._lost_campaigns)

    # ── epochs and roles ───────────────────────────────────────────────────────────────

    def _enter(self, epoch: int, leader: int, now: float, out: Out) -> None:
        """Promise an epoch to a node; everything of earlier epochs is over."""
        if self.lead is not None:
            self._step_down(Signal.PEER_LEADER_OBSERVED, out)
        elif self._campaign is not None:
            self._lose(now, out)
        self.seat.persist(out, promised=epoch, leader=leader)
        self._reset(self.committed)

    def _reset(self, committed: int) -> None:
        self.leader = None
        self._fetch_at = float("-inf")
        self._follow = Following(self.seat.journal, committed)

    def _step_down(self, signal: Signal, out: Out) -> None:
        lead = self.lead
        assert lead is not None
        self.lead = None
        self._reset(lead.committed)
        lead.give_up(out)
        self._change_role(Role.IDLE if signal != Signal.PEER_LEADER_OBSERVED else Role.REPLICA, signal, out)

    def _lose(self, now: float, out: Out) -> None:
        self._campaign = None
        self._lost_campaigns += 1
        self._change_role(Role.REPLICA, Signal.ELECTION_LOST, out)
        self._postpone(now)

    def _halt(self, problem: str, out: Out) -> None:
        self.halted = True
        if self.lead is not None:
            self.lead.give_up(out)
            self._reset(self.lead.committed)
        self._campaign = self.lead = None
        if self.role != Role.IDLE:
            self._change_role(Role.IDLE, _HALT_SIGNALS[self.role], out)
        out.notices.append(Halted(problem))

    def _change_role(self, role: Role, signal: Signal, out: Out) -> None:
        if role == self.role:
            return
        verdict = judge(self.role, role, signal)
        assert verdict == Verdict.OK, f"{self.role.name} to {role.name} by {signal.value}: {verdict.value}"
        tag = tag_effect(self.role, role)
        self.role = role
        out.notices.append(RoleChanged(role, signal, tag, self.epoch))

    def _postpone(self, now: float) -> None:
        """Wait for a leader: at least three periods, and a random time more, so that not all campaign at once."""
        spread_s = 2 * self._slowness * self.seat.settings.heartbeat_s
        self._campaign_at = now + self._patience_s + self.seat.jitter() * spread_s

    def _accept(self, data: Data, out: Out) -> int | None:
        before = self._follow.committed
        wanted = self._follow.accept(data, out)
        if self._follow.committed > before:
            out.notices.append(Committed(self._follow.committed))
        return wanted

    # ── messages ───────────────────────────────────────────────────────────────────────

    def _own_promise(self, epoch: int, *, trial: bool) -> Promise:
        synced = self.seat.journal.synced
        return Promise(
            channel_id=self.seat.channel_id,
            epoch=epoch,
            trial=trial,
            incarnation=synced.ballot.incarnation,
            last_epoch=synced.last_epoch,
            tail=synced.tail,
            config=synced.ballot.config,
        )

    def _promise(self, out: Out) -> None:
        """Send the promise of the epoch, if it is on disk."""
        ballot = self.seat.journal.synced.ballot
        if ballot.promised == self.epoch and ballot.leader != self.seat.own:
            self.seat.send(ballot.leader, self._own_promise(self.epoch, trial=False), out)

    def _agrees(self, propose: Propose, out: Out) -> bool:
        """Return whether this member may answer a trial: it wants to found the same set, or one of the two has one.

        An answer to a founder is an agreement. If the nodes were chosen by placement, it is on disk first, so that this
        node never founds another set after it was counted for this one.
        """
        if not self._remembers:
            return False
        if self.config is not None or not propose.founding:
            return True
        if propose.founding != self.seat.founding:
            self.seat.counters.count(Reason.REPLICA_FOUNDERS_DIFFER)
            return False
        return self._keeps_founders(out)

    def _keeps_founders(self, out: Out) -> bool:
        """Return whether the choice of the founders is on disk, if it has to be; otherwise, write it."""
        seat = self.seat
        if not seat.settings.chosen or seat.journal.synced.ballot.founders == seat.settings.nodes:
            return True
        if seat.journal.ballot.founders != seat.settings.nodes:
            seat.persist(out, founders=seat.settings.nodes)
        return False

    def _confirm(self, leader: int, out: Out) -> None:
        """Report what is on disk to the leader, if the promise of its epoch is."""
        synced = self.seat.journal.synced
        if synced.ballot.promised != self.epoch:
            return
        config = synced.ballot.config
        rank = config.rank if config is not None else (0, 0)
        stored = Stored(
            channel_id=self.seat.channel_id,
            epoch=self.epoch,
            incarnation=synced.ballot.incarnation,
            round=self._follow.round,
            last_epoch=synced.last_epoch,
            tail=min(self.seat.journal.stable_tail, self._follow.verified),
            config_epoch=rank[0],
            config_version=rank[1],
        )
        self.seat.send(leader, stored, out)

    def _stale(self, to: int, out: Out) -> None:
        self.seat.counters.count(Reason.REFUSE_REPLICA_STALE)
        self.seat.send(to, Stale(channel_id=self.seat.channel_id, epoch=self.epoch), out)

    def _fetch(self, to: int, first: int, now: float, out: Out) -> bool:
        """Ask for events, unless the answer to an earlier question may bring them; return whether it was asked."""
        # One at a time: messages that are under way may bring what is missing. But the answer to one may show that earlier
        # events differ. To wait then would be endless: the next heartbeat asks for the end of the log again.
        if now < self._fetch_at and first >= self._fetched:
            return False
        self._fetched = first
        self._fetch_at = now + self.seat.settings.heartbeat_s / 4
        most = self.seat.settings.window_bytes
        self.seat.send(to, Fetch(channel_id=self.seat.channel_id, epoch=self.epoch, first=first, max_bytes=most), out)
        return True
