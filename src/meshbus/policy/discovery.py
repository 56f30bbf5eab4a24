"""Capability index: the latest announcement of each node, and searches over them (policy.md §8.4, §8.5).

Each node has one entry, its newest announcement, which lives for its ttl from the time of receipt. Tags are indexed, so
a search by tags looks only at the nodes that have the rarest of them. The size is limited: a full index forgets nodes
that others told of, fairly among those who told, and never one that spoke for itself. Times are monotonic seconds.

The bytes of announcements are in wire/messages/capability.py; one node is matched in policy/capability.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum, auto
from heapq import heapify, heappop, heappush

import msgspec

from meshbus.errors import ConfigError
from meshbus.policy.bound import Bound, By
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.reason import Reason
from meshbus.policy.tag import REGION_PREFIX, SUBNET_LOCAL_TAG, TENANT_PREFIX, chain_tag

MAX_NODES = 65_536
"""Nodes in the index. Our choice: announcements of the largest size then take half a gigabyte."""


BOUNDS = (
    Bound(
        name="announced_nodes",
        what="nodes whose announcement is known",
        by=By.PEER,
        per_node=MAX_NODES,
        full="the oldest that the most talkative neighbor told of goes, never one that announced itself",
        cost="the number of neighbors",
        counter=Reason.EVICT_ANNOUNCEMENT,
    ),
)


class ScopeKind(Enum):
    """The kinds of scope filters."""

    ANY = auto()
    GLOBAL_ONLY = auto()
    SAME_SUBNET = auto()
    TENANTS = auto()
    REGIONS = auto()


class ScopeFilter(msgspec.Struct, frozen=True):
    """Limits a search by the `scope:` tags with which nodes say for whom they are available (policy.md §8.5).

    A node with `scope:subnet-local` is found only under SAME_SUBNET, whatever other tags it has. A node without tenant
    and region is available to all of them.
    """

    kind: ScopeKind
    names: frozenset[str] = frozenset()

    @classmethod
    def tenants(cls, *names: str) -> ScopeFilter:
        """Return the filter for nodes that are available to one of these tenants."""
        return cls(ScopeKind.TENANTS, _names("tenant", names))

    @classmethod
    def regions(cls, *names: str) -> ScopeFilter:
        """Return the filter for nodes that are available to one of these regions."""
        return cls(ScopeKind.REGIONS, _names("region", names))

    def matches(self, capabilities: CapabilitySet, *, same_subnet: bool) -> bool:
        """Return whether a node passes the filter; `same_subnet` is whether it is in the subnet of this node."""
        if self.kind is ScopeKind.SAME_SUBNET:
            return same_subnet
        if SUBNET_LOCAL_TAG in capabilities.tags:
            return False
        # policy.md §8.5: a node for tenants only never matches a search by region, and the reverse.
        tenants = _scoped(capabilities, TENANT_PREFIX)
        regions = _scoped(capabilities, REGION_PREFIX)
        match self.kind:
            case ScopeKind.ANY:
                return True
            case ScopeKind.GLOBAL_ONLY:
                return not tenants and not regions
            case ScopeKind.TENANTS:
                return not self.names.isdisjoint(tenants) if tenants else not regions
            case ScopeKind.REGIONS:
                return not self.names.isdisjoint(regions) if regions else not tenants


class Entry(msgspec.Struct, frozen=True):
    """The newest announcement of one node."""

    capabilities: CapabilitySet
    version: int
    expires_at: float
    via: int | None = None
    """The neighbor that told of the node; None if the node said it itself."""

    def expired(self, now: float) -> bool:
        """Return whether the entry has expired; at exactly `expires_at` it has not."""
        return now > self.expires_at


class CapabilityIndex:
    """The known nodes and their capabilities."""

    def __init__(self, *, max_nodes: int = MAX_NODES) -> None:
        self.version = 0
        """Incremented by every change, so that derived data can be kept until then."""
        self.refused = 0
        """Number of nodes refused because the index was full."""
        self.evicted = 0
        """Number of nodes removed to make room for others."""
        self._max_nodes = max_nodes
        self._via: dict[int, OrderedDict[int, None]] = {}
        """The nodes that each neighbor told of, the one that was refreshed last at the end."""
        self._entries: dict[int, Entry] = {}
        self._by_claim: dict[str, set[int]] = {}
        """By tag, and for a chain by its shortest tag, whichever form the node announced."""
        self._expiries: list[tuple[float, int]] = []
        """Heap of (time, node id). A pair that differs from its entry is stale and ignored."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._entries

    def apply(
        self,
        node_id: int,
        capabilities: CapabilitySet,
        version: int,
        ttl_s: float,
        now: float,
        *,
        via: int | None = None,
    ) -> bool:
        """Record an announcement; return False if it is not newer than the entry of its node, or if there is no room.

        `via` is the neighbor that told of another node; None if the node said it itself. A full index makes room by
        forgetting the oldest node that was told of by the neighbor with the most of them, so that whoever invents nodes
        pushes out his own. A node that spoke for itself is only removed when it expires.
        """
        # policy.md §8.4: 0 counts as 1; an expired entry accepts any version.
        version = max(version, 1)
        current = self._entries.get(node_id)
        if current is not None and not current.expired(now) and version <= current.version:
            return False
        if current is None and len(self) >= self._max_nodes:
            self.expire(now)
            if len(self) >= self._max_nodes and not self._evict():
                self.refused += 1
                return False
        if current is not None and current.via is None:
            via = None  # what is passed on about a node that spoke for itself takes nothing away from it
        self.remove(node_id)
        self.version += 1
        # policy.md §8.4: the lifetime counts from receipt; the sender's timestamp is not used.
        self._entries[node_id] = Entry(capabilities, version, now + ttl_s, via)
        if via is not None:
            self._via.setdefault(via, OrderedDict())[node_id] = None
        for claim in _indexed(capabilities):
            self._by_claim.setdefault(claim, set()).add(node_id)
        self._remember_expiry(node_id, now + ttl_s)
        return True

    def get(self, node_id: int) -> Entry | None:
        """Return the entry of a node, or None; the entry may have expired since the last `expire`."""
        return self._entries.get(node_id)

    def known(self, now: float) -> dict[int, CapabilitySet]:
        """Return the capabilities of every node that has announced any."""
        return {node: entry.capabilities for node, entry in self._entries.items() if not entry.expired(now)}

    def query(
        self,
        capability_filter: CapabilityFilter,
        *,
        now: float,
        scope: ScopeFilter | None = None,
        same_subnet: Callable[[int], bool] = lambda _node_id: False,
    ) -> list[int]:
        """Return the ids of the matching nodes, sorted.

        Without a scope all nodes are searched; `same_subnet` returns whether a node is in the subnet of this node.
        """
        found = []
        for node_id in self._candidates(capability_filter):
            entry = self._entries[node_id]
            if (
                not entry.expired(now)
                and capability_filter.matches(entry.capabilities)
                and (scope is None or scope.matches(entry.capabilities, same_subnet=same_subnet(node_id)))
            ):
                found.append(node_id)
        return sorted(found)

    def holders(self, origin_hash: int, now: float) -> list[int]:
        """Return the ids of the nodes that hold a chain, wholly or in part, sorted."""
        nodes = self._by_claim.get(chain_tag(origin_hash), ())
        return sorted(node_id for node_id in nodes if not self._entries[node_id].expired(now))

    def rename(self, old: int, new: int, now: float) -> None:
        """Keep what a node announced that goes on under another id, until it announces itself under that."""
        entry = self._entries.get(old)
        if entry is not None:
            self.remove(old)
            if new not in self._entries:
                self.apply(new, entry.capabilities, 1, max(entry.expires_at - now, 0.0), now, via=entry.via)

    def remove(self, node_id: int) -> bool:
        """Remove a node, and return whether it was there."""
        entry = self._entries.pop(node_id, None)
        if entry is None:
            return False
        self.version += 1
        if entry.via is not None:
            told = self._via[entry.via]
            del told[node_id]
            if not told:
                del self._via[entry.via]
        for claim in _indexed(entry.capabilities):
            nodes = self._by_claim[claim]
            nodes.discard(node_id)
            if not nodes:
                del self._by_claim[claim]
        return True

    def expire(self, now: float) -> list[int]:
        """Remove the expired nodes, and return their ids."""
        gone = []
        while self._expiries and self._expiries[0][0] < now:
            expires_at, node_id = heappop(self._expiries)
            entry = self._entries.get(node_id)
            # The node may have announced itself again since; then this pair is stale.
            if entry is not None and entry.expires_at == expires_at:
                self.remove(node_id)
                gone.append(node_id)
        return gone

    def _evict(self) -> bool:
        if not self._via:
            return False
        most = max(self._via.values(), key=len)
        self.evicted += 1
        return self.remove(next(iter(most)))

    def _candidates(self, capability_filter: CapabilityFilter) -> Iterable[int]:
        claims = capability_filter.required_claims
        if not claims:
            return self._entries
        # The rarest tag: every match has it, so only its nodes have to be tested.
        return min((self._by_claim.get(claim, set()) for claim in claims), key=len)

    def _remember_expiry(self, node_id: int, expires_at: float) -> None:
        heappush(self._expiries, (expires_at, node_id))
        # A node that announces often leaves stale pairs behind. Rebuild before they outnumber the live ones.
        if len(self._expiries) > 2 * len(self._entries) + 64:
            self._expiries = [(entry.expires_at, node) for node, entry in self._entries.items()]
            heapify(self._expiries)


def _indexed(capabilities: CapabilitySet) -> frozenset[str]:
    return capabilities.claims.union(map(chain_tag, capabilities.chains))


def _names(what: str, names: tuple[str, ...]) -> frozenset[str]:
    if not names or "" in names:
        raise ConfigError(what, f"needs at least one name, and none may be empty, got {names!r}")
    return frozenset(names)


def _scoped(capabilities: CapabilitySet, prefix: str) -> set[str]:
    """Return the names with a scope prefix; an empty name is ignored (policy.md §8.5)."""
    return {text.removeprefix(prefix) for text in capabilities.tags if text.startswith(prefix)} - {""}
