"""Subnet gateway of a node: prepares the inputs of the gateway decision for forwarded packets (profile.md §9).

The decision itself is policy/gateway.py, over columns. This file supplies its inputs: the subnets of origin and
destination, which come from signed announcements and never from the packet, and the publishers that a channel allows.
A node that never announced itself is in the subnet `NOWHERE`, which no gateway knows.

Without a gateway configuration a node is a plain relay: it counts and limits hops, and judges nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.session.service import Context
from meshbus.names.identity import derive_origin_hash
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.guard import AuthGuard
from meshbus.wire.headerbatch import HeaderBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ORIGINS = 65_536
"""Nodes whose entity is known: as many as the index of announcements holds."""
NOWHERE = 0xFFFFFFFF
"""Subnet of a node without a signed announcement; no gateway has it in its list, so it becomes UNKNOWN_SUBNET."""
RECHECK_S = 30.0
"""Interval between checks of all publishers, whose tokens and announcements expire: that of policy.md §4.6."""

_NANOSECONDS = 1_000_000_000
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
        self._tokens = context.tokens
        self._counters = context.counters
        self._wall = context.wall
        self._origins: BoundedMap[int, tuple[int, bytes]] = BoundedMap(MAX_ORIGINS)
        """Node id and entity by origin hash, of nodes with a signed announcement."""
        self._nodes: BoundedMap[int, int] = BoundedMap(MAX_ORIGINS)
        """Origin hash by node id."""
        self._publishers = AuthGuard()
        self._registry = ChannelConfigRegistry()
        self._now = 0.0
        self._recheck_at: float | None = None
        self.gateway = self._build()

    def set_channels(self, registry: ChannelConfigRegistry | None, now: float) -> None:
        """Use these channel configurations, and keep the gateway's counters."""
        self._registry = ChannelConfigRegistry() if registry is None else registry
        self._publishers = AuthGuard()
        # A new gateway, because its guard and rules are built from the registry; the counters must continue.
        counted = self.gateway
        self.gateway = self._build()
        self.gateway.continue_from(counted)
        self.recheck(now)

    def heard(self, node_id: int, entity_id: bytes, now: float) -> None:
        """Record the entity of a signed announcement, and what it may publish on."""
        origin = derive_origin_hash(entity_id)
        self._origins.put(origin, (node_id, entity_id))
        self._nodes.put(node_id, origin)
        self._now = now
        self._admit(origin)

    def recheck(self, now: float) -> None:
        """Check again what each publisher may publish on."""
        self._now = now
        for origin in list(self._origins):
            self._admit(origin)
        self._recheck_at = now + RECHECK_S if self._enforced() else None

    def next_timer(self) -> float | None:
        """Return the time of the next check of publishers, or None."""
        return self._recheck_at

    def tick(self, now: float) -> None:
        """Check all publishers if that is due."""
        if self._recheck_at is not None and now >= self._recheck_at:
            self.recheck(now)

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
        columns = headers.columns
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
        return self.version, self._index.version, len(self._nodes), self.gateway.version

    def holds_until(self, origin: int, dest: int) -> float:
        """Return until when a verdict about an origin and a destination is valid if no version changes."""
        if self.config is None:
            return inf
        known = self._origins.get(origin)
        ends = [self._index.get(node_id) for node_id in ((dest,) if known is None else (dest, known[0]))]
        # An announcement that expires changes the subnet without changing a version.
        return min((entry.expires_at for entry in ends if entry is not None), default=inf)

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
        known = self._origins.get(origin)
        if known is None:
            return SubnetId.GLOBAL if self._assignment is None else NOWHERE
        return self._subnet_of(known[0])

    def _build(self) -> SubnetGateway:
        self.version += 1
        config = self.config
        # A plain relay: every channel is unknown and forwarded, so that only the TTL is judged.
        if config is None:
            return SubnetGateway(SubnetId.GLOBAL, channels=ChannelConfigRegistry(), forward_unknown=True)
        gateway = SubnetGateway(
            self._subnet,
            config.peer_subnets,
            channels=self._registry,
            forward_unknown=config.forward_unknown,
            publishers=self._publishers if config.enforce_publishers else None,
            verify_publisher=self._may_publish,
        )
        for channel, subnets in config.exports.items():
            gateway.export(channel, subnets)
        return gateway

    def _enforced(self) -> list[ChannelConfig]:
        if self.config is None or not self.config.enforce_publishers:
            return []
        return [config for config in self._registry if config.publish_caps is not None or config.require_token]

    def _admit(self, origin: int) -> None:
        """Authorize a publisher for the channels that it may publish on, and revoke the others."""
        for config in self._enforced():
            channel = config.name.hash
            if self._may_publish(origin, channel):
                self._publishers.authorize(origin, channel)
            # Only what was authorized: each revocation changes the version and drops all kept decisions.
            elif self._publishers.is_authorized(origin, channel):
                self._publishers.revoke(origin, channel)

    def _may_publish(self, origin: int, channel: int) -> bool:
        """Return whether a publisher passes the full check: a valid announcement, capabilities and token."""
        config, known = self._registry.get(channel), self._origins.get(origin)
        entry = None if known is None else self._index.get(known[0])
        if config is None or known is None or entry is None or entry.expired(self._now):
            return False
        # Tokens are valid by wall clock, in whole seconds (policy.md §7.2).
        unix = self._wall(self._now) // _NANOSECONDS
        return config.can_publish(config.name, entry.capabilities, known[1], self._tokens, unix)


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
