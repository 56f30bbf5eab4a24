"""Where the replicas of a channel are, if the configuration gives a number of them: what this node can tell and decide.

The choice itself is engine/replicas/placement.py. Here it gets what this node knows: announcements, holders of the log,
sessions. Three questions are answered:

    plan()     is this node to be a member, and with whom? As a founder, if nobody has the log yet and the choice has
               settled; as a newcomer, if the log has fewer holders than replicas.
    members()  whom does a node ask that stores nothing?
    change()   what is the next thing that the leader does about its members?

Nodes that know different announcements may choose differently. They found nothing then: founders must agree on the whole
set (engine/replicas/voting.py), and what they agreed to is on disk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from meshbus.engine.replicas.placement import Add, Change, Ranking, Remove, aim, next_change, rank
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.replicas.replicamember import ReplicaMember
from meshbus.policy.capability import CapabilityFilter
from meshbus.wire.messages.leadership import MAX_MEMBERS
from meshbus.wire.messages.redex import chain_of

SETTLE_S = 2.0
"""For so long a choice of founders must stay the same. Our choice: several times what an announcement needs."""
_PREFIX = "replicates:"


def replica_tag(channel_id: bytes) -> str:
    """Return the tag of a node that can be chosen for a channel: it has the channel configured, and a place for its log."""
    return f"{_PREFIX}{chain_of(channel_id):016x}"


class Plan(NamedTuple):
    """How this node takes part in a channel."""

    nodes: tuple[int, ...]
    founds: bool


class Placing:
    """The replicas of one channel, as this node sees them."""

    def __init__(
        self, channel_id: bytes, live: Live, replicas: int, require: tuple[str, ...], replace_s: float
    ) -> None:
        self._channel_id = channel_id
        self._live = live
        self._replicas = replicas
        self._require = CapabilityFilter(require_tags=(replica_tag(channel_id), *require))
        self._replace_s = replace_s
        self._choice: tuple[int, ...] = ()
        self._chosen_at = 0.0
        self._absent: dict[int, float] = {}
        """Members that this node has no session with, and since when."""

    def plan(self) -> Plan | None:
        """Return whether and how this node is to take part; None if it is not, or not yet."""
        own, now = self._live.engine.node_id, Driver.now()
        holders = self.holders()
        if holders:
            self._choice = ()
            present = [node for node in holders if node not in self.lost(holders)]
            is_needed = len(present) < self._replicas and own in self.ranking().eligible
            return Plan((*holders, own), founds=False) if is_needed else None
        chosen = aim(self.ranking(), self._replicas)
        if chosen != self._choice:
            self._choice, self._chosen_at = chosen, now
        settled = len(chosen) == self._replicas and now - self._chosen_at >= SETTLE_S
        return Plan(tuple(sorted(chosen)), founds=True) if settled and own in chosen else None

    def members(self) -> Sequence[int]:
        """Return the nodes that have the log, nearest first; if none is known, those that are to have it."""
        return self.holders() or aim(self.ranking(), self._replicas)

    def change(self, member: ReplicaMember) -> Change | None:
        """Return the next change of the members that the leader makes: a lost one goes, a missing one comes."""
        members = member.nodes()
        lost = self.lost(members)
        wanted = aim(self.ranking(without=member.dismissed), self._replicas, members, lost)
        change = next_change(members, wanted, lost)
        if isinstance(change, Add):
            return change
        if not isinstance(change, Remove) or change.node not in lost:
            return None  # what an operator added stays
        rest = [node for node in members if node != change.node]
        return change if 2 * sum(map(member.reaches, rest)) > len(rest) else None

    def holders(self) -> list[int]:
        """Return the other nodes that announced that they have the log, nearest first."""
        found = self._live.engine.chains.find_chain_holders(chain_of(self._channel_id), Driver.now())
        return [node for node in found if node != self._live.engine.node_id][: MAX_MEMBERS - 1]

    def ranking(self, without: Collection[int] = ()) -> Ranking:
        """Return the nodes that can have a replica, this one included, and why the others cannot."""
        engine = self._live.engine
        known = dict(engine.directory.known(Driver.now()))
        known[engine.node_id] = engine.announcer.capabilities
        known = {node: capabilities for node, capabilities in known.items() if node not in without}
        return rank(self._channel_id, known, self._require)

    def lost(self, members: Collection[int]) -> set[int]:
        """Return the members that were revoked, or without a session for as long as it takes to replace them."""
        engine, now = self._live.engine, Driver.now()
        gone = [node for node in members if node != engine.node_id and engine.peers.get(node) is None]
        self._absent = {node: self._absent.get(node, now) for node in gone}
        revoked = engine.revocations.nodes
        return {node for node, since in self._absent.items() if node in revoked or now - since >= self._replace_s}

    def shortage(self) -> str | None:
        """Return what is missing to found the set, as a sentence; None if nothing is, or it is founded."""
        return None if self.holders() else self.ranking().shortage(self._replicas)
