"""Leadership: one member of a replicated channel, as a state machine over epochs (0x4D05).

A member follows, campaigns or leads:

- It follows the leader of the highest epoch that it has promised. Messages of earlier epochs are answered with STALE.
- If it hears no leader for three heartbeat periods, and `elect` chooses it, it campaigns: a trial, then a proposal that
  is on its own disk first, then it copies the best log of those that promised.
- It leads once its log is the best of a majority (leading.py). It stops when it hears of a higher epoch.

Safety rests on the disk and on majorities alone, never on time: decision 0033 has the argument. Time only decides when
a member campaigns, and when a leader that reaches no majority stops acknowledging.

Inputs are messages, `tick`, the application's requests, and the disk's reports. Each returns an `Out` (records.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbus.engine.replicas.candidacy import Candidacy
from meshbus.engine.replicas.following import Contradiction
from meshbus.engine.replicas.records import Acks, Newcomer, Out, Refusal, Refused
from meshbus.engine.replicas.roles import Signal
from meshbus.engine.replicas.serving import chunks
from meshbus.policy.reason import Reason
from meshbus.wire.messages.leadership import (
    MAX_MEMBERS,
    Configure,
    Data,
    Fetch,
    LeadershipMessage,
    Member,
    Promise,
    Propose,
    Stale,
    Stored,
    Transfer,
)
from meshbus.wire.messages.redex import Role


class Leadership(Candidacy):
    """One member of one replicated channel: its inputs."""

    def next_timer(self) -> float | None:
        """Return when `tick` is due."""
        if self.halted:
            return None
        if self.lead is not None:
            return self.lead.beat_at
        return self._campaign_at if self._campaign is None else min(self._campaign.until, self._campaign.again_at)

    # ── inputs ──────────────────────────────────────────────────────────────────────────────

    def open(self, now: float) -> Out:
        """Begin to take part."""
        out = Out()
        if not self._remembers:
            self.seat.journal.persist(self.seat.journal.ballot, out)
        self._change_role(Role.REPLICA, Signal.CAPABILITY_SELECTED, out)
        self._postpone(now)
        return out

    def receive(self, sender: int, message: LeadershipMessage, now: float) -> Out:
        """Handle a message of another node."""
        out = Out()
        if self.halted:
            self.seat.counters.count(Reason.REPLICA_HALTED)
            return out
        if not self._knows(sender):
            self.seat.counters.count(Reason.REPLICA_NOT_MEMBER)
            if not isinstance(message, Stale):
                self._stale(sender, out)
            return out
        self._heard[sender] = now
        try:
            self._dispatch(sender, message, now, out)
        except Contradiction as problem:
            self._halt(str(problem), out)
        return out

    def tick(self, now: float) -> Out:
        """Do what is due."""
        out = Out()
        if self.halted:
            return out
        if self.lead is not None:
            if now >= self.lead.beat_at:
                self.lead.beat(now, out)
                self.lead.advance(now, out)
        elif self._campaign is not None:
            if now >= self._campaign.until:
                self._lose(now, out)
            elif now >= self._campaign.again_at:
                self._again(self._campaign, now, out)
        elif now >= self._campaign_at:
            self._on_silence(now, out)
        return out

    def append(self, token: int, payloads: Sequence[bytes], acks: Acks, now: float) -> Out:
        """Append events; `Acknowledged`, `Refused` or `Unresolved` follows with this token."""
        out = Out()
        if self.lead is None:
            out.notices.append(Refused(token, Refusal.NOT_LEADER))
        else:
            self.lead.append(token, payloads, acks, now, out)
        return out

    def read(self, token: int, now: float) -> Out:
        """Ask how far a reader may read; `ReadReady` or `Refused` follows."""
        out = Out()
        if self.lead is None:
            out.notices.append(Refused(token, Refusal.NOT_LEADER))
        else:
            self.lead.read(token, now, out)
        return out

    def add(self, token: int, node: int, now: float) -> Out:
        """Make a newcomer a member."""
        incarnation, members = self._newcomers.get(node), self._members()
        if incarnation is None or len(members) >= MAX_MEMBERS or node in {member.node for member in members}:
            return self._change_members(token, (), now)
        return self._change_members(token, (*members, Member(node, incarnation)), now)

    def remove(self, token: int, node: int, now: float) -> Out:
        """Remove a member; the last one stays."""
        members = self._members()
        rest = tuple(member for member in members if member.node != node)
        return self._change_members(token, rest if len(rest) < len(members) else (), now)

    def transfer(self, token: int, node: int, now: float) -> Out:
        """Ask a member to lead: append nothing more, and let it campaign when it has everything.

        Refused if it is no member. If it does not lead soon, this node goes on; nothing tells which of the two happened.
        """
        out = Out()
        if self.lead is None:
            out.notices.append(Refused(token, Refusal.NOT_LEADER))
        elif node == self.seat.own or node not in {member.node for member in self._members()}:
            out.notices.append(Refused(token, Refusal.NO_CHANGE))
        else:
            self.lead.hand_over(node, now + self._patience_s, now, out)
        return out

    def welcome(self, node: int) -> None:
        """Accept messages of a node that is to become a member; `Newcomer` reports when it shows itself."""
        if node not in self._nodes():
            self._newcomers.put(node, None)

    def durable(self, number: int, now: float) -> Out:
        """Record that a write and all before it survive a loss of power."""
        out = Out()
        if self.halted or number <= self.seat.journal.synced.number:
            return out
        promised = self.seat.journal.synced.ballot.promised
        self.seat.journal.durable(number)
        if self.lead is not None:
            self.lead.advance(now, out)
            self._leave_if_removed(out)
        elif self._campaign is not None:
            self._go_on(self._campaign, now, out)
        elif self.leader is not None:
            self._confirm(self.leader, out)
        elif self.seat.journal.synced.ballot.promised > promised:
            self._promise(out)
        return out

    def disk_failed(self, problem: str) -> Out:
        """Stop taking part, because a write failed: what the disk has is not known."""
        out = Out()
        if not self.halted:
            self._halt(problem, out)
        return out

    def retained(self, first_seq: int) -> None:
        """Record that retention removed events: at most those that are committed, and durable here."""
        self.seat.journal.retained(min(first_seq, self.committed, self.seat.journal.stable_tail))

    def measured(self, node: int, rtt_us: int) -> None:
        """Record the round-trip time to a member."""
        if self._knows(node):
            self._rtt_us[node] = rtt_us

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _dispatch(self, sender: int, message: LeadershipMessage, now: float, out: Out) -> None:
        match message:
            case Propose():
                self._on_propose(sender, message, now, out)
            case Promise():
                self._on_promise(sender, message, now, out)
            case Stale():
                self._on_stale(message, now, out)
            case Stored():
                self._on_stored(sender, message, now, out)
            case Fetch():
                self._on_fetch(sender, message, now, out)
            case Data():
                self._on_data(sender, message, now, out)
            case Configure():
                self._on_configure(sender, message, now, out)
            case Transfer():
                self._on_transfer(sender, message, now, out)

    def _on_propose(self, sender: int, propose: Propose, now: float, out: Out) -> None:
        self._meet(Member(sender, propose.incarnation), out)
        if propose.leader != sender:
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
        elif propose.trial:
            if self._agrees(propose, out) and propose.epoch > self.epoch and not self._hears_leader(now):
                self.seat.send(sender, self._own_promise(propose.epoch, trial=True), out)
            else:
                self._stale(sender, out)
        elif propose.epoch > self.epoch:
            self._enter(propose.epoch, sender, now, out)
            self._postpone(now)
        elif (propose.epoch, sender) == (self.epoch, self.seat.journal.ballot.leader):
            self._promise(out)
        else:
            self._stale(sender, out)

    def _on_stale(self, stale: Stale, now: float, out: Out) -> None:
        self._known_epoch = max(self._known_epoch, stale.epoch)
        if self.lead is not None and stale.epoch > self.epoch:
            self._step_down(Signal.PEER_LEADER_OBSERVED, out)
            self._postpone(now)
        elif self._campaign is not None and stale.epoch >= self._campaign.epoch:
            self._lose(now, out)

    def _on_stored(self, sender: int, stored: Stored, now: float, out: Out) -> None:
        if self.lead is None or stored.epoch != self.lead.epoch:
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return
        self._meet(Member(sender, stored.incarnation), out)
        self.lead.on_stored(sender, stored, now, out)
        self._leave_if_removed(out)

    def _on_fetch(self, sender: int, fetch: Fetch, now: float, out: Out) -> None:
        if fetch.epoch < self.epoch:
            self._stale(sender, out)
        elif self.lead is not None and fetch.epoch == self.epoch:
            self.lead.on_fetch(sender, fetch, now, out)
        elif (fetch.epoch, sender) == (self.epoch, self.seat.journal.ballot.leader) and self._has(fetch.first):
            # What is under way to one member must fit its receive buffer, whatever it asks for.
            most = min(fetch.max_bytes, self.seat.settings.window_bytes)
            for data in chunks(self.seat, fetch.first, self.committed, most):
                self.seat.send(sender, data, out)
        else:
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)

    def _has(self, seq: int) -> bool:
        """Return whether the log reaches a sequence; it does not if this member lost what it promised from."""
        return seq <= self.seat.journal.tail

    def _on_data(self, sender: int, data: Data, now: float, out: Out) -> None:
        campaign = self._campaign
        if not data.round:
            # Not from a leader: a promiser answers a candidate.
            if campaign is not None and (data.epoch, sender) == (campaign.epoch, campaign.source):
                self._copy(campaign, data, now, out)
            else:
                self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
        elif self._follows(sender, data.epoch, now, out):
            wanted = self._accept(data, out)
            if wanted is not None:
                self._fetch(sender, wanted, now, out)
            # A heartbeat is answered even by a member that lacks events: otherwise a leader whose followers all catch up
            # would count as cut off, and refuse appends.
            behind = wanted is not None or self.seat.journal.synced.number < self.seat.journal.number
            if not data.payloads or not behind:
                self._confirm(sender, out)

    def _on_configure(self, sender: int, configure: Configure, now: float, out: Out) -> None:
        if self._follows(sender, configure.epoch, now, out):
            config = self.config
            if config is None or configure.config.rank > config.rank:
                self.seat.persist(out, config=configure.config)
            else:
                self._confirm(sender, out)

    def _follows(self, sender: int, epoch: int, now: float, out: Out) -> bool:
        """Return whether a message of a leader counts; enter its epoch if it is a later one."""
        if epoch > self.epoch:
            self._enter(epoch, sender, now, out)
        if epoch < self.epoch:
            self._stale(sender, out)
            return False
        # Whoever leads has a majority, so this counts even if the epoch was promised to another candidate.
        if self.leader not in {None, sender}:
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return False
        if self.role == Role.IDLE:
            self._change_role(Role.REPLICA, Signal.CAPABILITY_SELECTED, out)
        if self._campaign is not None:
            self._lose(now, out)
        self._lost_campaigns = 0
        self.leader = sender
        self._heard_at = now
        self._postpone(now)
        return True

    # ── members ────────────────────────────────────────────────────────────────────────────────

    def _meet(self, member: Member, out: Out) -> None:
        config = self.config
        if self.lead is None or config is None or member in config.members:
            return
        if self._newcomers.get(member.node) != member.incarnation:
            self._newcomers.put(member.node, member.incarnation)
            out.notices.append(Newcomer(member))

    def _change_members(self, token: int, members: tuple[Member, ...], now: float) -> Out:
        out = Out()
        if self.lead is None:
            out.notices.append(Refused(token, Refusal.NOT_LEADER))
        elif not members:
            out.notices.append(Refused(token, Refusal.NO_CHANGE))
        else:
            self.lead.change(token, members, now, out)
        return out

    def _leave_if_removed(self, out: Out) -> None:
        lead = self.lead
        if lead is not None and lead.config_stored and self.seat.member not in lead.config.members:
            self._step_down(Signal.GRACEFUL_RELINQUISH, out)
