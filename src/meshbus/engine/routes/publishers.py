"""Publishers that a gateway lets through: who may publish on which channel, and until when.

A packet that a gateway forwards shows the hash of its origin and of its channel. Whether that pair is allowed is decided
here, from the origin's signed announcement and the tokens that this node holds, and kept in an auth guard that the
gateway asks (policy/gateway.py):

    channel with a rule by name       checked when the origin announces itself
    channel with a rule by prefix     checked when a packet of the pair is judged: there may be many such channels

A permission ends with the token or the announcement that it rests on, at that time and without a packet. All of them are
checked again when tokens change, and every 30 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, nextafter

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.session.service import Context
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.names.identity import derive_origin_hash
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.guard import AuthGuard
from meshbus.wire.messages.token import Scope

MAX_ORIGINS = 65_536
"""Nodes whose entity is known: as many as the index of announcements holds."""
MAX_PERMITS = 65_536
"""Permissions kept; the one that ends first makes room, and is checked again with the next packet. Our choice."""
RECHECK_S = 30.0
"""Interval between checks of all publishers, whose tokens and announcements expire: that of policy.md §4.6."""
LATEST_S = 0.001
"""Shortest time to the end of a permission, so that rounding between two clocks cannot repeat a check without end."""

_NANOSECONDS = 1_000_000_000


BOUNDS = (
    Bound(
        name="origins",
        what="publishers that announced themselves",
        by=By.PEER,
        per_node=MAX_ORIGINS,
        full="the oldest goes",
        counter=forgotten("origins"),
    ),
    Bound(
        name="permits",
        what="permissions of publishers at a gateway",
        by=By.PEER,
        per_node=MAX_PERMITS,
        full="the one that ends first goes",
        counter=forgotten("permits"),
    ),
)


class Publishers:
    """The allowed publishers of the channels that restrict them."""

    def __init__(self, context: Context) -> None:
        self.guard = AuthGuard()
        """Pairs of origin hash and canonical channel hash."""
        self.version = 0
        """Incremented when a pair that was refused may be allowed, although the guard did not change."""
        self.origins: BoundedMap[int, tuple[int, bytes]] = BoundedMap(
            MAX_ORIGINS, context.counters.forgetting("origins")
        )
        """Node id and entity by origin hash, of nodes with a signed announcement."""
        self._counters = context.counters
        self._index = context.index
        self._tokens = context.tokens
        self._wall = context.wall
        self._registry = ChannelConfigRegistry()
        self._by_name: dict[ChannelName, None] = {}
        """Channels with a rule by name that restricts publishers."""
        self._restricted: Mapping[int, ChannelName] = {}
        """The same by stream id, and those of which a rule by prefix is known to apply."""
        self._ends: Deadlines[tuple[int, int]] = Deadlines()
        """When the permission of a pair ends; every pair of the guard has one."""
        self._now = 0.0
        self._recheck_at: float | None = None

    def reset(self, registry: ChannelConfigRegistry) -> None:
        """Use new channel configurations, and forget all permissions; `restrict` and `recheck` follow."""
        self.guard, self._ends, self._registry = AuthGuard(), Deadlines(), registry

    def restrict(self, restricted: Mapping[int, ChannelName]) -> None:
        """Set the channels that restrict publishers, by stream id; again after names were learned."""
        self._restricted = restricted
        by_name = {config.name for config in self._registry}
        self._by_name = dict.fromkeys(name for name in restricted.values() if name in by_name)

    def heard(self, node_id: int, entity_id: bytes, now: float) -> int:
        """Record the entity of a signed announcement and check what it may publish on; return its origin hash."""
        origin = derive_origin_hash(entity_id)
        self.origins.put(origin, (node_id, entity_id))
        self._now = now
        for name in self._by_name:
            self._settle(origin, name)
        return origin

    def rename(self, old: int, new: int, entity_id: bytes) -> None:
        """Take the origin of a key that was succeeded for one of its heir."""
        for origin, (node_id, _) in list(self.origins.items()):
            if node_id == old:
                self.origins.put(origin, (new, entity_id))

    def recheck(self, now: float) -> None:
        """Check again what each publisher may publish on."""
        self._now = now
        for pair in list(self._ends):
            self._settle_pair(*pair)
        for origin in list(self.origins):
            for name in self._by_name:
                self._settle(origin, name)
        self._recheck_at = now + RECHECK_S if self._restricted else None
        # Pairs under a rule by prefix that were refused are not kept: their next packets are checked again.
        if len(self._by_name) < len(self._restricted):
            self.version += 1

    def next_timer(self) -> float | None:
        """Return when the next permission ends or all are checked again, or None."""
        times = (self._recheck_at, self._ends.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> None:
        """Check the permissions that end now, and all of them if that is due."""
        self._now = now
        for pair in self._ends.over(now):
            self._settle_pair(*pair)
        if self._recheck_at is not None and now >= self._recheck_at:
            self.recheck(now)

    def admit(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Check pairs of origin hash and stream id that are about to be judged now, if rules by prefix apply to them."""
        for origin, stream in set(pairs):
            name = self._restricted.get(stream)
            if name is not None and name not in self._by_name:
                self._settle(origin, name)

    def may_publish(self, origin: int, channel: int) -> bool:
        """Return whether a pair passes the full check: a valid announcement, capabilities and token."""
        name = self._restricted.get(channel | PUBLISH_STREAM_BIT)
        return name is not None and self._settle(origin, name)

    def permitted_until(self, origin: int, stream: int) -> float:
        """Return the last time at which a verdict about a pair is still valid if no version changes."""
        name = self._restricted.get(stream)
        end = None if name is None else self._ends.get((origin, name.hash))
        return inf if end is None else nextafter(end, -inf)

    def _settle_pair(self, origin: int, channel: int) -> None:
        if not self.may_publish(origin, channel):
            self._revoke(origin, channel)

    def _settle(self, origin: int, name: ChannelName) -> bool:
        """Authorize a pair, or revoke it, and return whether it is authorized."""
        end, channel = self._end_of(origin, name), name.hash
        if end is None:
            self._revoke(origin, channel)
            return False
        if (origin, channel) not in self._ends and len(self._ends) >= MAX_PERMITS:
            for pair in self._ends.over(self._ends.next() or 0.0):
                self._revoke(*pair)
                self._counters.add("forget", "permits")
        self._ends.set((origin, channel), end)
        self.guard.authorize(origin, channel)
        return True

    def _revoke(self, origin: int, channel: int) -> None:
        self._ends.drop((origin, channel))
        # Only what was authorized: each revocation changes the version and drops all kept decisions.
        if self.guard.is_authorized(origin, channel):
            self.guard.revoke(origin, channel)

    def _end_of(self, origin: int, name: ChannelName) -> float | None:
        """Return until when an origin may publish on a channel, or None if it may not."""
        config, known = self._registry.rule_of(name), self.origins.get(origin)
        entry = None if known is None else self._index.get(known[0])
        if config is None or known is None or entry is None or entry.expired(self._now):
            return None
        # Tokens are valid by wall clock, in whole seconds (policy.md §7.2).
        wall_ns = self._wall(self._now)
        unix = wall_ns // _NANOSECONDS
        if not config.can_publish(name, entry.capabilities, known[1], self._tokens, unix):
            return None
        end = nextafter(entry.expires_at, inf)
        if config.require_token:
            token_end = self._tokens.permitted_until(known[1], Scope.PUBLISH, name, unix)
            end = min(end, self._now + token_end - wall_ns / _NANOSECONDS)
        return max(end, self._now + LATEST_S)
