"""What an engine is configured with, and what it offers to its peers."""

from __future__ import annotations

import msgspec

from meshbus.engine.announce import AnnounceConfig
from meshbus.engine.boundary import GatewayConfig
from meshbus.engine.directory import DirectoryConfig
from meshbus.engine.dispatch import OpaqueMode
from meshbus.engine.handshake import HandshakeConfig
from meshbus.engine.liveness import LivenessConfig
from meshbus.engine.nat import NatConfig
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment
from meshbus.policy.registry import SubprotocolRegistry
from meshbus.wire.constants import ROUTED_PAYLOAD, Subprotocol
from meshbus.wire.subprotocol import SubprotocolDescriptor, SubprotocolVersion

PLAIN_SERVICES = {
    Subprotocol.NEGOTIATION: "negotiation",
    Subprotocol.MEMBERSHIP: "membership",
    Subprotocol.STREAM_WINDOW: "stream-window",
    Subprotocol.CAPABILITY: "capability",
    Subprotocol.REFLEX: "reflex",
    Subprotocol.RENDEZVOUS: "rendezvous",
}
"""What this engine handles of the 0.23 wire, and the door to the profile."""
PROFILE_SERVICES = {
    Subprotocol.HANDSHAKE_RELAY: "handshake-relay",
    Subprotocol.RELIABLE: "reliable",
    Subprotocol.HISTORY: "history",
    Subprotocol.INTEREST: "interest",
    Subprotocol.REQUEST: "request",
}
"""What it offers to other meshbus nodes."""
RELIABLE_SERVICES = frozenset({Subprotocol.HISTORY, Subprotocol.REQUEST})
"""Those whose messages travel on reliable streams of their own."""

PROFILE_WINDOW = 512 * 1024
"""Byte credit of a stream between meshbus nodes."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about an engine that is configuration."""

    psk: bytes
    subnet: SubnetId = SubnetId.GLOBAL
    assignment: Assignment | None = None
    """How peers are put into subnets by their announced tags."""
    handshake: HandshakeConfig = HandshakeConfig()
    liveness: LivenessConfig = LivenessConfig()
    announce: AnnounceConfig = AnnounceConfig()
    directory: DirectoryConfig = DirectoryConfig()
    nat: NatConfig = NatConfig()
    opaque: OpaqueMode = OpaqueMode.STRICT
    ack_timeout_s: float = 5.0
    max_channels_per_peer: int = 1024
    token_sweep_s: float | None = 30.0
    trusted_issuers: tuple[bytes, ...] = ()
    any_issuer: bool = False
    """Take tokens of any issuer, as a 0.23 node does."""
    window: int = PROFILE_WINDOW
    profile: bool = True
    """Offer the meshbus profile to peers that ask for it."""
    max_payload: int = ROUTED_PAYLOAD
    """Packing target of a packet's plaintext."""
    open_relay: bool = False
    """Forward for everybody and not for peers alone, as a 0.23 node does."""
    gateway: GatewayConfig | None = None
    """Judge what is forwarded between subnets; without it this node is a plain relay."""
    loopback: bool = False
    """All peers are on this machine: streams may start fast."""


def offered_services(settings: EngineSettings) -> SubprotocolRegistry:
    """Say what a node with these settings handles."""
    registry = SubprotocolRegistry()
    offered = PLAIN_SERVICES | (PROFILE_SERVICES if settings.profile else {})
    if not settings.profile:
        offered.pop(Subprotocol.NEGOTIATION)
    for subprotocol_id, name in offered.items():
        registry.register(SubprotocolDescriptor(id=subprotocol_id, name=name, version=SubprotocolVersion(1)))
    return registry
