"""Campaign: the promises that a candidate has collected for an epoch, and whose log is the best of them.

A campaign first asks in a trial, which promises nothing: a member that was cut off for a while cannot depose a leader
that the others still hear. A node set that has no config yet is founded by a trial that all its nodes answer, each
without a config: a node that lost its disk can therefore never found the set a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from meshbus.engine.replicas.progress import is_majority
from meshbus.wire.messages.leadership import Config, Member, Promise

FOUNDING_EPOCH = 1
"""The epoch of the first config. The same for all, so that two founders at the same time found the same set."""


class Campaign:
    """An attempt to lead one epoch."""

    def __init__(self, epoch: int, *, trial: bool, until: float, write: int = 0) -> None:
        self.epoch = epoch
        self.trial = trial
        self.until = until
        """When the attempt is given up."""
        self.write = write
        """The write that must be durable before the proposal is sent."""
        self.proposed = False
        self.again_at = until
        """When what may be lost is repeated."""
        self.source: int | None = None
        """The promiser whose log is being copied."""
        self.goal = (0, 0)
        """Last epoch and tail of that log."""
        self.answer_left = 0
        """Bytes of events that are missing of what was asked for last; the source sends no more by itself."""
        self._promises: dict[int, Promise] = {}

    def promise(self, node: int, promise: Promise) -> None:
        """Record a promise; a repeated one replaces the earlier."""
        self._promises[node] = promise

    def missing(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that have not promised."""
        return [node for node in nodes if node not in self._promises]

    @property
    def answered(self) -> bool:
        """Whether another node than the candidate has promised."""
        return len(self._promises) > 1

    def won(self, config: Config) -> bool:
        """Return whether a majority has promised."""
        return is_majority(config, self._present())

    def founded(self, nodes: Collection[int]) -> Config | None:
        """Return the first config, if all nodes answered and none has one."""
        promises = self._promises
        if self.missing(nodes) or any(promise.config is not None for promise in promises.values()):
            return None
        members = tuple(sorted(member for member in self._present() if member.node in nodes))
        return Config(epoch=FOUNDING_EPOCH, version=1, members=members)

    def best(self, config: Config, own: int) -> tuple[int, tuple[int, int]]:
        """Return the member with the best log of the majority, the own one if it is as good, and that log's end."""
        ends = {
            member.node: (self._promises[member.node].last_epoch, self._promises[member.node].tail)
            for member in self._present() & set(config.members)
        }
        node = max(ends, key=lambda node: (ends[node], node == own))
        return node, ends[node]

    def _present(self) -> set[Member]:
        return {Member(node, promise.incarnation) for node, promise in self._promises.items()}
