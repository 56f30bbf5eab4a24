"""Settings of a node, from a file, the environment and arguments. Later sources override earlier ones.

A file is TOML with the field names of `NodeConfig` as flat keys, `[metadata]`, `[web]` and `[otel]` as tables, and
`[[channels]]`, `[[peers]]`, `[[subscriptions]]`, `[[edge]]`, `[[daemons]]`, `[[subnet_rules]]`, `[[level_rules]]`, `[[exports]]` as lists of
tables.
The environment variable for `heartbeat_s` is `MESHBUS_HEARTBEAT_S`, the argument is `heartbeat_s=`. Relative paths in a
file are relative to the file. Unknown keys and invalid values raise ConfigError, which names the key and its source.
config/loader.py reads the sources, config/spelling.py parses addresses, keys and the like, and keyfile.py reads files
with secrets. docs/settings.md is written from the types and the texts below them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from meshbus.config.daemon import DaemonEntry
from meshbus.config.edge import EdgeEntry
from meshbus.config.loader import Setting, build, read_arguments, read_environment, read_file
from meshbus.config.otel import OtelEntry
from meshbus.config.policy import ChannelRule, ExportEntry, GatewayEntry, PolicyConfig, UnknownChannels, Unlisted
from meshbus.config.spelling import (
    READERS,
    Bytes,
    Count,
    DiskBytes,
    Endpoint,
    Hops,
    Key,
    LogSize,
    MaxPacket,
    NodeId,
    PollTime,
    Seconds,
    Secret,
    Socket,
    Window,
)
from meshbus.config.subscription import SubscriptionEntry
from meshbus.config.web import WebEntry
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.records import Acks
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import NamedChannels, SecureMode
from meshbus.errors import ConfigError, MeshError
from meshbus.keyfile import MeshKey, load_certificate, load_identity, load_mesh_key, load_or_create, load_tokens
from meshbus.log.durability import Fsync, LogConfig, Retention, Tiering
from meshbus.log.payload import Codec
from meshbus.log.schemas import Version
from meshbus.names.identity import Identity, derive_node_id, noise_public_key
from meshbus.names.nodename import NAME_KEY, check_node_name
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import LevelRule, SubnetRule
from meshbus.policy.capability import CapabilitySet
from meshbus.wire.certificate import Certificate
from meshbus.wire.messages.address import numeric
from meshbus.wire.messages.leadership import MAX_MEMBERS
from meshbus.wire.messages.token import PermissionToken

LOG_RETAIN_BYTES = 1 << 30
"""Disk space of a channel's log unless the configuration says otherwise: no node fills its disk by default."""
_DEFAULT_LOG = LogConfig(retention=Retention(max_bytes=LOG_RETAIN_BYTES))
REPLACE_S = 600.0
"""Our choice: longer than a node needs to start again, or an operator to restart a machine."""
PREFIX = "MESHBUS_"
CONFIG_VARIABLE = "MESHBUS_CONFIG"
"""Path of the configuration file, if none is given."""
CONTEXT_VARIABLE = "MESHBUS_CONTEXT"
"""Name of the context that commands use (cli/contexts.py)."""
OTHER_VARIABLES = (CONFIG_VARIABLE, CONTEXT_VARIABLE, "MESHBUS_JIT", "MESHBUS_TRACEBACK")
"""Environment variables with the prefix that are not settings of a node."""
MIN_HEARTBEATS = 3
"""Heartbeats that must be missed before a peer may count as failed. Our choice: single packets are lost on any network."""
POLICY_SETTINGS = (
    "unlisted_channels",
    "trusted_issuers",
    "default_subnet",
    "exports",
    "subnet_rules",
    "level_rules",
    "gateway",
    "peer_subnets",
    "unknown_channels",
    "enforce_publishers",
)
"""Settings that belong to the policy, and are in `policy_file` if there is one; so are the fields of ChannelRule."""


class Unknown(StrEnum):
    """What to do with packets for this node whose subprotocol has no handler."""

    DROP = "drop"
    """Drop and count them."""
    DELIVER = "deliver"
    """Deliver them to the application with their subprotocol id."""


class Logged(StrEnum):
    """Which events of a channel a node writes to its logs."""

    PUBLISHED = "published"
    """Events that it publishes; peers can read them again."""
    RECEIVED = "received"
    """Events that it receives."""
    BOTH = "both"


