"""Which nodes can do what: the announcements heard, and searches over them.

Each node has one entry, its newest announcement; it lives for the announced time from receipt. Claims are indexed, so a
search for tags looks only at the nodes that make the rarest of them. The size is bounded: when the index is full, a
node not heard of before is refused unless an entry has expired, so that a crowd of newcomers displaces nobody. Time is
monotonic seconds. The bytes of announcements are in wire/messages/capability.py, the matching of one node in
policy/capability.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from heapq import heapify, heappop, heappush

import msgspec

from meshbus.errors import ConfigError
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.tag import REGION_PREFIX, SUBNET_LOCAL_TAG, TENANT_PREFIX

MAX_NODES = 65_536
"""As many announcements of full size hold half a gigabyte of text."""


class ScopeKind(Enum):
    """Which offers a search looks at."""

    ANY = auto()
    GLOBAL_ONLY = auto()
    SAME_SUBNET = auto()
    TENANTS = auto()
    REGIONS = auto()


class ScopeFilter(msgspec.Struct, frozen=True):
    """Whose offers a search looks at. Nodes say by `scope:` tags to whom they offer themselves.

    `scope:subnet-local` is stronger than the others: such a node is found under SAME_SUBNET and nowhere else. A node
    without a tenant or region offers itself to all of them.
    """

    kind: ScopeKind
    names: frozenset[str] = frozenset()

    @classmethod
    def tenants(cls, *names: str) -> ScopeFilter:
        """Look at what these tenants may use."""
        return cls(ScopeKind.TENANTS, _names("tenant", names))

    @classmethod
    def regions(cls, *names: str) -> ScopeFilter:
        """Look at what these regions may use."""
        return cls(ScopeKind.REGIONS, _names("region", names))

    def matches(self, capabilities: CapabilitySet, *, same_subnet: bool) -> bool:
        """Return whether a node offers itself to this search; `same_subnet` says whether it is in the searcher's."""
        if self.kind is ScopeKind.SAME_SUBNET:
            return same_subnet
        if SUBNET_LOCAL_TAG in capabilities.tags:
            return False
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

    def expired(self, now: float) -> bool:
        """Return whether its time is over; it lives through its last instant."""
        return now > self.expires_at


class CapabilityIndex:
    """The nodes heard of, searchable by filter."""

    def __init__(self, *, max_nodes: int = MAX_NODES) -> None:
        self.version = 0
        """Grows with every change, for those who keep something derived."""
        self.refused = 0
        """Nodes not taken in because the index was full."""
        self._max_nodes = max_nodes
        self._entries: dict[int, Entry] = {}
        self._by_claim: dict[str, set[int]] = {}
        self._expiries: list[tuple[float, int]] = []
        """A heap; a pair that no longer fits its entry is stale."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._entries

    def apply(self, node_id: int, capabilities: CapabilitySet, version: int, ttl_s: float, now: float) -> bool:
        """Take an announcement in; False when it is not newer than the entry that is there, or there is no room."""
        version = max(version, 1)
        current = self._entries.get(node_id)
        if current is not None and not current.expired(now) and version <= current.version:
            return False
        if current is None and len(self) >= self._max_nodes:
            self.expire(now)
            if len(self) >= self._max_nodes:
                self.refused += 1
                return False
        self.remove(node_id)
        self.version += 1
        self._entries[node_id] = Entry(capabilities, version, now + ttl_s)
        for claim in capabilities.claims:
            self._by_claim.setdefault(claim, set()).add(node_id)
        self._remember_expiry(node_id, now + ttl_s)
        return True

    def get(self, node_id: int) -> Entry | None:
        """Return the entry of a node, which may have expired since the last `expire`."""
        return self._entries.get(node_id)

    def query(
        self,
        capability_filter: CapabilityFilter,
        *,
        now: float,
        scope: ScopeFilter | None = None,
        same_subnet: Callable[[int], bool] = lambda _node_id: False,
    ) -> list[int]:
        """Return the ids of the nodes that match, ascending.

        Without a scope every node is looked at; `same_subnet` says of a node id whether it shares our subnet.
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

    def remove(self, node_id: int) -> bool:
        """Forget a node; False when there was nothing to forget."""
        entry = self._entries.pop(node_id, None)
        if entry is None:
            return False
        self.version += 1
        for claim in entry.capabilities.claims:
            nodes = self._by_claim[claim]
            nodes.discard(node_id)
            if not nodes:
                del self._by_claim[claim]
        return True

    def expire(self, now: float) -> list[int]:
        """Forget the nodes whose time is over, and give their ids."""
        gone = []
        while self._expiries and self._expiries[0][0] < now:
            expires_at, node_id = heappop(self._expiries)
            entry = self._entries.get(node_id)
            if entry is not None and entry.expires_at == expires_at:
                self.remove(node_id)
                gone.append(node_id)
        return gone

    def _candidates(self, capability_filter: CapabilityFilter) -> Iterable[int]:
        claims = capability_filter.required_claims
        if not claims:
            return self._entries
        return min((self._by_claim.get(claim, set()) for claim in claims), key=len)

    def _remember_expiry(self, node_id: int, expires_at: float) -> None:
        heappush(self._expiries, (expires_at, node_id))
        # A node that announces often leaves stale pairs behind: keep them fewer than the live ones.
        if len(self._expiries) > 2 * len(self._entries) + 64:
            self._expiries = [(entry.expires_at, node) for node, entry in self._entries.items()]
            heapify(self._expiries)


def _names(what: str, names: tuple[str, ...]) -> frozenset[str]:
    if not names or "" in names:
        raise ConfigError(what, "at least one name is needed, and none may be empty")
    return frozenset(names)


def _scoped(capabilities: CapabilitySet, prefix: str) -> set[str]:
    """Return the names under a scope prefix; an empty one names nobody."""
    return {text.removeprefix(prefix) for text in capabilities.tags if text.startswith(prefix)} - {""}
