"""Rate limits for handshake messages: each costs curve operations before anything is known about its sender.

A source address can be forged, so only the limit on all strangers together is a real bound; the limit per host keeps one
noisy machine from using it up, whatever its ports. A direct message costs one try for each expected node (it does not say
which node sent it), so direct and routed messages have separate limits: neither kind can exhaust the other's.

Messages from an address where a peer has proved itself, or that this node is trying to reach, do not count as those of
strangers: each such address has a small limit of its own, so that a flood does not keep peers from coming back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, host_of, place_of
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.limits import TokenBucket

MAX_HOSTS = 4096
"""Hosts with a rate of their own. Our choice; beyond it the one that was quiet longest is forgotten."""
HOST_RATE, HOST_BURST = 100.0, 200.0
"""Messages per second from one host: a fifth of the total. Many nodes may share a host, or an address behind a NAT."""
MAX_KNOWN = 4096
"""Addresses that are remembered because a peer proved itself there. Our choice: those of a large fleet."""
KNOWN_RATE, KNOWN_BURST = 2.0, 8.0
"""Messages per second from one such address: several handshakes, each with three tries, and few enough that all of them
together cost little."""
TOTAL_RATE, TOTAL_BURST = 500.0, 1000.0
"""Tries per second, for direct and for routed messages each. Our choice: it costs about a tenth of a core."""

Key = TypeVar("Key", bound=Hashable)


BOUNDS = (
    Bound(
        name="handshake_hosts",
        what="hosts with a handshake rate",
        by=By.OUTSIDER,
        per_node=MAX_HOSTS,
        full="the one that was quiet longest goes",
        counter=forgotten("handshake_hosts"),
    ),
    Bound(
        name="known_addresses",
        what="addresses at which a peer proved itself",
        by=By.MEMBER,
        per_node=MAX_KNOWN,
        full="the one that was remembered longest ago goes",
        counter=forgotten("known_addresses"),
    ),
)


class Rates(Generic[Key]):
    """A rate limit per key; if there are too many keys, the one that was not used longest is forgotten."""

    __slots__ = ("_buckets", "_burst", "_rate")

    def __init__(self, rate: float, burst: float, bound: int, forget: Callable[[], None] | None = None) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: BoundedMap[Key, TokenBucket] = BoundedMap(bound, forget)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Key, now: float) -> bool:
        """Return whether one more is allowed for this key now, and count it."""
        # Putting it again makes it the newest, so that a busy key is never the one to be forgotten.
        bucket = self._buckets.get(key) or TokenBucket(self._rate, self._burst)
        self._buckets.put(key, bucket)
        return bucket.take(1, now)

    def spent(self, key: Key, now: float) -> bool:
        """Return whether nothing is allowed for this key now; it does not count as a use."""
        bucket = self._buckets.get(key)
        return bucket is not None and bucket.spent(now)


class Standing(Enum):
    """What a message may cost, by its source."""

    KNOWN = auto()
    """Within the limit of an address where a peer has proved itself."""
    STRANGER = auto()
    """Within the limit of its host; it counts for the total as well."""
    REFUSED = auto()


class HandshakeBudget:
    """How much work on handshakes is still allowed."""

    __slots__ = ("_direct", "_hosts", "_known", "_routed")

    def __init__(self, counters: Counters) -> None:
        # Two totals: a flood of one kind must not keep the other kind from being read.
        self._hosts: Rates[Address] = Rates(HOST_RATE, HOST_BURST, MAX_HOSTS, counters.forgetting("handshake_hosts"))
        self._known: BoundedMap[Address, TokenBucket] = BoundedMap(MAX_KNOWN, counters.forgetting("known_addresses"))
        self._direct = TokenBucket(TOTAL_RATE, TOTAL_BURST)
        self._routed = TokenBucket(TOTAL_RATE, TOTAL_BURST)

    def remember(self, address: Address) -> None:
        """Reserve a limit for an address; the one that was remembered longest ago loses it if there are too many."""
        place = place_of(address)
        self._known.put(place, self._known.get(place) or TokenBucket(KNOWN_RATE, KNOWN_BURST))

    def admit(self, source: Address, now: float) -> Standing:
        """Return how a message from this source may be read."""
        own = self._known.get(place_of(source))
        if own is not None and own.take(1, now):
            return Standing.KNOWN
        return Standing.STRANGER if self._hosts.take(host_of(source), now) else Standing.REFUSED

    def spent_routed(self, source: Address, now: float) -> bool:
        """Return whether a routed message from this source can only be refused: it is a stranger's, and none is left."""
        spent = self._routed.spent(now) or self._hosts.spent(host_of(source), now)
        return spent and place_of(source) not in self._known

    def afford_direct(self, standing: Standing, now: float) -> bool:
        """Return whether a direct message may be tried for one expected node."""
        return standing is Standing.KNOWN or self._direct.take(1, now)

    def afford_routed(self, standing: Standing, now: float) -> bool:
        """Return whether a routed message may be tried."""
        return standing is Standing.KNOWN or self._routed.take(1, now)
