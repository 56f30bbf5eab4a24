"""The keyword arguments of `Node.open`: every setting of NodeConfig, as a value or as text.

What a setting means, its default and its limits are in config/node.py. None stands for a setting that is not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from meshbus.config.daemon import DaemonEntry
from meshbus.config.edge import EdgeEntry
from meshbus.config.node import ChannelEntry, PeerEntry, Unknown
from meshbus.config.otel import OtelEntry
from meshbus.config.policy import ExportEntry, UnknownChannels, Unlisted
from meshbus.config.spelling import Endpoint
from meshbus.config.subscription import SubscriptionEntry
from meshbus.config.web import WebEntry
from meshbus.engine.settings import NamedChannels, SecureMode
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import LevelRule, SubnetRule

Table: TypeAlias = Mapping[str, Any]
"""An entry as it would stand in a TOML file."""


class NodeOptions(TypedDict, total=False):
    """The settings of a node, as keyword arguments."""

    name: str | None
    bind: Endpoint | str | None
    public_address: Endpoint | str | None
    identity: Path | str | None
    ephemeral: bool | None
    psk: bytes | str | None
    psk_file: Path | str | None
    subnet: SubnetId | str | None
    tags: Sequence[str] | None
    metadata: Mapping[str, str] | None
    heartbeat_s: float | None
    session_timeout_s: float | None
    handshake_timeout_s: float | None
    handshake_attempts: int | None
    membership_ack_timeout_s: float | None
    max_channels_per_peer: int | None
    token_sweep_s: float | None
    trusted_issuers: Sequence[bytes | str] | None
    renew_tokens_s: int | None
    renew_issuers: Sequence[bytes | str] | None
    compat_any_issuer: bool | None
    require_signed_announcements: bool | None
    announce_channels: NamedChannels | str | None
    compat_unannounced_global: bool | None
    pingwave_radius: int | None
    compat_open_relay: bool | None
    compat_short_sync: bool | None
    policy_file: Path | str | None
    policy_issuers: Sequence[bytes | str] | None
    audit_log: Path | str | None
    issuer_key: Path | str | None
    join_bind: Endpoint | str | None
    certificate: Path | str | None
    gateway: bool | None
    peer_subnets: Sequence[SubnetId | str] | None
    unknown_channels: UnknownChannels | str | None
    enforce_publishers: bool | None
    unknown_subprotocols: Unknown | str | None
    max_packet: int | str | None
    receive_buffer_bytes: int | None
    poll_us: int | None
    window_bytes: int | None
    profile: bool | None
    secure: SecureMode | str | None
    pins: Path | str | None
    revocations: Path | str | None
    log_dir: Path | str | None
    record_packets: bool | None
    record_sampling: int | None
    record_retain_bytes: int | None
    record_retain_hours: int | None
    daemons_dir: Path | str | None
    daemons_path: Sequence[Path | str] | None
    admin_socket: Path | str | None
    web: WebEntry | Table | None
    otel: OtelEntry | Table | None
    default_subnet: SubnetId | str | None
    accept: Sequence[int | str] | None
    unlisted_channels: Unlisted | str | None
    channels: Sequence[ChannelEntry | Table] | None
    peers: Sequence[PeerEntry | Table] | None
    subscriptions: Sequence[SubscriptionEntry | Table] | None
    edge: Sequence[EdgeEntry | Table] | None
    daemons: Sequence[DaemonEntry | Table] | None
    exports: Sequence[ExportEntry | Table] | None
    subnet_rules: Sequence[SubnetRule | Table] | None
    level_rules: Sequence[LevelRule | Table] | None
    tokens: Sequence[Path | str] | None
