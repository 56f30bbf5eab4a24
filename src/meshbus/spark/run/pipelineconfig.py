"""What a pipeline is told: where nodes log to, where its tables go, what payloads mean.

Plain values; the command line reads them from a TOML file and from options (cli/pipeline.py), programs make them
directly. Policies are files too: `load_policy` reads the parts of a node's configuration that its gateway judges by.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec

from meshbus.errors import ConfigError, MeshError
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.spark.lake.codec import Declaration
from meshbus.spark.lake.subscribers import PrefixSubscription


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one pipeline."""

    tables: str = "tables"
    """The folder of the tables."""
    logs: tuple[str, ...] = ()
    """Folders that nodes log to (`log_dir`): their logs, and what they recorded about packets."""
    channels: tuple[Declaration, ...] = ()
    """What payloads mean, channel by channel."""
    subscriptions: tuple[PrefixSubscription, ...] = ()
    """Interests, for gold.fan_out."""
    read_channels: str = "*"
    """Patterns of the channels to read."""
    max_rows_per_batch: int = 1_000_000
    fail_on_gap: bool = False
    """Whether rows that expired before they were read stop the pipeline; otherwise gold.gaps has those of logs."""
    trigger_s: float = 1.0
    """How often a continuous run looks for new rows."""
    refresh_s: float = 2.0
    """How often a continuous run makes gold anew, where something changed."""
    stall_s: float = 300.0
    """A query that neither waits for rows nor ends a batch for so long is started again."""
    restarts: int = 5
    """How often a query is started again without progress in between."""
    compact_batches: int = 32
    """So many batches of a table become one part."""
    keep_days: float | None = None
    """Hours older than this are removed from all tables; None keeps everything."""

    def __post_init__(self) -> None:
        if self.max_rows_per_batch < 1 or self.compact_batches < 2 or self.restarts < 0:
            raise ConfigError("pipeline", "max_rows_per_batch, compact_batches and restarts must be positive")


def load_config(path: Path) -> PipelineConfig:
    """Read a pipeline's TOML file; folders in it are relative to it. Raises ConfigError."""
    content = _read_toml(path)
    try:
        config = msgspec.convert(content, PipelineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError("pipeline", str(error), source=str(path)) from None
    base = path.parent
    return msgspec.structs.replace(
        config,
        tables=str(base / config.tables),
        logs=tuple(str(base / log) for log in config.logs),
    )


class _Export(msgspec.Struct, frozen=True):
    channel: str
    subnets: tuple[str, ...]


class _Channel(msgspec.Struct, frozen=True):
    name: str | None = None
    visibility: Visibility = Visibility.GLOBAL
    publish_caps: dict[str, Any] | None = None
    require_token: bool = False
    publishers: tuple[str, ...] | None = None
    """Only for replays: origin hashes of those who may publish; a node knows them by their tokens."""


class _Node(msgspec.Struct, frozen=True):
    """The part of a node's configuration that is about forwarding; everything else is passed over."""

    subnet: str = "global"
    peer_subnets: tuple[str, ...] = ()
    unknown_channels: Literal["drop", "forward"] = "drop"
    enforce_publishers: bool = True
    exports: tuple[_Export, ...] = ()
    channels: tuple[_Channel, ...] = ()


def load_policy(path: Path) -> GatewayPolicy:
    """Read a policy: a node's configuration in TOML, or a recorded policy in JSON. Raises ConfigError."""
    content = _read(path) if path.suffix == ".json" else _read_toml(path)
    try:
        policy = (
            msgspec.json.decode(content, type=GatewayPolicy)
            if isinstance(content, bytes)
            else _policy_of(msgspec.convert(content, _Node))
        )
        names = Counter(ChannelName(channel.name) for channel in policy.channels)
    except (msgspec.MsgspecError, MeshError, ValueError) as error:
        raise ConfigError("policy", str(error), source=str(path)) from None
    for name, rules in names.items():
        if rules > 1:
            raise ConfigError("channels", f"{name} has {rules} rules: keep one of them", source=str(path))
    return policy


def _policy_of(node: _Node) -> GatewayPolicy:
    return GatewayPolicy(
        local_subnet=SubnetId.parse(node.subnet),
        peer_subnets=tuple(map(SubnetId.parse, node.peer_subnets)),
        forward_unknown=node.unknown_channels == "forward",
        channels=tuple(_rule(channel, node) for channel in node.channels if channel.name is not None),
    )


def _rule(channel: _Channel, node: _Node) -> ChannelPolicy:
    named = channel.publish_caps is not None or channel.require_token or channel.publishers is not None
    exports = {entry.channel: entry.subnets for entry in node.exports}
    return ChannelPolicy(
        name=channel.name or "",
        visibility=channel.visibility,
        exports=tuple(map(SubnetId.parse, exports.get(channel.name or "", ()))),
        enforced=named and node.enforce_publishers,
        publishers=None if channel.publishers is None else tuple(int(origin, 16) for origin in channel.publishers),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("file", f"is no TOML: {error}", source=str(path)) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("file", f"cannot be read: {error.strerror}", source=str(path)) from None
