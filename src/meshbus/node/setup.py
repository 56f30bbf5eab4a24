"""From configuration to engine: what a node's settings mean for the protocol side."""

from __future__ import annotations

import time

from meshbus.config.node import NodeConfig, Unknown
from meshbus.engine.settings import (
    AnnounceConfig,
    DirectoryConfig,
    EngineSettings,
    HandshakeConfig,
    LivenessConfig,
    NatConfig,
    OpaqueMode,
)
from meshbus.errors import LocalProtocolError
from meshbus.names.identity import KEY_BYTES
from meshbus.node.udp import BUFFER_BYTES
from meshbus.wire.constants import MAX_DATAGRAM, PACKET_COST, ROUTE_BYTES, STREAM_WINDOW
from meshbus.wire.messages.address import numeric

NETWORK_PACKET = 1452
"""What a packet is filled up to when peers are not all on this machine: no path splits it."""

BUFFERED_WINDOWS = 4
"""Windows that the receive buffer must hold, in bytes of payload: the kernel counts a small datagram several times.
Nodes are set up alike, so what our system granted us is taken for what others can buffer."""


def engine_settings(
    config: NodeConfig, psk: bytes, receive_buffer: int = BUFFER_BYTES, bound: object = None
) -> EngineSettings:
    """Give the engine's settings for a configuration, and for the receive buffer and the address that it got."""
    local = config.bind.host in {"127.0.0.1", "::1", "localhost"}
    packet = config.max_packet or (MAX_DATAGRAM - ROUTE_BYTES if local else NETWORK_PACKET)
    return EngineSettings(
        psk=psk,
        subnet=config.subnet,
        assignment=config.subnet_policy(),
        handshake=HandshakeConfig(tries=config.handshake_attempts, timeout_s=config.handshake_timeout_s),
        liveness=LivenessConfig(
            heartbeat_s=config.heartbeat_s, session_timeout_s=config.session_timeout_s, radius=config.pingwave_radius
        ),
        open_relay=config.compat_open_relay,
        gateway=config.gateway_config(),
        announce=AnnounceConfig(),
        directory=DirectoryConfig(require_signed=config.require_signed_announcements),
        nat=NatConfig(bind=numeric(bound), public_address=numeric(config.public_address)),
        opaque=OpaqueMode.COMPATIBLE if config.unknown_subprotocols is Unknown.DELIVER else OpaqueMode.STRICT,
        ack_timeout_s=config.membership_ack_timeout_s,
        max_channels_per_peer=config.max_channels_per_peer,
        token_sweep_s=config.token_sweep_s,
        trusted_issuers=config.trusted_issuers,
        any_issuer=config.compat_any_issuer,
        window=_window(config, receive_buffer, local=local),
        profile=config.profile,
        max_payload=packet - PACKET_COST,
        loopback=local,
    )


def _window(config: NodeConfig, receive_buffer: int, *, local: bool) -> int:
    """Give the byte credit of a stream: what is configured, as far as the receive buffer holds it.

    Where all peers are on this machine nothing but that buffer loses packets, so it alone decides unless something
    else is configured: processes that wait for each other less often do more per second.
    """
    buffered = max(receive_buffer // BUFFERED_WINDOWS, STREAM_WINDOW)
    if local and "window_bytes" not in config.changed():
        return buffered
    return min(config.window_bytes, buffered)


def wall(now: float) -> int:
    """Give unix nanoseconds for a reading of the monotonic clock."""
    return time.time_ns() + int((now - time.monotonic()) * 1e9)


def parse_key(text: bytes | str) -> bytes:
    """Read a public key given as bytes or as hex digits."""
    key = text
    if isinstance(text, str):
        try:
            key = bytes.fromhex(text)
        except ValueError:
            raise LocalProtocolError("a public key is 64 hex digits: check that it was copied whole") from None
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(f"a public key has {KEY_BYTES} bytes, got {len(key)}")
    return bytes(key)  # type: ignore[arg-type]
