"""Everything that can be set about a node: file, then environment, then arguments, one spelling for all three.

A file is TOML with the field names of `NodeConfig` as flat keys, `[metadata]` as a table, and `[[channels]]`,
`[[peers]]`, `[[edge]]`, `[[subnet_rules]]`, `[[level_rules]]`, `[[exports]]` as lists of tables. The environment spells `heartbeat_s` as
`MESHBUS_HEARTBEAT_S`, and an argument is `heartbeat_s=`. Relative paths in a file are relative to the file. A key that
is unknown, or a value that does not fit, is refused with its place. How that is done is in config/loader.py, how
addresses, keys and the like are spelled in config/spelling.py, what files with secrets look like in keyfile.py.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from meshbus.config.edge import EdgeEntry
from meshbus.config.loader import Setting, build, read_arguments, read_environment, read_file
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
    Seconds,
    Secret,
    Socket,
    Window,
)
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import GatewayConfig
from meshbus.errors import ChannelError, ConfigError
from meshbus.keyfile import load_or_create, load_psk, load_tokens
from meshbus.log.durability import Fsync, LogConfig, Retention
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment, LevelPolicy, LevelRule, SubnetPolicy, SubnetRule
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.wire.messages.address import numeric
from meshbus.wire.messages.token import PermissionToken

PREFIX = "MESHBUS_"
CONFIG_VARIABLE = "MESHBUS_CONFIG"
"""Names the file when no path is given."""
OTHER_VARIABLES = (CONFIG_VARIABLE, "MESHBUS_JIT", "MESHBUS_TRACEBACK")
"""Variables of the environment with our prefix that are no settings of a node."""


class Unknown(StrEnum):
    """What to do with packets of subprotocols that nobody here handles and that are addressed to us."""

    DROP = "drop"
    """Count them."""
    DELIVER = "deliver"
    """Give them to the application, marked with their id."""


class UnknownChannels(StrEnum):
    """What a gateway does with publications on channels that it has no configuration for."""

    DROP = "drop"
    FORWARD = "forward"


class ExportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where a channel of exported visibility may go."""

    channel: ChannelName
    subnets: tuple[SubnetId, ...]
    """These, and what lies below them."""


class Logged(StrEnum):
    """Which events of a channel a node writes to its logs."""

    PUBLISHED = "published"
    """Those it publishes: others can read them again."""
    RECEIVED = "received"
    """Those it gets from others."""
    BOTH = "both"


class ChannelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One channel, or every name with a prefix: the fields of ChannelConfig, and how it is logged."""

    name: ChannelName | None = None
    prefix: str | None = None
    """In place of a name; the empty prefix is for all names."""
    visibility: Visibility = Visibility.GLOBAL
    publish_caps: CapabilityFilter | None = None
    subscribe_caps: CapabilityFilter | None = None
    require_token: bool = False
    priority: int = 0
    reliable: bool = False
    max_rate_pps: int | None = None
    log: Logged | None = None
    """What is logged; nothing by default."""
    log_fsync: Fsync = LogConfig().fsync
    """When a log waits for the disk: `never`, `every 100` events, or in an `interval` of seconds."""
    log_retain_s: LogSize | None = None
    """How long events are kept; without any of the three limits for ever."""
    log_retain_bytes: LogSize | None = None
    log_retain_events: LogSize | None = None
    log_seal_bytes: Bytes = LogConfig().seal_bytes
    """How much is collected before it becomes a Parquet file."""
    log_seal_age_s: Seconds = LogConfig().seal_age_s
    """How long at most."""

    def __post_init__(self) -> None:
        if (self.name is None) == (self.prefix is None):
            raise ConfigError("channel", "give either 'name' or 'prefix', to say which channels this is about")
        try:
            self.config()
        except ChannelError:
            raise ConfigError("prefix", f"no channel name can start with {self.prefix!r}") from None
        if self.log is None and self.log_config() != LogConfig():
            raise ConfigError("log", f"is missing: say which events the log is for, {', '.join(Logged)}")

    def config(self) -> ChannelConfig:
        """Give the policy; that of a prefix has the prefix as its label."""
        fields = set(ChannelConfig.__struct_fields__) & set(self.__struct_fields__)
        rest = {field: getattr(self, field) for field in fields}
        return ChannelConfig(channel=self.name or ChannelName(f"{self.prefix}x"), **rest)

    def log_config(self) -> LogConfig:
        """Give how its logs are kept."""
        retention = Retention(self.log_retain_s, self.log_retain_bytes, self.log_retain_events)
        return LogConfig(self.log_fsync, retention, self.log_seal_bytes, self.log_seal_age_s)


class PeerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A peer to connect to."""

    address: Endpoint
    public_key: Key
    """Of a meshbus node the one key that `meshbus key show` prints there; of a plain node its Noise key."""
    node_id: NodeId | None = None
    """Of a plain node, where it does not follow from the key."""
    profile: Profile = Profile.AUTO


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one node. `load` makes and checks it."""

    bind: Endpoint = Endpoint("127.0.0.1", 0)
    """Where to listen; port 0 is any free one."""
    public_address: Endpoint | None = None
    """Where other networks reach this node, when that is known, as with a forwarded port: digits, no name."""
    identity: Path | None = None
    """The identity file, made on first use; without it, the one under the user's configuration folder."""
    ephemeral: bool = False
    """Use a fresh identity that is written nowhere, in place of a file."""
    psk: Secret | None = None
    """The mesh key itself, 64 hex digits."""
    psk_file: Path | None = None
    """The mesh key as a file."""
    subnet: SubnetId = SubnetId.GLOBAL
    """Where this node is."""
    tags: tuple[str, ...] = ()
    """What it can do."""
    metadata: Mapping[str, str] = {}
    heartbeat_s: Seconds = 5.0
    session_timeout_s: Seconds = 30.0
    """How long a silent peer keeps its session."""
    handshake_timeout_s: Seconds = 5.0
    """Of each attempt."""
    handshake_attempts: Count = 3
    membership_ack_timeout_s: Seconds = 5.0
    """How long a publisher may take to answer a subscription."""
    max_channels_per_peer: Count = 1024
    token_sweep_s: Seconds = 30.0
    """How often expired permissions are looked for."""
    trusted_issuers: tuple[Key, ...] = ()
    """Entity ids whose tokens count here, beside the node's own."""
    compat_any_issuer: bool = False
    """Accept tokens of anyone, as net-mesh 0.23 does. Unsafe."""
    require_signed_announcements: bool = True
    pingwave_radius: Hops = 4
    """How many hops away other nodes hear of this one; net-mesh 0.23 has four."""
    compat_open_relay: bool = False
    """Forward for everyone and not for peers alone, as net-mesh 0.23 does. Unsafe."""
    gateway: bool = False
    """Judge what is forwarded between subnets by the policy of its channel."""
    peer_subnets: tuple[SubnetId, ...] = ()
    """The subnets beyond the boundary, for a gateway; packets from and to others are dropped."""
    unknown_channels: UnknownChannels = UnknownChannels.DROP
    """What a gateway does with publications on channels that are not configured here."""
    enforce_publishers: bool = True
    """Have a gateway drop what was not published by those whom its channel allows."""
    unknown_subprotocols: Unknown = Unknown.DROP
    max_packet: MaxPacket = None
    """Bytes to fill a packet up to; `auto`, which is None here, follows the path."""
    receive_buffer_bytes: Bytes = 4 << 20
    """What to ask the system for; it may give less."""
    window_bytes: Window = 512 << 10
    """Byte credit of a stream from another meshbus node, as far as the receive buffer holds four times as much; on
    loopback, unless another value is given, a quarter of that buffer."""
    profile: bool = True
    """Offer other meshbus nodes what the 0.23 wire does not have."""
    log_dir: Path | None = None
    """Where the logs of channels are kept, published and received ones apart."""
    record_packets: bool = False
    """Keep a record of every packet that is forwarded, delivered or dropped here, below log_dir."""
    record_sampling: Count = 1
    """Record one in so many packets; every node of a mesh chooses the same ones."""
    record_retain_bytes: DiskBytes = 1 << 30
    record_retain_hours: Count = 168
    """Whichever of the two asks for more to go wins."""
    admin_socket: Socket = "auto"
    """Where `meshbus up` listens for local commands: a path, `auto`, or nothing."""
    default_subnet: SubnetId = SubnetId.GLOBAL
    """Where peers are that no subnet rule matches."""
    channels: tuple[ChannelEntry, ...] = ()
    peers: tuple[PeerEntry, ...] = ()
    edge: tuple[EdgeEntry, ...] = ()
    """Where ZeroMQ applications attach; `meshbus up` serves them, a program does it with meshbus.edge.Bridge."""
    exports: tuple[ExportEntry, ...] = ()
    """For a gateway: where channels of exported visibility may go."""
    subnet_rules: tuple[SubnetRule, ...] = ()
    """Puts peers into subnets by their tags; the first match decides."""
    level_rules: tuple[LevelRule, ...] = ()
    """The same as net-mesh does it, level by level; instead of subnet_rules."""
    tokens: tuple[Path, ...] = ()
    """Token files to present where a channel asks for one."""

    @classmethod
    def load(
        cls, path: Path | str | None = None, env: Mapping[str, str] | None = None, **arguments: object
    ) -> NodeConfig:
        """Read a file, the environment (the process's own unless given) and arguments, each over the one before.

        Without a path the file is the one that MESHBUS_CONFIG names, or none. An argument of None is not given. Raises
        ConfigError for the first setting that is unknown or does not fit, naming it and its source.
        """
        return build(cls, gather(path, env, **arguments), READERS)

    def __post_init__(self) -> None:
        if self.public_address is not None and not (numeric(self.public_address) and self.public_address.port):
            raise ConfigError(
                "public_address", f"{self.public_address} is not an address that others could use: digits and a port"
            )
        if self.psk is not None and self.psk_file is not None:
            raise ConfigError("psk_file", "psk is given too: keep one of the two")
        if self.session_timeout_s <= self.heartbeat_s:
            raise ConfigError(
                "session_timeout_s",
                f"{self.session_timeout_s:g} must be more than heartbeat_s, which is {self.heartbeat_s:g}",
            )
        if self.record_packets and self.log_dir is None:
            raise ConfigError("log_dir", "is missing: packets are to be recorded, say in which folder")
        if self.subnet_rules and self.level_rules:
            raise ConfigError("level_rules", "subnet_rules are given too: keep one of the two")
        if self.level_rules and not self.default_subnet.is_global:
            raise ConfigError("default_subnet", "belongs to subnet_rules: level_rules have no default")
        if not self.gateway and (self.peer_subnets or self.exports):
            key = "peer_subnets" if self.peer_subnets else "exports"
            raise ConfigError(key, "belongs to a gateway: set gateway = true too")
        if self.log_dir is None and any(entry.log for entry in self.channels):
            raise ConfigError("log_dir", "is missing: channels are to be logged, say in which folder")
        self.capabilities()
        self.channel_registry()

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.__rich_repr__())
        return f"NodeConfig({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(key, "(hidden)" if key == "psk" else value) for key, value in self.changed().items()]

    def changed(self) -> dict[str, Any]:
        """Give the settings that differ from their defaults."""
        default = NodeConfig()
        return {key: value for key in self.__struct_fields__ if (value := getattr(self, key)) != getattr(default, key)}

    def capabilities(self) -> CapabilitySet:
        """Give what the node says about itself: its tags and metadata."""
        capabilities = CapabilitySet(metadata=self.metadata)
        for tag in self.tags:
            try:
                capabilities = capabilities.add_tag(tag)
            except ConfigError as error:
                raise ConfigError("tags", error.problem) from None
        return capabilities

    def channel_registry(self) -> ChannelConfigRegistry:
        """Give the policies of the channels."""
        registry = ChannelConfigRegistry()
        for entry in self.channels:
            if entry.prefix is None:
                previous = registry.insert(entry.config())
            else:
                previous = registry.insert_prefix(entry.prefix, entry.config())
            if previous is not None:
                raise ConfigError(
                    "channels", f"{str(entry.name or entry.prefix)!r} is configured twice: keep one of the two"
                )
        return registry

    def log_entry(self, channel: str) -> ChannelEntry | None:
        """Find how a channel is logged: its own entry, or else that of the longest prefix; None when it is not."""
        fitting = [
            entry
            for entry in self.channels
            if entry.name == channel or (entry.prefix is not None and channel.startswith(entry.prefix))
        ]
        best = max(fitting, key=lambda entry: (entry.name is not None, len(entry.prefix or "")), default=None)
        return best if best is not None and best.log is not None else None

    def without_logs(self) -> NodeConfig:
        """Give the same settings for a node that logs and records nothing: a log has one writer, and another may run."""
        kept = [field for field in ChannelEntry.__struct_fields__ if not field.startswith("log")]
        entries = (ChannelEntry(**{field: getattr(entry, field) for field in kept}) for entry in self.channels)
        return msgspec.structs.replace(self, log_dir=None, record_packets=False, channels=tuple(entries))

    def subnet_policy(self) -> Assignment | None:
        """Give what puts peers into subnets, or None when nothing is configured."""
        if self.level_rules:
            return LevelPolicy(rules=self.level_rules)
        if self.subnet_rules or not self.default_subnet.is_global:
            return SubnetPolicy(rules=self.subnet_rules, default_subnet=self.default_subnet)
        return None

    def gateway_config(self) -> GatewayConfig | None:
        """Give what makes this node a gateway, or None when it is none."""
        if not self.gateway:
            return None
        return GatewayConfig(
            peer_subnets=self.peer_subnets,
            exports={entry.channel: entry.subnets for entry in self.exports},
            forward_unknown=self.unknown_channels is UnknownChannels.FORWARD,
            enforce_publishers=self.enforce_publishers,
        )

    def load_identity(self) -> Identity:
        """Read the identity file, making it on first use; a fresh identity when ephemeral."""
        return Identity.generate(os.urandom) if self.ephemeral else load_or_create(self.identity or default_identity())

    def load_psk(self) -> bytes:
        """Give the mesh key; raises ConfigError when there is none."""
        if self.psk is not None:
            return self.psk
        if self.psk_file is None:
            raise ConfigError(
                "psk_file", "the mesh key is missing: make one with `meshbus key psk FILE`, and set psk_file to it"
            )
        return load_psk(self.psk_file)

    def load_tokens(self) -> tuple[tuple[PermissionToken, ...], ...]:
        """Read the token files, a chain each."""
        return tuple(map(load_tokens, self.tokens))

    def admin_path(self) -> Path | None:
        """Give the place of the admin socket, or None when there shall be none."""
        if self.admin_socket == "auto":
            return default_admin_socket()
        return Path(self.admin_socket) if self.admin_socket else None


