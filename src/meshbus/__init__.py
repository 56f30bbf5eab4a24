"""meshbus: an event mesh for fleets, in Python, whose log is a Spark table.

Everything a user types is importable from here. Names are loaded on first use, so that `import meshbus` costs next to
nothing and pulls in neither numpy nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from meshbus.errors import (
        AuthError,
        Backpressure,
        BadTag,
        ChannelError,
        ConfigError,
        DeliveryError,
        HandshakeError,
        LocalProtocolError,
        LogError,
        MalformedPacket,
        MeshError,
        PartialDelivery,
        PeerError,
        ProtocolError,
        RegistryError,
        RemoteProtocolError,
        Replayed,
        SlowConsumer,
        Timeout,
        UnknownVersion,
    )
    from meshbus.names.channel import ChannelId, ChannelName, ChannelRegistry
    from meshbus.names.identity import Identity
    from meshbus.names.subnet import SubnetId
    from meshbus.policy.assign import LevelPolicy, LevelRule, SubnetPolicy, SubnetRule
    from meshbus.policy.capability import CapabilityFilter, CapabilitySet
    from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
    from meshbus.policy.discovery import CapabilityIndex
    from meshbus.policy.gateway import GatewayStats, SubnetGateway
    from meshbus.policy.guard import AuthGuard, AuthVerdict
    from meshbus.policy.limits import TokenBucket
    from meshbus.policy.prefixes import SubscriptionIndex
    from meshbus.policy.registry import NegotiatedSet, SubprotocolRegistry, negotiate
    from meshbus.policy.tokens import TokenCache
    from meshbus.policy.verdict import FORWARD, Drop, DropReason, ForwardDecision
    from meshbus.wire.messages.membership import AckReason
    from meshbus.wire.messages.token import PermissionToken, Scope
    from meshbus.wire.subprotocol import (
        ManifestEntry,
        SubprotocolDescriptor,
        SubprotocolManifest,
        SubprotocolVersion,
    )

_HOMES = {
    name: home
    for home, names in {
        "meshbus.errors": (
            "AuthError Backpressure BadTag ChannelError ConfigError DeliveryError HandshakeError LocalProtocolError "
            "LogError MalformedPacket MeshError PartialDelivery PeerError ProtocolError RegistryError RemoteProtocolError "
            "Replayed SlowConsumer Timeout UnknownVersion"
        ),
        "meshbus.names.channel": "ChannelId ChannelName ChannelRegistry",
        "meshbus.names.identity": "Identity",
        "meshbus.names.subnet": "SubnetId",
        "meshbus.policy.assign": "LevelPolicy LevelRule SubnetPolicy SubnetRule",
        "meshbus.policy.capability": "CapabilityFilter CapabilitySet",
        "meshbus.policy.channels": "ChannelConfig ChannelConfigRegistry Visibility",
        "meshbus.policy.discovery": "CapabilityIndex",
        "meshbus.policy.gateway": "GatewayStats SubnetGateway",
        "meshbus.policy.guard": "AuthGuard AuthVerdict",
        "meshbus.policy.limits": "TokenBucket",
        "meshbus.policy.prefixes": "SubscriptionIndex",
        "meshbus.policy.registry": "NegotiatedSet SubprotocolRegistry negotiate",
        "meshbus.policy.tokens": "TokenCache",
        "meshbus.policy.verdict": "FORWARD Drop DropReason ForwardDecision",
        "meshbus.wire.messages.membership": "AckReason",
        "meshbus.wire.messages.token": "PermissionToken Scope",
        "meshbus.wire.subprotocol": "ManifestEntry SubprotocolDescriptor SubprotocolManifest SubprotocolVersion",
    }.items()
    for name in names.split()
}
"""Where each public name lives."""

__all__ = [
    "AckReason",
    "AuthError",
    "AuthGuard",
    "AuthVerdict",
    "Backpressure",
    "BadTag",
    "CapabilityFilter",
    "CapabilityIndex",
    "CapabilitySet",
    "ChannelConfig",
    "ChannelConfigRegistry",
    "ChannelError",
    "ChannelId",
    "ChannelName",
    "ChannelRegistry",
    "ConfigError",
    "DeliveryError",
    "Drop",
    "DropReason",
    "FORWARD",
    "ForwardDecision",
    "GatewayStats",
    "HandshakeError",
    "Identity",
    "LevelPolicy",
    "LevelRule",
    "LocalProtocolError",
    "LogError",
    "MalformedPacket",
    "ManifestEntry",
    "MeshError",
    "NegotiatedSet",
    "PartialDelivery",
    "PeerError",
    "PermissionToken",
    "ProtocolError",
    "RegistryError",
    "RemoteProtocolError",
    "Replayed",
    "Scope",
    "SlowConsumer",
    "SubnetGateway",
    "SubnetId",
    "SubnetPolicy",
    "SubnetRule",
    "SubprotocolDescriptor",
    "SubprotocolManifest",
    "SubprotocolRegistry",
    "SubprotocolVersion",
    "SubscriptionIndex",
    "Timeout",
    "TokenBucket",
    "TokenCache",
    "UnknownVersion",
    "Visibility",
    "negotiate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'meshbus' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
