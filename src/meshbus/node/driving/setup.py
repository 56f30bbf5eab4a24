"""Derives the engine's settings from a node's configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping

from meshbus.compute.coordination import IDS as COORDINATED
from meshbus.config.node import NodeConfig, Unknown
from meshbus.engine.settings import (
    AnnounceConfig,
    DirectoryConfig,
    EngineSettings,
    HandshakeConfig,
    LivenessConfig,
    NatConfig,
    OpaqueMode,
    PolicySettings,
    PreviousKey,
    SecureConfig,
    SecureMode,
)
from meshbus.errors import LocalProtocolError
from meshbus.keyfile import MeshKey
from meshbus.names.identity import KEY_BYTES
from meshbus.node.driving.udp import BUFFER_BYTES
from meshbus.wire.constants import MAX_DATAGRAM, PACKET_COST, ROUTE_BYTES, STREAM_WINDOW, Subprotocol
from meshbus.wire.messages.address import numeric

NETWORK_PACKET = 1452
"""Bytes that a packet is filled up to unless all peers are on this machine: 1500 for Ethernet less 40 for IPv6 and 8 for
UDP, so that no common path fragments it."""

CARRIED = frozenset({Subprotocol.MIGRATION, *COORDINATED})
"""Subprotocols that a node carries if it can run daemons."""
BUFFERED_WINDOWS = 4
"""Windows that the receive buffer must hold, in bytes of payload: the kernel charges a small datagram several times its
size. The buffer that our system granted is taken as what peers can buffer too, since nodes are usually set up alike."""


def engine_settings(
    config: NodeConfig,
    mesh_key: MeshKey,
    receive_buffer: int = BUFFER_BYTES,
    bound: object = None,
    pins: Mapping[int, bytes] | None = None,
    policy: PolicySettings | None = None,
) -> EngineSettings:
    """Return the engine's settings for a configuration, what the system granted it, and the pins of earlier runs.

    The policy is the one that the node starts with; by default nothing is restricted.
    """
    policy = policy or PolicySettings()
    local = config.bind.host in {"127.0.0.1", "::1", "localhost"}
    packet = config.max_packet or (MAX_DATAGRAM - ROUTE_BYTES if local else NETWORK_PACKET)
    return EngineSettings(
        psk=mesh_key.key,
        previous_psk=previous_key(mesh_key),
        subnet=config.subnet,
        assignment=policy.assignment,
        handshake=HandshakeConfig(tries=config.handshake_attempts, timeout_s=config.handshake_timeout_s),
        liveness=LivenessConfig(
            heartbeat_s=config.heartbeat_s, session_timeout_s=config.session_timeout_s, radius=config.pingwave_radius
        ),
        open_relay=config.compat_open_relay,
        short_sync=config.compat_short_sync,
        gateway=policy.gateway,
        announce=AnnounceConfig(channels=config.announce_channels),
        directory=DirectoryConfig(require_signed=config.require_signed_announcements),
        nat=NatConfig(bind=numeric(bound), public_address=numeric(config.public_address)),
        secure=SecureConfig(mode=config.secure, pins=pins or {}),
        opaque=OpaqueMode.COMPATIBLE if config.unknown_subprotocols is Unknown.DELIVER else OpaqueMode.STRICT,
        ack_timeout_s=config.membership_ack_timeout_s,
        max_channels_per_peer=config.max_channels_per_peer,
        token_sweep_s=config.token_sweep_s,
        trusted_issuers=policy.trusted_issuers,
        renew_tokens_s=config.renew_tokens_s,
        renew_issuers=config.renew_issuers,
        any_issuer=config.compat_any_issuer,
        unannounced_global=config.compat_unannounced_global,
        window=_window(config, receive_buffer, local=local),
        profile=config.profile,
        max_payload=packet - PACKET_COST,
        carries=_carried(config),
        policy_issuers=config.policy_issuers,
        loopback=local,
    )


def _carried(config: NodeConfig) -> frozenset[int]:
    """Return the optional subprotocols that a node handles."""
    carried: frozenset[int] = frozenset() if config.daemons_dir is None else CARRIED
    if config.policy_issuers:
        carried |= {Subprotocol.POLICY, Subprotocol.REVOCATION}
    # Secrets are proved and renewed, and keys succeeded, in secure sessions only.
    return carried if config.secure is SecureMode.OFF else carried | {Subprotocol.ROTATION, Subprotocol.REVOCATION}


def previous_key(mesh_key: MeshKey) -> PreviousKey | None:
    """Return the mesh key that another one replaces, as the engine takes it."""
    return None if mesh_key.previous is None else PreviousKey(mesh_key.previous, mesh_key.until_s * 10**9)


def _window(config: NodeConfig, receive_buffer: int, *, local: bool) -> int:
    """Return the byte credit of a stream: the configured value, limited by the receive buffer.

    If all peers are on this machine, packets are lost only in that buffer, so it alone decides unless a value is
    configured: with more credit, processes wait for each other less often.
    """
    buffered = max(receive_buffer // BUFFERED_WINDOWS, STREAM_WINDOW)
    if local and "window_bytes" not in config.changed():
        return buffered
    return min(config.window_bytes, buffered)


def wall(now: float) -> int:
    """Return the unix time in nanoseconds for a monotonic time."""
    return time.time_ns() + int((now - time.monotonic()) * 1e9)


def parse_key(text: bytes | str) -> bytes:
    """Return a public key that was given as bytes or as hex digits. Raises LocalProtocolError if it is neither."""
    key = text
    if isinstance(text, str):
        try:
            key = bytes.fromhex(text)
        except ValueError:
            raise LocalProtocolError(
                f"a public key has {2 * KEY_BYTES} hex digits, got {text!r}; copy it again, in full"
            ) from None
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(f"a public key has {KEY_BYTES} bytes, got {len(key)}; copy it again, in full")
    return bytes(key)  # type: ignore[arg-type]
