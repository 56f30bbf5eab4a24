"""Channel configurations: who may publish and subscribe, and how far the packets of a channel go (policy.md §2).

A configuration applies to one channel, or to every name with a prefix; nothing is inherited along the `/` of names.
Permission is always judged for the *requested* name, even if a prefix supplied the configuration. (0.23 nodes judge by
the name of the prefix entry in one of two places, see policy.md §2.1.)

Capabilities are matched in policy/capability.py, and tokens are judged in policy/tokens.py. `visible` is the test of an
ordinary node towards one peer; visibility at the boundary of a subnet is policy/gateway.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.wire.constants import DEFAULT_LARGE_EVENT, MAX_EVENT, MAX_LARGE_EVENT
from meshbus.wire.messages.token import Scope

_MAX_U32 = 0xFFFFFFFF


class Visibility(StrEnum):
    """How far the packets of a channel go in the hierarchy of subnets (policy.md §2.3)."""

    SUBNET_LOCAL = "subnet-local"
    """Only within one subnet."""
    PARENT_VISIBLE = "parent-visible"
    """Within the subnet and to its ancestors."""
    EXPORTED = "exported"
    """To the subnets in the export table of a gateway."""
    GLOBAL = "global"
    """To all subnets."""


class LargeEvents(StrEnum):
    """What a best-effort channel does with an event that does not fit a packet."""

    RELIABLE = "reliable"
    """Carry it as on a reliable channel; small events may overtake it."""
    REFUSE = "refuse"


class TokenCheck(Protocol):
    """An object that knows which subjects hold which tokens, such as a TokenCache."""

    def check(self, subject: bytes, action: int, channel: str | int, now: float) -> bool:
        """Return whether a token permits the subject an action on a channel now (unix seconds)."""


class ChannelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one channel."""

    name: ChannelName
    """The name of the channel; in a prefix entry of the registry it is only a label."""
    visibility: Visibility = Visibility.GLOBAL
    publish_caps: CapabilityFilter | None = None
    subscribe_caps: CapabilityFilter | None = None
    require_token: bool = False
    """Whether a token is required in addition to the capabilities."""
    priority: int = 0
    """Priority of the packets, 0 to 255."""
    reliable: bool = False
    """Default of publishers that do not set their reliability."""
    max_rate_pps: int | None = None
    """Packets per second that one node may send on the channel."""
    max_event_bytes: int = DEFAULT_LARGE_EVENT
    """The largest event that a node publishes and takes on the channel; one that does not fit a packet is sent in parts."""
    large: LargeEvents = LargeEvents.RELIABLE
    """How large events are sent if the channel is not reliable."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", ChannelName(self.name))
        try:
            msgspec.structs.force_setattr(self, "large", LargeEvents(self.large))
        except ValueError:
            problem = f"unknown value {self.large!r}; choose from {', '.join(LargeEvents)}"
            raise ConfigError("large", problem) from None
        if not MAX_EVENT <= self.max_event_bytes <= MAX_LARGE_EVENT:
            problem = f"must be in [{MAX_EVENT}, {MAX_LARGE_EVENT}] bytes, got {self.max_event_bytes}"
            raise ConfigError("max_event_bytes", problem)
        try:
            msgspec.structs.force_setattr(self, "visibility", Visibility(self.visibility))
        except ValueError:
            problem = f"unknown value {self.visibility!r}; choose from {', '.join(Visibility)}"
            raise ConfigError("visibility", problem) from None
        if not 0 <= self.priority <= 255:
            raise ConfigError("priority", f"must be in [0, 255], got {self.priority}")
        if self.max_rate_pps is not None and not 1 <= self.max_rate_pps <= _MAX_U32:
            raise ConfigError("max_rate_pps", f"must be in [1, {_MAX_U32}], got {self.max_rate_pps}")

    @property
    def restricts_publishers(self) -> bool:
        """Whether a publisher needs capabilities or a token."""
        return self.publish_caps is not None or self.require_token

    @property
    def restricts_subscribers(self) -> bool:
        """Whether a subscriber needs capabilities or a token."""
        return self.subscribe_caps is not None or self.require_token

    @property
    def is_open(self) -> bool:
        """Whether every node may publish and subscribe."""
        return not self.restricts_publishers and not self.restricts_subscribers

    def can_publish(
        self, channel: str, capabilities: CapabilitySet, entity: bytes | None, tokens: TokenCheck | None, now: float
    ) -> bool:
        """Return whether an entity may publish on `channel`, the requested name.

        `entity` is None if it is unknown, `tokens` is None if there are none, and `now` is in unix seconds.
        """
        return self._permits(self.publish_caps, Scope.PUBLISH, channel, capabilities, entity, tokens, now)

    def can_subscribe(
        self, channel: str, capabilities: CapabilitySet, entity: bytes | None, tokens: TokenCheck | None, now: float
    ) -> bool:
        """Return whether an entity may subscribe to `channel`, the requested name; arguments as in `can_publish`."""
        return self._permits(self.subscribe_caps, Scope.SUBSCRIBE, channel, capabilities, entity, tokens, now)

    def _permits(
        self,
        required: CapabilityFilter | None,
        action: Scope,
        channel: str,
        capabilities: CapabilitySet,
        entity: bytes | None,
        tokens: TokenCheck | None,
        now: float,
    ) -> bool:
        # policy.md §2.1: both conditions must hold, the filter first.
        if required is not None and not required.matches(capabilities):
            return False
        if not self.require_token:
            return True
        if entity is None or tokens is None:
            return False
        # policy.md §2.1: by the requested name, so that one token is valid at every check.
        return tokens.check(entity, action, ChannelName(channel), now)


class ChannelConfigRegistry:
    """The channel configurations of a node, looked up by name, prefix or hash."""

    def __init__(self) -> None:
        self.version = 0
        """Incremented by every change, so that derived data can be kept until then."""
        self._exact: dict[str, ChannelConfig] = {}
        self._prefixes: dict[str, ChannelConfig] = {}
        self._prefix_lengths: list[int] = []
        """The lengths that occur among the prefixes, longest first."""
        self._default: ChannelConfig | None = None
        # Sets: a name that is configured twice must not make its own hash ambiguous (policy.md §2.2).
        self._by_hash: dict[int, set[ChannelName]] = {}
        self._by_wire_hash: dict[int, set[ChannelName]] = {}

    def __len__(self) -> int:
        return len(self._exact)

    def __iter__(self) -> Iterator[ChannelConfig]:
        """Iterate over the configurations of single channels, without those of prefixes."""
        return iter(self._exact.values())

    @property
    def prefixes(self) -> Mapping[str, ChannelConfig]:
        """The configurations by prefix; a view, do not change it."""
        return self._prefixes

    @property
    def default(self) -> ChannelConfig | None:
        """The configuration of names that have no other one at this node; a gateway does not judge packets by it."""
        return self._default

    @default.setter
    def default(self, config: ChannelConfig | None) -> None:
        self._default = config
        self.version += 1

    def insert(self, config: ChannelConfig) -> ChannelConfig | None:
        """Set the configuration of one channel, and return the one that it had, or None."""
        name = config.name
        # The name stays in the hash indexes, which are sets, so that replacing a configuration does not add it twice.
        previous = self._exact.get(name)
        self._exact[name] = config
        self._by_hash.setdefault(name.hash, set()).add(name)
        self._by_wire_hash.setdefault(name.wire_hash, set()).add(name)
        self.version += 1
        return previous

    def insert_prefix(self, prefix: str, config: ChannelConfig) -> ChannelConfig | None:
        """Set the configuration of all names with a prefix, such as `sensors/`, and return the one that it had, or None.

        Valid names must be able to start with the prefix, else ChannelError is raised; the empty prefix is for all names.
        """
        ChannelName(prefix + "x")  # raises if no valid name can start with the prefix
        previous = self._prefixes.get(prefix)
        self._prefixes[prefix] = config
        self._count_prefixes()
        return previous

    def get_by_name(self, name: str) -> ChannelConfig | None:
        """Return the configuration of a name: its own, that of the longest prefix, or the default (policy.md §2.2)."""
        found = self.rule_of(name)
        return self._default if found is None else found

    def rule_of(self, name: str) -> ChannelConfig | None:
        """Return the configuration of a name: its own, or that of the longest prefix, or None."""
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        # policy.md §2.2: the longest prefix wins, by characters; `/` has no meaning here.
        for length in self._prefix_lengths:
            config = self._prefixes.get(name[:length]) if length <= len(name) else None
            if config is not None:
                return config
        return None

    def get(self, canonical_hash: int) -> ChannelConfig | None:
        """Return the configuration of the only channel with this canonical hash; None if there is none or several."""
        return self._only(self._by_hash.get(canonical_hash))

    def get_by_wire_hash(self, wire_hash: int) -> ChannelConfig | None:
        """Return the configuration of the only channel with this wire hash; None if there is none or several."""
        return self._only(self._by_wire_hash.get(wire_hash))

    def priority(self, canonical_hash: int) -> int:
        """Return the priority of a channel, or 0 if it is unknown."""
        config = self.get(canonical_hash)
        return 0 if config is None else config.priority

    def remove(self, canonical_hash: int) -> ChannelConfig | None:
        """Remove and return the configuration of the only channel with this hash; None if there is none or several."""
        config = self.get(canonical_hash)
        return None if config is None else self.remove_by_name(config.name)

    def remove_by_name(self, name: str) -> ChannelConfig | None:
        """Remove and return the configuration of one channel, or return None."""
        config = self._exact.pop(name, None)
        if config is not None:
            _discard(self._by_hash, config.name.hash, config.name)
            _discard(self._by_wire_hash, config.name.wire_hash, config.name)
            self.version += 1
        return config

    def remove_prefix(self, prefix: str) -> ChannelConfig | None:
        """Remove and return the configuration of a prefix, or return None."""
        config = self._prefixes.pop(prefix, None)
        if config is not None:
            self._count_prefixes()
        return config

    def _only(self, names: set[ChannelName] | None) -> ChannelConfig | None:
        # policy.md §2.2: a hash of several names identifies none of them.
        if names is None or len(names) != 1:
            return None
        (name,) = names
        return self._exact[name]

    def _count_prefixes(self) -> None:
        self._prefix_lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)
        self.version += 1


def visible(visibility: Visibility, source: int, dest: int) -> bool:
    """Return whether a channel of a publisher in subnet `source` is visible to a peer in `dest`.

    GLOBAL is the ancestor of every subnet, so a peer that is in GLOBAL passes PARENT_VISIBLE (policy.md §2.3).
    """
    match visibility:
        case Visibility.GLOBAL:
            return True
        case Visibility.SUBNET_LOCAL:
            return source == dest
        case Visibility.PARENT_VISIBLE:
            return SubnetId(dest).contains(source)
        case Visibility.EXPORTED:
            return False  # only a gateway has an export table


def _discard(index: dict[int, set[ChannelName]], key: int, name: ChannelName) -> None:
    index[key].discard(name)
    if not index[key]:
        del index[key]
