"""Subnet gateway of a node: prepares the inputs of the gateway decision for forwarded packets (profile.md §9).

The decision itself is policy/gateway.py, over columns. This file supplies its inputs: the subnets of origin and
destination, which come from signed announcements and never from the packet, the publishers that a channel allows
(engine/routes/publishers.py), and the names of channels, to which rules by prefix apply (engine/routes/learnednames.py).
A node that never announced itself is in the subnet `NOWHERE`, which no gateway knows.

Without a gateway configuration a node is a plain relay: it counts and limits hops, and judges nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.routes.learnednames import MAX_NAMES, LearnedNames
from meshbus.engine.routes.publishers import MAX_ORIGINS, Publishers
from meshbus.engine.session.service import Context
from meshbus.engine.settings import GatewayConfig
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.reason import Reason
from meshbus.policy.tag import announced_channels
from meshbus.wire.headerbatch import HeaderBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOWHERE = 0xFFFFFFFF
"""Subnet of a node without a signed announcement; no gateway has it in its list, so it becomes UNKNOWN_SUBNET."""
NAMES_S = 1.0
"""Shortest time between two rebuilds of the policy for learned names: members of the mesh can cause one at any time."""

_U32, _U8 = np.dtype(np.uint32), np.dtype(np.uint8)


class Judgment(NamedTuple):
    """The verdicts about packets, and the inputs that they rest on."""

    verdicts: NDArray[np.uint8]
    """0 to forward, otherwise the code of a drop reason."""
    sources: NDArray[np.uint32]
    dests: NDArray[np.uint32]
    """Subnets of origin and destination that were used."""
    guard: NDArray[np.uint8]
    """AuthVerdict codes, or NOT_ASKED where the guard was not consulted."""


class NameSource(Protocol):
    """Names of channels, and a version that changes with them."""

    version: int

    def __iter__(self) -> Iterator[ChannelName]: ...


class Boundary:
    """Judges the packets that one node forwards."""

    def __init__(self, context: Context) -> None:
        self.config = context.settings.gateway
        self.version = 0
        """Incremented with every new policy."""
        self._identity = context.identity
        self._subnet = context.settings.subnet
        self._assignment = context.settings.assignment
        self._index = context.index
        self._counters = context.counters
        self._nodes: BoundedMap[int, int] = BoundedMap(MAX_ORIGINS, self._counters.forgetting("origins"))
        """Origin hash by node id."""
        self._publishers = Publishers(context)
        self._names = LearnedNames()
        self._names_applied = 0
        """The version of the names that the gateway knows."""
        self._names_at = 0.0
        """From when on the gateway may learn names again."""
        self._sweep_at = 0.0
        """From when on names of nodes that are gone may be looked for again."""
        self._own: tuple[NameSource, ...] = ()
        self._rules_applied: tuple[int, ...] = ()
        """The version of the rules, and of this node's own channels, that the gateway knows."""
        self._registry = ChannelConfigRegistry()
        self._now = 0.0
        self.gateway = self._build()

    def set_gateway(self, config: GatewayConfig | None, assignment: Assignment | None, now: float) -> None:
        """Judge by these rules from the next `set_channels` on, which must follow at once."""
        learns = self.config is None and config is not None
        self.config, self._assignment = config, assignment
        if learns:
            # A plain relay does not need the names that nodes announce, so it has not kept them.
            for node_id in self._nodes:
                self._learn_from(node_id, now)

    def set_channels(self, registry: ChannelConfigRegistry | None, now: float) -> None:
        """Use these channel configurations, and keep the gateway's counters."""
        self._registry = ChannelConfigRegistry() if registry is None else registry
        self._publishers.reset(self._registry)
        # A new gateway, because its guard and rules are built from the registry; the counters must continue.
        counted = self.gateway
        self.gateway = self._build()
        self.gateway.continue_from(counted)
        self._rules_applied = ()  # a new gateway has learned no names
        self.recheck(now)

    def watch(self, *sources: NameSource) -> None:
        """Take the names of channels that this node itself publishes and receives from these sources."""
        self._own = sources

    def heard(self, node_id: int, entity_id: bytes, now: float) -> None:
        """Record the entity of a signed announcement, and what it may publish on."""
        self._learn(now)
        self._nodes.put(node_id, self._publishers.heard(node_id, entity_id, now))
        self._learn_from(node_id, now)

    def renamed(self, old: int, new: int, entity_id: bytes, now: float) -> None:
        """Judge what a node publishes that goes on under another key by what that key may do, whatever origin it names."""
        self._nodes.pop(old)
        self._publishers.rename(old, new, entity_id)
        self.heard(new, entity_id, now)

    def _learn_from(self, node_id: int, now: float) -> None:
        """Learn the names of channels that a node announced, if this node is a gateway."""
        entry = self._index.get(node_id)
        if self.config is None or entry is None:
            return
        names = announced_channels(entry.capabilities.tags)
        # Names of nodes that are gone are true as well; they go when there is no room, before any other.
        if len(names) > self._names.room and now >= self._sweep_at:
            self._sweep_at = now + NAMES_S
            self._names.keep(self._index.__contains__)
        self._counters.count(Reason.EVICT_CHANNEL_NAMES, self._names.hear(node_id, names, entry.via))

    def recheck(self, now: float) -> None:
        """Check again what each publisher may publish on."""
        self._learn(now)
        self._publishers.recheck(now)

    def next_timer(self) -> float | None:
        """Return the time of the next check of publishers, or at which learned names are applied, or None."""
        check = self._publishers.next_timer()
        if not self._unapplied():
            return check
        return self._names_at if check is None else min(check, self._names_at)

    def tick(self, now: float) -> None:
        """Check the publishers and apply learned names, as far as that is due."""
        self._learn(now)
        self._publishers.tick(now)

    def judge(self, headers: HeaderBatch, dests: NDArray[np.uint64], ttl: NDArray[np.uint8], now: float) -> Judgment:
        """Judge packets by their inner headers, their destinations, and the ttl of their routing headers.

        Nothing is counted here: each packet stands for a run, and `count` is called later with the length of the run.
        """
        asked = np.full(len(headers), NOT_ASKED, _U8)
        if self.config is None:
            nowhere = np.zeros(len(headers), _U32)
            verdicts = self.gateway.judge_batch(headers, nowhere, nowhere, ttl)
            return Judgment(verdicts, nowhere, nowhere, asked)
        self._now = now
        self.tick(now)
        columns = headers.columns
        if self._registry.prefixes:
            self._publishers.admit(zip(columns["origin_hash"].tolist(), columns["stream_id"].tolist(), strict=True))
        sources = _spread(columns["origin_hash"], self._subnet_of_origin)
        where = _spread(dests, self._subnet_of)
        # profile.md §9: the packet's own subnet_id counts only if the announcement confirms it. 0 means none (0.23).
        # Only counted: the verdict uses the announced subnet, so a false claim has no effect.
        claimed = columns["subnet_id"]
        forged = (claimed != sources) & (claimed != 0) & (columns["origin_hash"] != 0)
        self._counters.add("gateway", "subnet_forged", int(np.count_nonzero(forged)))
        verdicts = self.gateway.judge_batch(headers, sources, where, ttl, asked)
        return Judgment(verdicts, sources, where, asked)

    def count(self, verdict: int, packets: int) -> None:
        """Count packets with a verdict."""
        self.gateway.count(verdict, packets)

    def versions(self) -> tuple[object, ...]:
        """Return a value that changes whenever a verdict may change for another reason than the time."""
        kept = self.version, self._index.version, len(self._nodes), self.gateway.version
        # Channels with a rule by name are in the version of the gateway.
        return (*kept, self._publishers.version, self._rules_version()) if self._registry.prefixes else kept

    def holds_until(self, origin: int, dest: int, stream: int) -> float:
        """Return until when a verdict about an origin, a destination and a stream is valid if no version changes."""
        if self.config is None:
            return inf
        known = self._publishers.origins.get(origin)
        ends = [self._index.get(node_id) for node_id in ((dest,) if known is None else (dest, known[0]))]
        # An announcement that expires changes the subnet without changing a version, and so does a token.
        permitted = self._publishers.permitted_until(origin, stream)
        return min((permitted, *(entry.expires_at for entry in ends if entry is not None)))

    def subnet_of(self, node_id: int, now: float) -> int:
        """Return the subnet of a node, or NOWHERE if nothing signed is known of it."""
        self._now = now
        return self._subnet_of(node_id)

    def _subnet_of(self, node_id: int) -> int:
        if node_id == self._identity.node_id:
            return self._subnet
        # Without a subnet policy no node can be assigned to a subnet: all are in GLOBAL (policy.md §6.2).
        if self._assignment is None:
            return SubnetId.GLOBAL
        entry = self._index.get(node_id)
        # `_nodes` has only signed announcements; an unsigned one must not choose a subnet.
        if entry is None or entry.expired(self._now) or node_id not in self._nodes:
            return NOWHERE
        return self._assignment.assign(entry.capabilities.tags)

    def _subnet_of_origin(self, origin: int) -> int:
        if origin == self._identity.origin_hash:
            return self._subnet
        known = self._publishers.origins.get(origin)
        if known is None:
            return SubnetId.GLOBAL if self._assignment is None else NOWHERE
        return self._subnet_of(known[0])

    def _build(self) -> SubnetGateway:
        self.version += 1
        config = self.config
        # A plain relay: every channel is unknown and forwarded, so that only the TTL is judged.
        if config is None:
            return SubnetGateway(SubnetId.GLOBAL, channels=ChannelConfigRegistry(), forward_unknown=True)
        return config.build(self._subnet, self._registry, self._publishers.guard, self._publishers.may_publish)

    def _learn(self, now: float) -> None:
        """Apply changed rules and names to the gateway; names of other nodes at most once in NAMES_S."""
        rules = self._rules_version()
        told = self._unapplied() and now >= self._names_at
        if self.config is None or (rules == self._rules_applied and not told):
            return
        self._rules_applied = rules
        if told:
            self._names_at = now + NAMES_S
        # Without rules by prefix, names decide nothing.
        if self._registry.prefixes:
            self._names_applied = self._names.version
            own = islice((name for source in self._own for name in source), MAX_NAMES)
            self.gateway.learn({*self._names, *own})
        self._publishers.restrict(self.gateway.restricted())

    def _unapplied(self) -> bool:
        """Return whether names of other nodes were learned that the gateway does not know yet, and needs."""
        return self._names.version != self._names_applied and bool(self._registry.prefixes)

    def _rules_version(self) -> tuple[int, ...]:
        """Return a value that changes with the channel configurations, and with this node's own channels."""
        if not self._registry.prefixes:
            return (self._registry.version,)
        return (self._registry.version, *(source.version for source in self._own))


NOT_ASKED = 0xFF
"""Stands for an AuthVerdict where the guard was not consulted."""


def _spread(ids: NDArray[np.uint64], subnet_of: Callable[[int], int]) -> NDArray[np.uint32]:
    """Return the subnet of each id. Packets of one batch mostly share one id, which is looked up once."""
    first = ids[0]
    if (ids == first).all():
        return np.full(len(ids), subnet_of(int(first)), _U32)
    subnets = np.empty(len(ids), _U32)
    for one in dict.fromkeys(ids.tolist()):
        subnets[ids == np.uint64(one)] = subnet_of(one)
    return subnets
