"""The policy that travels with a channel: who may publish, who may subscribe, how far its packets go.

A configuration belongs to one channel, or to every name that starts with a prefix; nothing is inherited along the `/`
of names. Permission is always judged for the name that was *asked* for, also when a prefix gave the configuration.
Capabilities are matched in policy/capability.py, tokens are judged in policy/tokens.py, and visibility at the boundary
of a subnet is policy/gateway.py's; `visible` here is the test of an ordinary node towards one peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.wire.messages.token import Scope

_MAX_U32 = 0xFFFFFFFF


class Visibility(StrEnum):
    """How far the packets of a channel go through the hierarchy of subnets."""

    SUBNET_LOCAL = "subnet-local"
    """Within one subnet."""
    PARENT_VISIBLE = "parent-visible"
    """Within the subnet and up to its ancestors."""
    EXPORTED = "exported"
    """To the subnets that a gateway's export table names."""
    GLOBAL = "global"
    """Everywhere."""


class TokenCheck(Protocol):
    """Whatever can say that a subject holds a token: a TokenCache, or a stand-in."""

    def check(self, subject: bytes, action: int, channel_hash: int, now: float) -> bool:
        """Return whether a token lets the subject do this on this channel now (unix seconds)."""


class ChannelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of one channel."""

    channel: ChannelName
    """In a prefix entry of the registry the name is only a label."""
    visibility: Visibility = Visibility.GLOBAL
    publish_caps: CapabilityFilter | None = None
    subscribe_caps: CapabilityFilter | None = None
    require_token: bool = False
    """Ask for a token beside the capabilities."""
    priority: int = 0
    """Of packets, 0 to 255."""
    reliable: bool = False
    """The reliability of publishers that do not say otherwise."""
    max_rate_pps: int | None = None
    """Packets a second that one node may send on the channel."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "channel", ChannelName(self.channel))
        try:
            msgspec.structs.force_setattr(self, "visibility", Visibility(self.visibility))
        except ValueError:
            raise ConfigError("visibility", f"{self.visibility!r} is none of {', '.join(Visibility)}") from None
        if not 0 <= self.priority <= 255:
            raise ConfigError("priority", f"{self.priority} is not from 0 to 255")
        if self.max_rate_pps is not None and not 1 <= self.max_rate_pps <= _MAX_U32:
            raise ConfigError("max_rate_pps", f"{self.max_rate_pps} is not from 1 to {_MAX_U32}")

    @property
    def is_open(self) -> bool:
        """Whether nothing is asked of publishers and subscribers."""
        return self.publish_caps is None and self.subscribe_caps is None and not self.require_token

    def can_publish(
        self, channel: str, capabilities: CapabilitySet, entity: bytes | None, tokens: TokenCheck | None, now: float
    ) -> bool:
        """Return whether an entity may publish on `channel`, the name asked for.

        `entity` is None when it is not known, `tokens` when there are none, and `now` is unix seconds.
        """
        return self._permits(self.publish_caps, Scope.PUBLISH, channel, capabilities, entity, tokens, now)

    def can_subscribe(
        self, channel: str, capabilities: CapabilitySet, entity: bytes | None, tokens: TokenCheck | None, now: float
    ) -> bool:
        """Return whether an entity may subscribe to `channel`, the name asked for; arguments as in `can_publish`."""
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
        if required is not None and not required.matches(capabilities):
            return False
        if not self.require_token:
            return True
        if entity is None or tokens is None:
            return False
        return tokens.check(entity, action, ChannelName(channel).hash, now)


class ChannelConfigRegistry:
    """The configurations of a node, found by name, by prefix or by hash."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change, for those who keep something derived."""
        self._exact: dict[str, ChannelConfig] = {}
        self._prefixes: dict[str, ChannelConfig] = {}
        self._prefix_lengths: list[int] = []
        """Of the prefixes, longest first."""
        self._by_hash: dict[int, set[ChannelName]] = {}
        self._by_wire_hash: dict[int, set[ChannelName]] = {}

    def __len__(self) -> int:
        return len(self._exact)

    def __iter__(self) -> Iterator[ChannelConfig]:
        """Go through the configurations of single channels; prefixes have no hash and are left out."""
        return iter(self._exact.values())

    def insert(self, config: ChannelConfig) -> ChannelConfig | None:
        """Configure one channel, and give back the configuration it had."""
        name = config.channel
        previous = self._exact.get(name)
        self._exact[name] = config
        self._by_hash.setdefault(name.hash, set()).add(name)
        self._by_wire_hash.setdefault(name.wire_hash, set()).add(name)
        self.version += 1
        return previous

    def insert_prefix(self, prefix: str, config: ChannelConfig) -> ChannelConfig | None:
        """Configure every name that starts with a text, such as `sensors/`, and give back what was there.

        The prefix must be one that a legal name can start with; the empty one is for all names.
        """
        ChannelName(prefix + "x")
        previous = self._prefixes.get(prefix)
        self._prefixes[prefix] = config
        self._count_prefixes()
        return previous

    def get_by_name(self, name: str) -> ChannelConfig | None:
        """Find the configuration of a name: its own, or else that of the longest prefix."""
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        for length in self._prefix_lengths:
            config = self._prefixes.get(name[:length]) if length <= len(name) else None
            if config is not None:
                return config
        return None

    def get(self, canonical_hash: int) -> ChannelConfig | None:
        """Find the one channel with this canonical hash; None when there is none or several."""
        return self._only(self._by_hash.get(canonical_hash))

    def get_by_wire_hash(self, wire_hash: int) -> ChannelConfig | None:
        """Find the one channel with this wire hash; None when there is none or several."""
        return self._only(self._by_wire_hash.get(wire_hash))

    def priority(self, canonical_hash: int) -> int:
        """Return the priority of a channel, 0 when it is not known."""
        config = self.get(canonical_hash)
        return 0 if config is None else config.priority

    def remove(self, canonical_hash: int) -> ChannelConfig | None:
        """Remove the one channel with this canonical hash and give it back; None when there is none or several."""
        config = self.get(canonical_hash)
        return None if config is None else self.remove_by_name(config.channel)

    def remove_by_name(self, name: str) -> ChannelConfig | None:
        """Remove the configuration of one channel and give it back."""
        config = self._exact.pop(name, None)
        if config is not None:
            _discard(self._by_hash, config.channel.hash, config.channel)
            _discard(self._by_wire_hash, config.channel.wire_hash, config.channel)
            self.version += 1
        return config

    def remove_prefix(self, prefix: str) -> ChannelConfig | None:
        """Remove the configuration of a prefix and give it back."""
        config = self._prefixes.pop(prefix, None)
        if config is not None:
            self._count_prefixes()
        return config

    def _only(self, names: set[ChannelName] | None) -> ChannelConfig | None:
        if names is None or len(names) != 1:
            return None
        (name,) = names
        return self._exact[name]

    def _count_prefixes(self) -> None:
        self._prefix_lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)
        self.version += 1


def visible(visibility: Visibility, source: int, dest: int) -> bool:
    """Return whether a channel of a publisher in subnet `source` is visible to a peer in `dest`.

    A peer that never announced itself is in GLOBAL, which is the ancestor of every subnet.
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
