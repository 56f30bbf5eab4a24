"""Seat: what the parts of a member share: who it is, its settings, its journal, and how it sends."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

import msgspec

from meshbus.engine.base.counters import Counters
from meshbus.engine.replicas.journal import Journal
from meshbus.engine.replicas.records import Out, Send
from meshbus.names.identity import Entropy
from meshbus.wire.messages.leadership import Config, LeadershipMessage, Member


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a replicated channel."""

    nodes: tuple[int, ...]
    """The nodes that found the replica set; afterwards its config decides."""
    founds: bool = True
    """Whether this node founds the set with the others; False for a node that comes to a set that exists."""
    chosen: bool = False
    """Whether the nodes were chosen by placement, not by an operator: then what this node agreed to is kept on disk."""
    heartbeat_s: float = 0.5
    max_waiting_events: int = 65_536
    """How many events may wait for their acknowledgement."""
    max_waiting_bytes: int = 64 << 20
    window_bytes: int = 1 << 20
    """How many bytes may be under way to one follower, at most; the window of the node's streams limits it further."""
    budget_fraction: float = 0.5
    """Share of the network that catching up may use."""


def founding_of(nodes: Collection[int]) -> int:
    """Return a number that tells apart which nodes are to found a set; never 0."""
    ids = b"".join(node.to_bytes(8, "little") for node in sorted(nodes))
    return int.from_bytes(blake2b(ids, digest_size=8).digest(), "little") or 1


class Seat:
    """One member of one replicated channel."""

    def __init__(
        self, channel_id: bytes, own: int, settings: ReplicaSettings, journal: Journal, entropy: Entropy
    ) -> None:
        self.channel_id = channel_id
        self.own = own
        self.settings = settings
        self.journal = journal
        self.entropy = entropy
        self.counters = Counters()

    @property
    def member(self) -> Member:
        """This node, with the incarnation of its memory."""
        return Member(self.own, self.journal.ballot.incarnation)

    @property
    def founding(self) -> int:
        """What this node wants to found, as a number that those who want the same have too; 0 for nothing."""
        unfounded = self.journal.ballot.config is None and self.settings.founds
        return founding_of(self.settings.nodes) if unfounded else 0

    @property
    def config(self) -> Config:
        """The config; only where one is known."""
        config = self.journal.ballot.config
        assert config is not None, "a set without a config has no leader"
        return config

    def send(self, to: int, message: LeadershipMessage, out: Out) -> None:
        """Send a message to another node."""
        out.sends.append(Send(to, message))

    def persist(self, out: Out, **changes: int | Config | tuple[int, ...]) -> int:
        """Change the ballot, and return the number of the write."""
        return self.journal.persist(msgspec.structs.replace(self.journal.ballot, **changes), out)

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        return int.from_bytes(self.entropy(2), "little") / 65_536
