"""Candidacy: campaigns of a member that hears no leader.

A campaign asks in a trial, proposes an epoch that is on its own disk, and copies the best log of a majority. Only then
it leads. A candidate that lacks much asks the member with that log to campaign instead: that one has nothing to copy.
"""

from __future__ import annotations

from meshbus.engine.replicas.campaign import Campaign
from meshbus.engine.replicas.election import elect
from meshbus.engine.replicas.leading import Leading
from meshbus.engine.replicas.records import Out
from meshbus.engine.replicas.roles import Signal
from meshbus.engine.replicas.serving import size_of
from meshbus.engine.replicas.voting import Voting
from meshbus.policy.reason import Reason
from meshbus.wire.messages.leadership import Data, Promise, Propose, Transfer
from meshbus.wire.messages.redex import Role

FAR_BEHIND = 4096
"""Events that a candidate copies itself. Our choice: 4 MiB of events of 1 KiB, about as long as another campaign takes."""


class Candidacy(Voting):
    """A member that can campaign."""

    def _on_silence(self, now: float, out: Out) -> None:
        self._postpone(now)
        if self.config is not None and self.seat.member not in self.config.members:
            # Not a member (any more), or one that lost its memory: asks for nothing, but shows that it is here.
            if self._remembers:
                self._propose(Campaign(self._next_epoch(), trial=True, until=now), out)
            return
        self._become_candidate(out)
        if elect(self.seat.own, self._standings(now)) != self.seat.own:
            self._change_role(Role.REPLICA, Signal.ELECTION_LOST, out)
            return
        until = now + self._slowness * self._patience_s
        self._begin(Campaign(self._next_epoch(), trial=True, until=until, write=self._memory), now, out)

    def _become_candidate(self, out: Out) -> None:
        if self.role == Role.IDLE:
            self._change_role(Role.REPLICA, Signal.CAPABILITY_SELECTED, out)
        self._change_role(Role.CANDIDATE, Signal.MISSED_HEARTBEATS, out)

    def _again(self, campaign: Campaign, now: float, out: Out) -> None:
        """Repeat what may be lost."""
        campaign.again_at = now + self.seat.settings.heartbeat_s
        if campaign.source is not None:
            self._fetch_copy(campaign, campaign.source, self.seat.journal.tail, now, out)
        elif campaign.proposed:
            self._propose(campaign, out)

    def _begin(self, campaign: Campaign, now: float, out: Out) -> None:
        self._campaign = campaign
        self.leader = None
        campaign.again_at = now + self.seat.settings.heartbeat_s
        self._go_on(campaign, now, out)

    def _go_on(self, campaign: Campaign, now: float, out: Out) -> None:
        """Continue a campaign: propose what is on disk, count promises, or finish the copy."""
        synced = self.seat.journal.synced
        if campaign.source is not None:
            if (synced.last_epoch, self.seat.journal.stable_tail) >= campaign.goal:
                self._win(campaign, now, out)
        elif campaign.proposed:
            self._count(campaign, now, out)
        elif synced.number >= campaign.write:
            campaign.proposed = True
            self._propose(campaign, out)
            campaign.promise(self.seat.own, self._own_promise(campaign.epoch, trial=campaign.trial))
            self._count(campaign, now, out)

    def _propose(self, campaign: Campaign, out: Out) -> None:
        propose = Propose(
            channel_id=self.seat.channel_id,
            epoch=campaign.epoch,
            leader=self.seat.own,
            incarnation=self.seat.member.incarnation,
            trial=campaign.trial,
            founding=self.seat.founding if campaign.trial else 0,
        )
        for node in campaign.missing(self._nodes()):
            if node != self.seat.own:
                self.seat.send(node, propose, out)

    def _count(self, campaign: Campaign, now: float, out: Out) -> None:
        config = self.config
        if config is None:
            if campaign.answered and not self._keeps_founders(out):
                return
            config = (
                campaign.founded(self.seat.settings.nodes) if campaign.trial and self.seat.settings.founds else None
            )
            if config is None:
                return
            self.seat.persist(out, config=config)
        if not campaign.won(config):
            return
        if campaign.trial:
            self._stand(campaign.epoch, now, out)
            return
        source, campaign.goal = campaign.best(config, self.seat.own)
        if source == self.seat.own:
            self._win(campaign, now, out)
        elif not self._lost_campaigns and campaign.goal[1] - self.seat.journal.tail > FAR_BEHIND:
            # Only the first time: if that member does not lead, this one copies after all.
            self.seat.send(source, Transfer(channel_id=self.seat.channel_id, epoch=campaign.epoch), out)
            self._lose(now, out)
        else:
            campaign.source = source
            campaign.until = now + self._slowness * self._patience_s
            self._fetch_copy(campaign, source, self.seat.journal.tail, now, out)

    def _stand(self, epoch: int, now: float, out: Out) -> None:
        """Promise an epoch to this node itself, and propose it once that is on disk."""
        write = self.seat.persist(out, promised=epoch, leader=self.seat.own)
        self._reset(self.committed)
        until = now + self._slowness * self._patience_s
        self._begin(Campaign(epoch, trial=False, until=until, write=write), now, out)

    def _on_transfer(self, sender: int, transfer: Transfer, now: float, out: Out) -> None:
        """Campaign at once, because the leader, or the candidate to which this epoch is promised, asks for it.

        No trial: the others still hear that leader, or have just promised. This is a campaign like any other, so whoever
        sends this message can only cause one, as by a proposal of its own.
        """
        config = self.config
        asker = self.leader or self.seat.journal.ballot.leader
        wanted = (transfer.epoch, sender) == (self.epoch, asker) and sender != self.seat.own
        if not wanted or self._campaign is not None or config is None or self.seat.member not in config.members:
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return
        self._become_candidate(out)
        self._stand(self._next_epoch(), now, out)

    def _copy(self, campaign: Campaign, data: Data, now: float, out: Out) -> None:
        assert campaign.source is not None, "only messages of the source come here"
        if data.payloads:
            # Only what brings it further: a source that lost its log since it promised would answer for ever.
            campaign.until = now + self._slowness * self._patience_s
            campaign.again_at = now + self.seat.settings.heartbeat_s / 4
        campaign.answer_left -= size_of(data)
        wanted = self._accept(data, out)
        if wanted is not None:
            self._fetch_copy(campaign, campaign.source, wanted, now, out)
        elif campaign.answer_left <= 0 and (self.seat.journal.runs.last_epoch, self.seat.journal.tail) < campaign.goal:
            # The answer is complete, so nothing is under way: to wait here would limit the speed of the copy.
            self._fetch_at = now
            self._fetch_copy(campaign, campaign.source, self.seat.journal.tail, now, out)
        self._go_on(campaign, now, out)

    def _fetch_copy(self, campaign: Campaign, source: int, first: int, now: float, out: Out) -> None:
        if self._fetch(source, first, now, out):
            campaign.answer_left = self.seat.settings.window_bytes

    def _win(self, campaign: Campaign, now: float, out: Out) -> None:
        self._campaign = None
        self._lost_campaigns = 0
        self.leader = self.seat.own
        self._change_role(Role.LEADER, Signal.ELECTION_WON, out)
        self.lead = Leading(self.seat, self.committed, now, out)

    def _on_promise(self, sender: int, promise: Promise, now: float, out: Out) -> None:
        campaign, config = self._campaign, self.config
        if campaign is None or campaign.source or (promise.epoch, promise.trial) != (campaign.epoch, campaign.trial):
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return
        if promise.config is not None and (config is None or promise.config.rank > config.rank):
            self.seat.persist(out, config=promise.config)
            if config is None or config.members != promise.config.members:
                # A majority of the newer config decides, which may not be this one.
                self._lose(now, out)
                return
        campaign.promise(sender, promise)
        self._count(campaign, now, out)