class ChannelEntry(ChannelRule, frozen=True, kw_only=True):
    """Policy and log settings of one channel, or of every channel with a prefix: the fields of ChannelRule and more."""

    log: Logged | None = None
    """Which events are logged; none by default."""
    log_fsync: Fsync = LogConfig().fsync
    """When the log calls fsync: `never`, `every 100` (events), or `interval 0.5` (seconds)."""
    log_retain_s: LogSize | None = None
    """How long events are kept; as long as the other limits allow by default."""
    log_retain_bytes: LogSize = LOG_RETAIN_BYTES
    """Size of each log of the channel, on the local disk and on object storage; the oldest events go first."""
    log_retain_events: LogSize | None = None
    """How many events are kept."""
    log_seal_bytes: Bytes = LogConfig().seal_bytes
    """How many bytes are collected before they are sealed into a Parquet file."""
    log_seal_age_s: Seconds = LogConfig().seal_age_s
    """Longest time before collected events are sealed."""
    log_tier_uri: str | None = None
    """Object storage that sealed files move to: `s3://bucket/prefix`, with `?endpoint_override=http://host:port` for another
    server than AWS, or `file:///directory`. Credentials come from the environment or a profile, as for AWS tools."""
    log_tier_after_s: LogSize | None = None
    """Age at which a sealed file is copied to object storage."""
    log_tier_local_bytes: LogSize | None = None
    """Local disk space of the log above which the oldest sealed files move to object storage, whatever their age. If it is
    not set, every file that was copied is removed from the local disk."""
    log_codec: Codec | None = None
    """Codec of the payloads, stored beside the log for its readers; nothing is checked or decoded here."""
    log_schema: str = ""
    """Fields of the payloads, such as `temp DOUBLE, unit STRING`, stored with the codec."""
    replicas: int | tuple[str, ...] = ()
    """Members that replicate the log of the channel, the same on all nodes: names or ids of 1 to 16 nodes, or how many are
    chosen among the nodes with this entry and a `log_dir`. All must be up once to found the set. Other nodes publish
    through the members."""
    replica_tags: tuple[str, ...] = ()
    """With `replicas` as a number: tags that a node must announce to be chosen."""
    replica_replace_s: Seconds = REPLACE_S
    """With `replicas` as a number: a member without a session with the leader for so long is replaced by another node."""
    acks: Acks | None = None
    """With `replicas`: when a publish is acknowledged: `majority` (on the disks of a majority, the default) or `local` (on
    the disk of the leader)."""
    replica_heartbeat_s: Seconds = ReplicaSettings(nodes=()).heartbeat_s
    """With `replicas`: interval between heartbeats of the leader; after three without any, another is elected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.payloads(0)
        self._check_replicas()
        if (self.log_config() != _DEFAULT_LOG or self.log_codec is not None) and self.log is None and not self.replicas:
            raise ConfigError("log", f"required because other log settings are set; choose from {', '.join(Logged)}")

    def _check_replicas(self) -> None:
        if not self.replicas:
            if self.acks is not None or self.replica_heartbeat_s != ReplicaSettings(nodes=()).heartbeat_s:
                raise ConfigError("replicas", "required because acks or replica_heartbeat_s is set")
        else:
            self._check_replicated()
        if not isinstance(self.replicas, int) and (self.replica_tags or self.replica_replace_s != REPLACE_S):
            raise ConfigError("replicas", "must be a number because replica_tags or replica_replace_s is set")

    def _check_replicated(self) -> None:
        if self.name is None:
            raise ConfigError("replicas", "only allowed with 'name': a replicated channel is one channel")
        if self.log is not None:
            raise ConfigError(
                "log", "not allowed with replicas, whose members log the channel by themselves; remove it"
            )
        if isinstance(self.replicas, int):
            if not 1 <= self.replicas <= MAX_MEMBERS:
                raise ConfigError("replicas", f"choose 1 to {MAX_MEMBERS}, or name the nodes, got {self.replicas}")
        elif len(set(self.replicas)) < len(self.replicas) or len(self.replicas) > MAX_MEMBERS:
            problem = f"name 1 to {MAX_MEMBERS} different nodes, got {', '.join(self.replicas)}"
            raise ConfigError("replicas", problem)

    def log_config(self) -> LogConfig:
        """Return how the log of the channel is written and kept."""
        retention = Retention(self.log_retain_s, self.log_retain_bytes, self.log_retain_events)
        return LogConfig(self.log_fsync, retention, self.log_seal_bytes, self.log_seal_age_s, tier=self._tiering())

    def _tiering(self) -> Tiering | None:
        """Return when segments move to object storage; raises ConfigError if the settings do not fit together."""
        limits = self.log_tier_after_s, self.log_tier_local_bytes
        if self.log_tier_uri is None:
            if limits != (None, None):
                raise ConfigError("log_tier_uri", "required because other log_tier settings are set")
            return None
        if limits == (None, None):
            raise ConfigError(
                "log_tier_after_s", "required because log_tier_uri is set, unless log_tier_local_bytes is"
            )
        try:
            return Tiering(self.log_tier_uri, *limits)
        except ConfigError as error:
            raise ConfigError("log_tier_uri", error.problem) from None

    def payloads(self, first: int) -> Version | None:
        """Return what payloads are from a sequence on, or None if that is not configured. Raises ConfigError."""
        if self.log_codec is None:
            if self.log_schema:
                raise ConfigError("log_codec", "required because log_schema is set; choose from json, msgpack, arrow")
            return None
        if self.log_codec is Codec.PROTOBUF:
            raise ConfigError(
                "log_codec", "a node cannot store a descriptor set; run 'meshbus log schema' for protobuf"
            )
        return Version(first, self.log_codec, self.log_schema)


class PeerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A peer to keep a session with."""

    address: Endpoint
    """Where it listens: a host name or a numeric address, and the port of its `bind` setting."""
    public_key: Key
    """For a meshbus node: the key that `meshbus key show` prints there. For a plain net-mesh node: its Noise key."""
    node_id: NodeId | None = None
    """Required for a plain net-mesh node, whose id does not follow from the key."""
    routed: bool = True
    """Set it to false for a plain net-mesh node that waits in `accept`, which only answers a direct handshake."""
    profile: Profile = Profile.AUTO
    """Whether to use the meshbus extensions with it: `auto` if it announces them, `meshbus` without waiting for the
    announcement, `plain` never. Two meshbus nodes must both say `plain`, or one of them `secure = "off"`: otherwise one
    waits for the secure session that the other announces."""

    def __post_init__(self) -> None:
        if self.node_id is None:
            try:
                noise_public_key(self.public_key)
            except MeshError:
                raise ConfigError(
                    "public_key",
                    f"{self.public_key.hex()} is not the key of a meshbus node; copy it again, in full, or set node_id too if"
                    " it is the Noise key of a net-mesh 0.23 node",
                ) from None

    def peer_id(self) -> int:
        """Return the node id of the peer."""
        return derive_node_id(self.public_key) if self.node_id is None else self.node_id


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one node; `load` reads and checks them."""

    name: str | None = None
    """What people call this node, such as `west-rover`; announced to the others, who show it beside the node id."""
    bind: Endpoint = Endpoint("127.0.0.1", 0)
    """Address to listen on; port 0 means any free port."""
    public_address: Endpoint | None = None
    """Address at which other networks reach this node, if known, such as a forwarded port; numeric, not a host name."""
    identity: Path | None = None
    """Identity file, created on first use; by default in the user's configuration directory."""
    ephemeral: bool = False
    """Use a new identity at each start and write it nowhere."""
    psk: Secret | None = None
    """Mesh key, 64 hex digits."""
    psk_file: Path | None = None
    """File with the mesh key."""
    subnet: SubnetId = SubnetId.GLOBAL
    """Subnet of this node."""
    tags: tuple[str, ...] = ()
    """Capability tags that this node announces."""
    metadata: Mapping[str, str] = {}
    """Names and values that this node announces, as the table `[metadata]`."""
    heartbeat_s: Seconds = 5.0
    """Interval between heartbeats to each peer."""
    session_timeout_s: Seconds = 30.0
    """A peer that is silent for this long counts as failed. It is removed when 30 times as long has passed without a
    packet; until then its next heartbeat brings it back."""
    handshake_timeout_s: Seconds = 5.0
    """Timeout of each attempt."""
    handshake_attempts: Count = 3
    """How often `connect` tries before it fails."""
    membership_ack_timeout_s: Seconds = 5.0
    """How long to wait for a publisher's answer to a subscription."""
    max_channels_per_peer: Count = 1024
    """Subscriptions that one peer may have at this node."""
    token_sweep_s: Seconds = 30.0
    """How often expired permissions are removed."""
    trusted_issuers: tuple[Key, ...] = ()
    """Entity ids whose tokens this node accepts, besides its own."""
    renew_tokens_s: LogSize | None = None
    """Renew tokens that this node issued, and that allow it (`meshbus token issue --renewable`), when their holders ask: each
    new one is valid as long as the old one was, and at most so many seconds. By default none are renewed."""
    renew_issuers: tuple[Key, ...] = ()
    """With `renew_tokens_s`: entity ids of other issuers whose tokens this node renews with its own key, which replaces theirs."""
    compat_any_issuer: bool = False
    """Accept tokens of any issuer, as net-mesh 0.23 does. Unsafe."""
    require_signed_announcements: bool = True
    """Ignore capability announcements without a valid signature."""
    announce_channels: NamedChannels = NamedChannels.OPEN
    """Channels of this node that are announced by name, so that gateways can apply rules by prefix to them: `none`,
    `open` (those that every node may subscribe to), or `all` (also those that need a token or capabilities)."""
    compat_unannounced_global: bool = False
    """Treat peers that never announced themselves as members of the global subnet, as net-mesh 0.23 does. Unsafe."""
    pingwave_radius: Hops = 4
    """How many hops this node's pingwaves travel; net-mesh 0.23 uses four."""
    compat_open_relay: bool = False
    """Forward packets from any sender, not only from peers, as net-mesh 0.23 does. Unsafe."""
    compat_short_sync: bool = False
    """Accept requests for replicated events in the 47 bytes that the documentation of net-mesh 0.23 shows, without a number
    of the request; its nodes send 56."""
    policy_file: Path | None = None
    """File with the policy of this node or of a whole fleet: channels, subnets, exports, gateways, issuers of tokens. It can
    change while the node runs (`meshbus policy apply`, SIGHUP); these settings must then not be set here."""
    policy_issuers: tuple[Key, ...] = ()
    """Entity ids of those who sign the policy of the fleet. A signed policy that is applied to one node reaches all that have
    the same issuer and `policy_file` set; its version must grow. Unsigned ones are then refused. They also sign
    revocations (`meshbus revoke`)."""
    audit_log: Path | None = None
    """File with the audit log: who changed what about policy, membership and keys, and what was refused. By default beside
    `policy_file` (`policy.toml.history`), or beside the identity file (`identity.audit`) if there is none."""
    issuer_key: Path | None = None
    """Identity file of an issuer of the fleet. A node that has it can invite others (`meshbus invite`) and certifies them: keep
    it on as few nodes as possible. With `policy_issuers`, it must be the key of one of them."""
    join_bind: Endpoint | None = None
    """Address (TCP) at which newcomers join while an invite is open; by default the host and port of `bind`."""
    certificate: Path | None = None
    """Certificate of this node, which `meshbus join` writes: name, tags and subnet, signed by an issuer of the fleet."""
    gateway: bool = False
    """Apply channel policy to packets that are forwarded between subnets."""
    peer_subnets: tuple[SubnetId, ...] = ()
    """For a gateway: the subnets on the other side; packets from and to other subnets are dropped."""
    unknown_channels: UnknownChannels = UnknownChannels.DROP
    """For a gateway: what to do with events on channels that are not configured here."""
    enforce_publishers: bool = True
    """For a gateway: drop events whose publisher is not allowed on the channel."""
    unknown_subprotocols: Unknown = Unknown.DROP
    """What to do with packets whose subprotocol has no handler here."""
    max_packet: MaxPacket = None
    """Largest packet in bytes; `auto` (None here) adapts to the path."""
    receive_buffer_bytes: Bytes = 4 << 20
    """Size of the socket's receive buffer to request; the system may grant less."""
    poll_us: PollTime = 0
    """How long the node looks for the next datagram without sleeping after each one, in microseconds. It shortens the
    latency by the time that waking up takes, and occupies a core while datagrams come more often than this; 0 never."""
    window_bytes: Window = 512 << 10
    """Byte credit of a stream from another meshbus node, at most a quarter of the receive buffer. On loopback the
    default is a quarter of that buffer."""
    profile: bool = True
    """Offer the meshbus extensions of the 0.23 protocol to other meshbus nodes."""
    secure: SecureMode = SecureMode.AUTO
    """Keys that other holders of the mesh key cannot compute, for sessions with meshbus nodes: `auto` (with every node that
    announces it; one that did it once is refused without it), `require` (no data to and from other nodes), or `off`."""
    pins: Path | None = None
    """File with the nodes that were seen secure; by default beside the identity file, and none for an ephemeral node."""
    revocations: Path | None = None
    """File with what issuers of the fleet revoked; by default beside the identity file, and none for an ephemeral node."""
    log_dir: Path | None = None
    """Directory of the channel logs; published and received events are logged separately."""
    record_packets: bool = False
    """Record every packet that is forwarded, delivered or dropped here, below log_dir."""
    record_sampling: Count = 1
    """Record one packet in this many; every node of a mesh chooses the same packets."""
    record_retain_bytes: DiskBytes = 1 << 30
    """How many bytes of packet records are kept."""
    record_retain_hours: Count = 168
    """Records are deleted when they exceed either limit, bytes or hours."""
    daemons_dir: Path | None = None
    """Directory of the checkpoints of daemons; a node that has one can run daemons, and announces so."""
    daemons_path: tuple[Path, ...] = ()
    """Directories in which the modules of `[[daemons]]` are looked for, before those that are installed."""
    admin_socket: Socket = "auto"
    """Unix socket on which `meshbus up` accepts local commands: a path, `auto`, or empty for none."""
    web: WebEntry | None = None
    """A live page, metrics and health over HTTP, as the table `[web]`; `meshbus up` serves them. None by default."""
    otel: OtelEntry | None = None
    """Where metrics are sent by OpenTelemetry, as the table `[otel]`; `meshbus up` sends them. Nowhere by default."""
    default_subnet: SubnetId = SubnetId.GLOBAL
    """Subnet of peers that no subnet rule matches."""
    accept: tuple[NodeId, ...] = ()
    """Ids of plain net-mesh nodes that may connect to this node and then subscribe to its channels; their `connect`
    uses a direct handshake, which is answered only for these nodes."""
    unlisted_channels: Unlisted = Unlisted.AUTO
    """Channels of this node without a `[[channels]]` entry: `open`, `refuse`, or `auto`, which means `open` unless an
    entry requires a token or capabilities or limits the visibility of a channel."""
    channels: tuple[ChannelEntry, ...] = ()
    """Policies and logs of channels, by name or prefix."""
    peers: tuple[PeerEntry, ...] = ()
    """Peers to keep a session with: they are dialed again for as long as it takes."""
    subscriptions: tuple[SubscriptionEntry, ...] = ()
    """What the node subscribes to as long as it runs, such as to record events without a program."""
    edge: tuple[EdgeEntry, ...] = ()
    """Bridges for ZeroMQ applications; `meshbus up` serves them, a program uses meshbus.Bridge."""
    daemons: tuple[DaemonEntry, ...] = ()
    """Daemons that the node runs, or lets move to it."""
    exports: tuple[ExportEntry, ...] = ()
    """For a gateway: the subnets that channels with visibility `exported` may be forwarded to."""
    subnet_rules: tuple[SubnetRule, ...] = ()
    """Rules that assign peers to subnets by their tags; the first match wins."""
    level_rules: tuple[LevelRule, ...] = ()
    """Rules that assign each level of the subnet separately, as net-mesh does; instead of subnet_rules."""
    tokens: tuple[Path, ...] = ()
    """Token files to present where a channel requires a token."""

    @classmethod
    def load(
        cls, path: Path | str | None = None, env: Mapping[str, str] | None = None, **arguments: object
    ) -> NodeConfig:
        """Load settings from a file, the environment (by default the process's own) and arguments, in this order.

        Without a path the file is the one that MESHBUS_CONFIG names, or none. An argument of None counts as not given.
        Raises ConfigError for the first unknown key or invalid value, with the key and its source.
        """
        return build(cls, gather(path, env, **arguments), READERS)

    def __post_init__(self) -> None:
        if self.public_address is not None and not (numeric(self.public_address) and self.public_address.port):
            raise ConfigError(
                "public_address",
                f"must be a numeric address and a port other than 0, such as '203.0.113.7:9000', got '{self.public_address}'",
            )
        if self.name is not None:
            check_node_name(self.name)
        if self.name is not None and NAME_KEY in self.metadata:
            raise ConfigError("name", "metadata also has a key 'name'; remove one of them")
        if self.psk is not None and self.psk_file is not None:
            raise ConfigError("psk_file", "psk and psk_file are both set; remove one of them")
        if self.session_timeout_s < MIN_HEARTBEATS * self.heartbeat_s:
            raise ConfigError(
                "session_timeout_s",
                f"must be at least {MIN_HEARTBEATS} × heartbeat_s, which is {MIN_HEARTBEATS * self.heartbeat_s:g} s, got"
                f" {self.session_timeout_s:g}; otherwise a lost packet or two would fail a peer",
            )
        if self.record_packets and self.log_dir is None:
            raise ConfigError("log_dir", "required because record_packets is set; set log_dir to a directory")
        if not self.gateway and (self.peer_subnets or self.exports):
            key = "peer_subnets" if self.peer_subnets else "exports"
            raise ConfigError(key, "only allowed for a gateway; set gateway = true, or remove it")
        if self.log_dir is None and any(entry.log for entry in self.channels):
            raise ConfigError("log_dir", "required because a channel is logged; set log_dir to a directory")
        if self.log_dir is None and any(entry.log for entry in self.subscriptions):
            problem = "required because a subscription is logged; set log_dir to a directory, or log = false there"
            raise ConfigError("log_dir", problem)
        self._check_daemons()
        ids = [entry.peer_id() for entry in self.peers]
        for number, node_id in enumerate(ids):
            if node_id in ids[:number]:
                raise ConfigError("peers", f"node {node_id:016x} is configured twice; remove one of the entries")
        # These raise ConfigError for invalid entries, with the key.
        self.capabilities()
        self.own_policy().channel_registry()
        if self.policy_file is not None:
            self._check_only_in_file()
        elif self.policy_issuers:
            raise ConfigError(
                "policy_file", "required because policy_issuers is set; set it to the file for the policy"
            )
        if self.secure is SecureMode.REQUIRE and not self.profile:
            raise ConfigError("secure", "'require' needs the meshbus profile; set profile = true, or secure = \"off\"")

    def _check_only_in_file(self) -> None:
        """Refuse what belongs to the policy, if that is in a file of its own."""
        misplaced = [key for key in POLICY_SETTINGS if key in self.changed()]
        for number, entry in enumerate(self.channels):
            plain = ChannelRule(name=entry.name, prefix=entry.prefix)
            set_here = (key for key in ChannelRule.__struct_fields__ if getattr(entry, key) != getattr(plain, key))
            misplaced += [f"channels[{number}].{key}" for key in set_here]
        if misplaced:
            raise ConfigError(misplaced[0], f"not allowed with policy_file; move it to {self.policy_file}")

    def _check_daemons(self) -> None:
        if self.daemons_dir is None and self.daemons:
            raise ConfigError("daemons_dir", "required because daemons are configured; set daemons_dir to a directory")
        names = [entry.name for entry in self.daemons]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError("daemons", f"{twice[0]!r} is configured twice; remove one of the entries")

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.__rich_repr__())
        return f"NodeConfig({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(key, "(hidden)" if key == "psk" else value) for key, value in self.changed().items()]

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        default = NodeConfig()
        return {key: value for key in self.__struct_fields__ if (value := getattr(self, key)) != getattr(default, key)}

    def capabilities(self) -> CapabilitySet:
        """Return the capabilities that the node announces: its tags and metadata."""
        named = {} if self.name is None else {NAME_KEY: self.name}
        capabilities = CapabilitySet(metadata={**self.metadata, **named})
        for tag in self.tags:
            try:
                capabilities = capabilities.add_tag(tag)
            except ConfigError as error:
                raise ConfigError("tags", error.problem) from None
        return capabilities

    def own_policy(self, node_id: int = 0) -> PolicyConfig:
        """Return the policy that these settings contain; if they are those of a gateway, it is the node with this id.

        Raises ConfigError if a setting contradicts another one.
        """
        gateway = GatewayEntry(
            node=f"{node_id:016x}",
            peer_subnets=self.peer_subnets,
            unknown_channels=self.unknown_channels,
            enforce_publishers=self.enforce_publishers,
        )
        return PolicyConfig(
            unlisted_channels=self.unlisted_channels,
            trusted_issuers=self.trusted_issuers,
            default_subnet=self.default_subnet,
            channels=tuple(entry.rule() for entry in self.channels),
            gateways=(gateway,) if self.gateway else (),
            exports=self.exports,
            subnet_rules=self.subnet_rules,
            level_rules=self.level_rules,
        )

    def log_config(self, channel: str, what: Logged) -> LogConfig | None:
        """Return how the published or the received events of a channel are logged; None if they are not.

        What a subscription logs is logged as the channel's entry says, even if that entry logs nothing itself.
        """
        entry = self._entry_of(channel)
        if entry is not None and entry.log in {what, Logged.BOTH}:
            return entry.log_config()
        if what is Logged.RECEIVED and any(one.log and one.covers(channel) for one in self.subscriptions):
            return _DEFAULT_LOG if entry is None else entry.log_config()
        return None

    def replicated_log_config(self, channel: str) -> LogConfig:
        """Return how the log of a replicated channel is kept; when it is synced, its acknowledgements decide."""
        entry = self._entry_of(channel)
        return _DEFAULT_LOG if entry is None else entry.log_config()

    def payloads(self, channel: str, first: int) -> Version | None:
        """Return what payloads of a channel are from a sequence on, or None if that is not configured."""
        entry = self._entry_of(channel)
        return None if entry is None else entry.payloads(first)

    def _entry_of(self, channel: str) -> ChannelEntry | None:
        """Return the entry of a channel: its own, or that of the longest prefix."""
        fitting = [
            entry
            for entry in self.channels
            if entry.name == channel or (entry.prefix is not None and channel.startswith(entry.prefix))
        ]
        # An exact name wins over every prefix, a longer prefix over a shorter one; an entry without `log` wins too,
        # so that a channel can be excluded from a logged prefix.
        return max(fitting, key=lambda entry: (entry.name is not None, len(entry.prefix or "")), default=None)

    def without_logs(self) -> NodeConfig:
        """Return the same settings without logs, packet records, daemons, standing subscriptions, invites and the policy of the fleet.

        A log has one writer. A second node with these settings can run beside the one that writes.
        """
        kept = [field for field in ChannelEntry.__struct_fields__ if not field.startswith("log")]
        entries = (ChannelEntry(**{field: getattr(entry, field) for field in kept}) for entry in self.channels)
        return msgspec.structs.replace(
            self,
            log_dir=None,
            record_packets=False,
            channels=tuple(entries),
            subscriptions=(),
            daemons_dir=None,
            daemons=(),
            web=None,
            otel=None,
            policy_issuers=(),
            issuer_key=None,
        )

    def load_identity(self) -> Identity:
        """Load the identity file, creating it on first use; generate a new identity if `ephemeral` is set."""
        return Identity.generate(os.urandom) if self.ephemeral else load_or_create(self.identity or default_identity())

    def pins_path(self) -> Path | None:
        """Return the file of pins, or None if they are kept in memory only."""
        if self.pins is not None or self.ephemeral:
            return self.pins
        identity = self.identity or default_identity()
        return identity.with_name(f"{identity.stem}.pins.toml")

    def revocations_path(self) -> Path | None:
        """Return the file of revocations, or None if they are kept in memory only."""
        if self.revocations is not None or self.ephemeral:
            return self.revocations
        identity = self.identity or default_identity()
        return identity.with_name(f"{identity.stem}.revocations.toml")

    def audit_path(self) -> Path:
        """Return the file of the audit log. Raises ConfigError if there is no place for one."""
        if self.audit_log is not None:
            return self.audit_log
        if self.policy_file is not None:
            return history_of(self.policy_file)
        if self.ephemeral:
            raise ConfigError("audit_log", "required for an ephemeral node, which keeps no files; set it to a file")
        identity = self.identity or default_identity()
        return identity.with_name(f"{identity.stem}.audit")

    def invites_path(self) -> Path:
        """Return the file of the invites of this node. Raises ConfigError if it cannot keep any."""
        if self.ephemeral:
            raise ConfigError(
                "issuer_key", "not allowed for an ephemeral node: its invites would end with it; set identity"
            )
        identity = self.identity or default_identity()
        return identity.with_name(f"{identity.stem}.invites.toml")

    def load_issuer(self) -> Identity | None:
        """Load the key of the issuer that this node holds, or None. Raises ConfigError if the fleet has other issuers."""
        if self.issuer_key is None:
            return None
        issuer = load_identity(self.issuer_key)
        if self.policy_issuers and issuer.entity_id not in self.policy_issuers:
            raise ConfigError(
                "issuer_key",
                f"must be the key of one of the policy_issuers {', '.join(key.hex() for key in self.policy_issuers)}, got"
                f" {issuer.entity_id.hex()}",
                source=str(self.issuer_key),
            )
        return issuer

    def identity_path(self) -> Path | None:
        """Return the identity file, or None for an ephemeral node."""
        return None if self.ephemeral else self.identity or default_identity()

    def load_certificate(self, subject: bytes, earlier: Collection[bytes] = ()) -> Certificate | None:
        """Load the certificate of the node with this key, or with one that it succeeded; None if there is none.

        Raises ConfigError if it is of another node.
        """
        if self.certificate is None:
            return None
        found = load_certificate(self.certificate)
        if found.subject != subject and found.subject not in earlier:
            raise ConfigError(
                "certificate",
                f"is of the key {found.subject.hex()}, and this node has {subject.hex()}; use the identity that it was made for,"
                " or join again",
                source=str(self.certificate),
            )
        return found

    def load_psk(self) -> bytes:
        """Return the mesh key. Raises ConfigError if none is configured."""
        return self.load_mesh_key().key

    def load_mesh_key(self) -> MeshKey:
        """Return the mesh key, and the one that it replaces. Raises ConfigError if none is configured."""
        if self.psk is not None:
            return MeshKey(self.psk, self.psk)
        if self.psk_file is None:
            raise ConfigError(
                "psk_file", "no mesh key is configured; create one with `meshbus key psk FILE` and set psk_file to it"
            )
        return load_mesh_key(self.psk_file)

    def load_tokens(self) -> tuple[tuple[PermissionToken, ...], ...]:
        """Load the token files; each holds one chain of tokens."""
        return tuple(map(load_tokens, self.tokens))

    def admin_path(self) -> Path | None:
        """Return the path of the admin socket, or None if it is disabled."""
        if self.admin_socket == "auto":
            return default_admin_socket()
        return Path(self.admin_socket) if self.admin_socket else None