def gather(
    path: Path | str | None = None, env: Mapping[str, str] | None = None, **arguments: object
) -> dict[str, Setting]:
    """Collect the settings as they are written, the strongest of each with its source."""
    environ = os.environ if env is None else env
    chosen = path or environ.get(CONFIG_VARIABLE)
    settings = {}
    if chosen:
        file = Path(chosen).expanduser()
        settings = read_file(file)
        if "psk" in settings:
            _check_private(file)
    return {**settings, **read_environment(environ, PREFIX, OTHER_VARIABLES), **read_arguments(arguments)}


def default_file() -> Path:
    """Give the place of a user's own configuration file, which the command line reads when it is there."""
    return _user_folder("user_config_path") / "node.toml"


def default_identity() -> Path:
    """Give the place of a user's own identity file."""
    return _user_folder("user_config_path") / "identity.toml"


def default_admin_socket() -> Path:
    """Give the place of the admin socket of a user's own node."""
    return _user_folder("user_runtime_path") / "admin.sock"


def _user_folder(kind: str) -> Path:
    try:
        import platformdirs
    except ImportError:
        raise ConfigError(
            "identity", "no path is given, and finding your folders needs platformdirs: pip install 'meshbus[cli]'"
        ) from None
    folder: Path = getattr(platformdirs, kind)("meshbus", appauthor=False)
    return folder


def _check_private(file: Path) -> None:
    mode = stat.S_IMODE(file.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(
            "psk",
            f"others can read this file (mode {mode:04o}): run `chmod 600 {file}`, or move the key to a psk_file",
            source=str(file),
        )
