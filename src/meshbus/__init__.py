"""An event mesh for fleets, in Python, whose log is a Spark table.

Every public name can be imported from here. Names are loaded on first use, so that `import meshbus` is fast and imports
neither numpy nor pyarrow.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know this name; importing `typing` would be most of the cost of `import meshbus`
if TYPE_CHECKING:
    from meshbus.compute.daemon import Daemon, DaemonEvent, StatefulDaemon
    from meshbus.compute.groups import GroupKind, GroupSpec
    from meshbus.compute.heldchain import LostBranch
    from meshbus.config.daemon import DaemonEntry
    from meshbus.config.edge import EdgeEntry
    from meshbus.config.node import NodeConfig
    from meshbus.config.policy import PolicyConfig
    from meshbus.config.subscription import SubscriptionEntry
    from meshbus.edge.bridge import Bridge
    from meshbus.edge.hub import PubSubHub
    from meshbus.edge.refusals import Refusal
    from meshbus.engine.base.batch import Event, EventBatch
    from meshbus.engine.base.notices import NodeRenamed, PeerFailed, PeerGone, PeerRecovered, RevocationTaken, SessionUp
    from meshbus.engine.channels.publish import OnFailure, PublishConfig, PublishReport, Reliability, WhenSendFull
    from meshbus.engine.channels.roster import SubscriberRoster
    from meshbus.errors import (
        AuthError,
        Backpressure,
        BadTag,
        ChannelError,
        ConfigError,
        DaemonError,
        DeliveryError,
        HandshakeError,
        JoinError,
        LocalProtocolError,
        LogError,
        MalformedPacket,
        MeshError,
        MigrationError,
        PartialDelivery,
        PeerError,
        PipelineError,
        ProtocolError,
        RegistryError,
        RemoteProtocolError,
        Replayed,
        ReplicationError,
        SlowConsumer,
        Timeout,
        UnknownVersion,
    )
    from meshbus.log.aio import AsyncRedexFile
    from meshbus.log.durability import NEVER, Fsync, LogConfig, Retention, Tiering, every_n, interval
    from meshbus.log.event import LogEvent
    from meshbus.log.log import Redex, RedexFile
    from meshbus.log.packets.reader import PacketReader, list_recorders
    from meshbus.log.reader import LogReader, list_channels, read_split
    from meshbus.names.channel import ChannelId, ChannelName, ChannelRegistry
    from meshbus.names.identity import Identity
    from meshbus.names.subnet import SubnetId
    from meshbus.node.channels.publisher import ChannelPublisher
    from meshbus.node.channels.sendqueue import Unsent
    from meshbus.node.channels.subscription import Subscription, WhenFull
    from meshbus.node.daemons.coordinating import ChainStatus, Coordinating
    from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonInput, DaemonLine, DaemonMove, DaemonState
    from meshbus.node.daemons.daemons import Daemons
    from meshbus.node.invites.invites import NewInvite
    from meshbus.node.invites.inviting import InviteInfo
    from meshbus.node.invites.newcomer import join
    from meshbus.node.invites.settling import Joined
    from meshbus.node.node import Node
    from meshbus.node.peers.noticelog import (
        JoinRefused,
        JoinWaiting,
        NodeJoined,
        PolicyChanged,
        PolicyRefused,
        RotationRefused,
        SecretRotated,
    )
    from meshbus.node.peers.redial import DialState, PeerUnreachable
    from meshbus.node.replicas.replicastatus import ReplicaMemberStatus, ReplicaStatus
    from meshbus.policy.assign import LevelPolicy, LevelRule, SubnetPolicy, SubnetRule
    from meshbus.policy.capability import CapabilityFilter, CapabilitySet
    from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
    from meshbus.policy.discovery import CapabilityIndex, ScopeFilter
    from meshbus.policy.gateway import GatewayStats, SubnetGateway
    from meshbus.policy.guard import AuthGuard, AuthVerdict
    from meshbus.policy.invites import InviteSpec
    from meshbus.policy.limits import TokenBucket
    from meshbus.policy.prefixes import SubscriptionIndex
    from meshbus.policy.reason import DropReason
    from meshbus.policy.registry import NegotiatedSet, SubprotocolRegistry, negotiate
    from meshbus.policy.tokens import TokenCache
    from meshbus.policy.verdict import FORWARD, Drop, ForwardDecision
    from meshbus.policy.views import Gpu, GpuVendor, Hardware, Modality, Model, Tool
    from meshbus.wire.certificate import Certificate
    from meshbus.wire.messages.membership import AckReason
    from meshbus.wire.messages.revocation import Revocation, Revoked
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
        "meshbus.compute.daemon": "Daemon DaemonEvent StatefulDaemon",
        "meshbus.compute.groups": "GroupKind GroupSpec",
        "meshbus.compute.heldchain": "LostBranch",
        "meshbus.config.daemon": "DaemonEntry",
        "meshbus.config.edge": "EdgeEntry",
        "meshbus.config.node": "NodeConfig",
        "meshbus.config.policy": "PolicyConfig",
        "meshbus.config.subscription": "SubscriptionEntry",
        "meshbus.edge.bridge": "Bridge",
        "meshbus.edge.hub": "PubSubHub",
        "meshbus.edge.refusals": "Refusal",
        "meshbus.engine.base.batch": "Event EventBatch",
        "meshbus.engine.base.notices": "NodeRenamed PeerFailed PeerGone PeerRecovered RevocationTaken SessionUp",
        "meshbus.engine.channels.publish": "OnFailure PublishConfig PublishReport Reliability WhenSendFull",
        "meshbus.engine.channels.roster": "SubscriberRoster",
        "meshbus.errors": (
            "AuthError Backpressure BadTag ChannelError ConfigError DaemonError DeliveryError HandshakeError JoinError "
            "LocalProtocolError LogError MalformedPacket MeshError MigrationError PartialDelivery PeerError PipelineError ProtocolError "
            "RegistryError RemoteProtocolError Replayed ReplicationError SlowConsumer Timeout UnknownVersion"
        ),
        "meshbus.log.aio": "AsyncRedexFile",
        "meshbus.log.durability": "Fsync LogConfig NEVER Retention Tiering every_n interval",
        "meshbus.log.event": "LogEvent",
        "meshbus.log.log": "Redex RedexFile",
        "meshbus.log.packets.reader": "PacketReader list_recorders",
        "meshbus.log.reader": "LogReader list_channels read_split",
        "meshbus.names.channel": "ChannelId ChannelName ChannelRegistry",
        "meshbus.names.identity": "Identity",
        "meshbus.names.subnet": "SubnetId",
        "meshbus.node.daemons.coordinating": "ChainStatus Coordinating",
        "meshbus.node.daemons.daemoninfo": "DaemonInfo DaemonInput DaemonLine DaemonMove DaemonState",
        "meshbus.node.daemons.daemons": "Daemons",
        "meshbus.node.node": "Node",
        "meshbus.node.channels.publisher": "ChannelPublisher",
        "meshbus.node.invites.invites": "NewInvite",
        "meshbus.node.invites.inviting": "InviteInfo",
        "meshbus.node.invites.newcomer": "join",
        "meshbus.node.invites.settling": "Joined",
        "meshbus.node.peers.noticelog": "JoinRefused JoinWaiting NodeJoined PolicyChanged PolicyRefused RotationRefused"
        " SecretRotated",
        "meshbus.node.peers.redial": "DialState PeerUnreachable",
        "meshbus.node.replicas.replicastatus": "ReplicaMemberStatus ReplicaStatus",
        "meshbus.node.channels.subscription": "Subscription WhenFull",
        "meshbus.node.channels.sendqueue": "Unsent",
        "meshbus.policy.assign": "LevelPolicy LevelRule SubnetPolicy SubnetRule",
        "meshbus.policy.capability": "CapabilityFilter CapabilitySet",
        "meshbus.policy.channels": "ChannelConfig ChannelConfigRegistry Visibility",
        "meshbus.policy.discovery": "CapabilityIndex ScopeFilter",
        "meshbus.policy.gateway": "GatewayStats SubnetGateway",
        "meshbus.policy.guard": "AuthGuard AuthVerdict",
        "meshbus.policy.invites": "InviteSpec",
        "meshbus.policy.limits": "TokenBucket",
        "meshbus.policy.prefixes": "SubscriptionIndex",
        "meshbus.policy.reason": "DropReason",
        "meshbus.policy.registry": "NegotiatedSet SubprotocolRegistry negotiate",
        "meshbus.policy.tokens": "TokenCache",
        "meshbus.policy.verdict": "Drop FORWARD ForwardDecision",
        "meshbus.policy.views": "Gpu GpuVendor Hardware Modality Model Tool",
        "meshbus.wire.certificate": "Certificate",
        "meshbus.wire.messages.membership": "AckReason",
        "meshbus.wire.messages.revocation": "Revocation Revoked",
        "meshbus.wire.messages.token": "PermissionToken Scope",
        "meshbus.wire.subprotocol": "ManifestEntry SubprotocolDescriptor SubprotocolManifest SubprotocolVersion",
    }.items()
    for name in names.split()
}
"""The module that defines each public name."""

__all__ = [
    "AckReason",
    "AsyncRedexFile",
    "AuthError",
    "AuthGuard",
    "AuthVerdict",
    "Backpressure",
    "BadTag",
    "Bridge",
    "CapabilityFilter",
    "CapabilityIndex",
    "CapabilitySet",
    "Certificate",
    "ChainStatus",
    "ChannelConfig",
    "ChannelConfigRegistry",
    "ChannelError",
    "ChannelId",
    "ChannelName",
    "ChannelPublisher",
    "ChannelRegistry",
    "ConfigError",
    "Coordinating",
    "Daemon",
    "DaemonEntry",
    "DaemonError",
    "DaemonEvent",
    "DaemonInfo",
    "DaemonInput",
    "DaemonLine",
    "DaemonMove",
    "DaemonState",
    "Daemons",
    "DeliveryError",
    "DialState",
    "Drop",
    "DropReason",
    "EdgeEntry",
    "Event",
    "EventBatch",
    "FORWARD",
    "ForwardDecision",
    "Fsync",
    "GatewayStats",
    "Gpu",
    "GpuVendor",
    "GroupKind",
    "GroupSpec",
    "HandshakeError",
    "Hardware",
    "Identity",
    "InviteInfo",
    "InviteSpec",
    "JoinError",
    "JoinRefused",
    "JoinWaiting",
    "Joined",
    "LevelPolicy",
    "LevelRule",
    "LocalProtocolError",
    "LogConfig",
    "LogError",
    "LogEvent",
    "LogReader",
    "LostBranch",
    "MalformedPacket",
    "ManifestEntry",
    "MeshError",
    "MigrationError",
    "Modality",
    "Model",
    "NEVER",
    "NegotiatedSet",
    "NewInvite",
    "Node",
    "NodeConfig",
    "NodeJoined",
    "NodeRenamed",
    "OnFailure",
    "PacketReader",
    "PartialDelivery",
    "PeerError",
    "PeerFailed",
    "PeerGone",
    "PeerRecovered",
    "PeerUnreachable",
    "PermissionToken",
    "PipelineError",
    "PolicyChanged",
    "PolicyConfig",
    "PolicyRefused",
    "ProtocolError",
    "PubSubHub",
    "PublishConfig",
    "PublishReport",
    "Redex",
    "RedexFile",
    "Refusal",
    "RegistryError",
    "Reliability",
    "RemoteProtocolError",
    "Replayed",
    "ReplicaMemberStatus",
    "ReplicaStatus",
    "ReplicationError",
    "Retention",
    "Revocation",
    "RevocationTaken",
    "Revoked",
    "RotationRefused",
    "Scope",
    "ScopeFilter",
    "SecretRotated",
    "SessionUp",
    "SlowConsumer",
    "StatefulDaemon",
    "SubnetGateway",
    "SubnetId",
    "SubnetPolicy",
    "SubnetRule",
    "SubprotocolDescriptor",
    "SubprotocolManifest",
    "SubprotocolRegistry",
    "SubprotocolVersion",
    "SubscriberRoster",
    "Subscription",
    "SubscriptionEntry",
    "SubscriptionIndex",
    "Tiering",
    "Timeout",
    "TokenBucket",
    "TokenCache",
    "Tool",
    "UnknownVersion",
    "Unsent",
    "Visibility",
    "WhenFull",
    "WhenSendFull",
    "every_n",
    "interval",
    "join",
    "list_channels",
    "list_recorders",
    "negotiate",
    "read_split",
]


if not TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'meshbus' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
