"""Configuration of a pipeline, and loading of policies for a replay.

`PipelineConfig` is a plain value: the command line reads it from a TOML file and options (cli/pipeline.py), programs
create it directly. `load_policy` reads the part of a node's configuration that its gateway judges by.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from meshbus.errors import NOT_TOML, UNDECODABLE, ConfigError, MeshError
from meshbus.formats import take_file_version
from meshbus.log.objectstore import check_uri
from meshbus.log.packets.policies import decode_policy
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.spark.lake.codec import Declaration
from meshbus.spark.lake.subscribercount import PrefixSubscription


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one pipeline."""

    tables: str = "tables"
    """The directory of the tables."""
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    """Format of the tables; it cannot be changed once they exist."""
    logs: tuple[str, ...] = ()
    """Directories that nodes log to (`log_dir`), with their logs and packet records."""
    channels: tuple[Declaration, ...] = ()
    """Declarations of payloads, by channel or prefix."""
    subscriptions: tuple[PrefixSubscription, ...] = ()
    """Subscriptions that gold.fan_out assumes for events whose publisher's rosters are not recorded."""
    read_channels: str = "*"
    """Comma-separated patterns of the channels to read."""
    max_rows_per_batch: int = 4_000_000
    """Rows that one batch reads at most; a sealed file with more rows is a batch of its own."""
    fail_on_gap: bool = False
    """Whether rows that expired before they were read stop the pipeline; if not, gold.gaps lists those of logs."""
    trigger_s: float = 0.25
    """Interval at which a continuous run looks for new rows."""
    refresh_s: float = 1.0
    """Interval at which a continuous run refreshes gold tables whose sources changed."""
    restarts: int = 5
    """How many times a query or the refresh is tried again without progress before the pipeline fails."""
    compact_batches: int = 32
    """Number of batches of a table that are compacted into one part."""
    keep_days: float | None = None
    """Files and hours whose rows are all older than this are removed from the tables; None keeps everything."""
    mirror: str | None = None
    """Where copies of the tables are kept: `s3://bucket/prefix` or `file:///directory`; for `delta` and `iceberg`."""
    mirror_keep_days: float | None = None
    """What `keep_days` removed from the tables is removed from the copies at this age; None keeps it there forever."""

    def __post_init__(self) -> None:
        for name, least in (("max_rows_per_batch", 1), ("compact_batches", 2), ("restarts", 0)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(name, f"must be at least {least}, got {value}")
        if self.mirror is not None:
            self._check_mirror(self.mirror)
        if self.mirror_keep_days is not None:
            self._check_mirror_keep_days(self.mirror_keep_days)

    def _check_mirror(self, uri: str) -> None:
        try:
            check_uri(uri)
        except ConfigError as error:
            raise ConfigError("mirror", error.problem) from None
        if bad := sorted(set("%#") & set(urlsplit(uri).path)):
            raise ConfigError("mirror", f"must not contain {bad[0]!r} in its path, got {uri!r}")
        if self.format == "parquet":
            raise ConfigError(
                "mirror",
                "requires format 'delta' or 'iceberg', got 'parquet': plain directories have no atomic commit on object"
                " storage",
            )

    def _check_mirror_keep_days(self, days: float) -> None:
        if self.mirror is None or self.keep_days is None:
            raise ConfigError("mirror_keep_days", "requires mirror and keep_days; set both, or remove it")
        if days < self.keep_days:
            raise ConfigError("mirror_keep_days", f"must be at least keep_days ({self.keep_days:g}), got {days:g}")


def load_config(path: Path) -> PipelineConfig:
    """Read a pipeline's TOML file; paths in it are relative to the file. Raises ConfigError."""
    content = _read_toml(path)
    try:
        config = msgspec.convert(content, PipelineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError("pipeline", str(error), source=str(path)) from None
    # Relative to the file, not to the working directory, so that a service can run it from anywhere.
    base = path.parent
    return msgspec.structs.replace(
        config,
        tables=str(base / config.tables),
        logs=tuple(str(base / log) for log in config.logs),
        channels=tuple(declaration.below(base) for declaration in config.channels),
    )


class _Export(msgspec.Struct, frozen=True):
    channel: str
    subnets: tuple[str, ...]


class _Channel(msgspec.Struct, frozen=True):
    name: str | None = None
    prefix: str = ""
    names: tuple[str, ...] = ()
    visibility: Visibility = Visibility.GLOBAL
    publish_caps: dict[str, Any] | None = None
    require_token: bool = False
    publishers: tuple[str, ...] | None = None
    """Only for replays: origin hashes of the authorized publishers, which a node learns from their tokens."""


class _Node(msgspec.Struct, frozen=True):
    """The part of a node's configuration that concerns forwarding; other keys are ignored."""

    subnet: str = "global"
    peer_subnets: tuple[str, ...] = ()
    unknown_channels: Literal["drop", "forward"] = "drop"
    enforce_publishers: bool = True
    exports: tuple[_Export, ...] = ()
    channels: tuple[_Channel, ...] = ()


def load_policy(path: Path) -> GatewayPolicy:
    """Read a policy from a node's TOML configuration or from a recorded policy in JSON. Raises ConfigError."""
    content = _read(path) if path.suffix == ".json" else _read_toml(path)
    try:
        policy = (
            decode_policy(content, path) if isinstance(content, bytes) else _policy_of(msgspec.convert(content, _Node))
        )
        names = Counter(str(ChannelName(channel.name)) for channel in policy.channels)
        names += Counter(f"prefix {rule.name!r}" for rule in policy.prefixes)
    except (*UNDECODABLE, MeshError, ValueError) as error:
        raise ConfigError("policy", str(error), source=str(path)) from None
    # A node refuses such a configuration; a recorded policy is not checked elsewhere.
    for name, rules in names.items():
        if rules > 1:
            raise ConfigError("channels", f"{name} has {rules} rules; keep one of them", source=str(path))
    return policy


def _policy_of(node: _Node) -> GatewayPolicy:
    rules = [(channel, _rule(channel, node)) for channel in node.channels]
    policy = GatewayPolicy(
        local_subnet=SubnetId.parse(node.subnet),
        peer_subnets=tuple(map(SubnetId.parse, node.peer_subnets)),
        forward_unknown=node.unknown_channels == "forward",
        channels=tuple(
            msgspec.structs.replace(rule, name=name)
            for channel, rule in rules
            for name in (channel.names if channel.name is None else (channel.name,))
        ),
        prefixes=tuple(rule for channel, rule in rules if channel.name is None),
    )
    # An export names its channel, so a rule by prefix is applied to it as to one that is listed.
    by_name = {channel.name: channel for channel in policy.channels}
    exports = {entry.channel: tuple(map(SubnetId.parse, entry.subnets)) for entry in node.exports}
    named = {name: rule for name in exports if name not in by_name and (rule := policy.rule_of(name)) is not None}
    channels = (
        msgspec.structs.replace(rule, exports=exports.get(rule.name, ()))
        for rule in (*policy.channels, *named.values())
    )
    return msgspec.structs.replace(policy, channels=tuple(channels))


def _rule(channel: _Channel, node: _Node) -> ChannelPolicy:
    # Any of the three makes a node ask its guard about publishers.
    named = channel.publish_caps is not None or channel.require_token or channel.publishers is not None
    return ChannelPolicy(
        name=channel.prefix if channel.name is None else channel.name,
        visibility=channel.visibility,
        enforced=named and node.enforce_publishers,
        publishers=None if channel.publishers is None else tuple(int(origin, 16) for origin in channel.publishers),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(_read(path).decode())
    except NOT_TOML as error:
        raise ConfigError("file", f"is not valid TOML: {error}", source=str(path)) from None
    take_file_version(table, str(path))
    return table


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("file", f"cannot be read: {error.strerror}", source=str(path)) from None
