"""Chains: which nodes hold which log, told by tags of their announcements (redex.md §8).

A node that holds the chain of an origin, or a part of it, has one tag for it. `announce_chain` sets the tag of a chain,
`withdraw_chain` removes it, and both travel with the next announcement: never more than one within `min_interval_s`, in
its latest form. The chain of a replicated channel is named by the first eight bytes of its channel id, so the tags of
several channels differ. (A 0.23 node names all of its chains 0.)

Which roles of a replica announce its chain is in engine/replicas/roles.py; the node follows them (node/replicas/replicamember.py).
"""

from __future__ import annotations

from meshbus.engine.directory.announce import Announcer
from meshbus.engine.directory.handlers import Distance, nearest_first
from meshbus.engine.session.service import Context, Service
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.policy.tag import chain_tag

MAX_CHAINS = 64
"""Chains that one announcement names. Our choice: their tags take a third of an announcement of the largest size."""

BOUNDS = (
    Bound(
        name="chains",
        what="chains that this node announces",
        by=By.USER,
        per_node=MAX_CHAINS,
        full="the new one is not announced",
        counter=Reason.CHAIN_NOT_ANNOUNCED,
    ),
)


class Chains(Service):
    """The chains that this node announces, and the nodes that announced theirs."""

    def __init__(self, context: Context, announcer: Announcer, distance: Distance = lambda _node_id: None) -> None:
        self._identity = context.identity
        self._index = context.index
        self._counters = context.counters
        self._announcer = announcer
        self._distance = distance
        self._held: dict[int, str] = {}
        """The tag of each chain that this node holds."""

    def announce_chain(self, origin_hash: int, tip: int | None, now: float) -> None:
        """Announce that this node holds a chain, up to the sequence number `tip` if it is given."""
        if origin_hash not in self._held and len(self._held) >= MAX_CHAINS:
            self._counters.count(Reason.CHAIN_NOT_ANNOUNCED)
            return
        self._held[origin_hash] = chain_tag(origin_hash, tip=tip)
        self._announcer.set_chains(tuple(self._held.values()), now)

    def withdraw_chain(self, origin_hash: int, now: float) -> None:
        """Announce that this node no longer holds a chain; do nothing if it did not announce it."""
        self._held.pop(origin_hash, None)
        self._announcer.set_chains(tuple(self._held.values()), now)

    def find_chain_holders(self, origin_hash: int, now: float) -> list[int]:
        """Return the nodes that hold a chain: this node, then the nearest first, then those of unknown distance."""
        # What is known of this node is what it will announce, not what it has announced.
        others = [node_id for node_id in self._index.holders(origin_hash, now) if node_id != self._identity.node_id]
        return [self._identity.node_id] * (origin_hash in self._held) + nearest_first(others, self._distance)