def gather(
    path: Path | str | None = None, env: Mapping[str, str] | None = None, **arguments: object
) -> dict[str, Setting]:
    """Collect the settings of all sources, unparsed; a later source overrides an earlier one."""
    environ = os.environ if env is None else env
    chosen = path or environ.get(CONFIG_VARIABLE)
    settings = {}
    if chosen:
        file = Path(chosen).expanduser()
        settings = read_file(file)
        if "psk" in settings:  # other settings are not secret, so a readable file is fine without it
            _check_private(file)
    return {**settings, **read_environment(environ, PREFIX, OTHER_VARIABLES), **read_arguments(arguments)}


def history_of(policy_file: Path) -> Path:
    """Return where the audit log beside a policy file is."""
    return policy_file.with_name(policy_file.name + ".history")


def default_file() -> Path:
    """Return the path of the user's configuration file, which the command line reads if it exists."""
    return _user_folder("user_config_path") / "node.toml"


def default_identity() -> Path:
    """Return the path of the user's identity file."""
    return _user_folder("user_config_path") / "identity.toml"


def default_admin_socket() -> Path:
    """Return the path of the admin socket of the user's node."""
    return _user_folder("user_runtime_path") / "admin.sock"


def _user_folder(kind: str) -> Path:
    import warnings

    import platformdirs

    try:
        # Without XDG_RUNTIME_DIR, platformdirs warns and chooses a folder that is as private; `config show` names it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder: Path = getattr(platformdirs, kind)("meshbus", appauthor=False)
    except OSError as error:  # a folder of that name in the temporary directory belongs to somebody else
        raise ConfigError(
            "admin_socket", f"no private folder for it: {error}; set admin_socket, or the variable XDG_RUNTIME_DIR"
        ) from None
    return folder


def _check_private(file: Path) -> None:
    mode = stat.S_IMODE(file.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(
            "psk",
            f"other users can read this file (mode {mode:04o}); run `chmod 600 {file}`, or move the key to a psk_file",
            source=str(file),
        )
