"""What an engine is configured with, and what it offers to its peers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment
from meshbus.policy.registry import SubprotocolRegistry
from meshbus.wire.constants import PINGWAVE_TTL, ROUTED_PAYLOAD, Subprotocol
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.capability import DEFAULT_TTL_SECS
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

CONFIRM_S = 30.0
"""How long a candidate is kept; a 0.23 node sends its first heartbeat within 5 s."""
CONTEST_S = 2.0
"""Less than any peer waits for an answer to its first message, more than a few round trips."""
MIN_INTERVAL_S = 10.0
PEER_CHECKS_PER_S = 200.0
"""New announcements looked into for one peer, at a quarter of a millisecond each; twice as many at once. A neighbor
passes on what 30 000 nodes announce at this rate."""
FORWARDED_CHECKS_PER_S = 500.0
"""The same over all peers, for what they pass on: no crowd of peers takes more than an eighth of a core. What peers say
about themselves is not held back by it."""


class HandshakeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How patient handshakes are."""

    tries: int = 3
    timeout_s: float = 5.0
    """For each try."""
    confirm_s: float = CONFIRM_S
    """How long a session that a peer began beside another may wait for its first packet, or for its turn."""
    contest_s: float = CONTEST_S
    """How long a live session must be silent, though asked, before one from another address replaces it."""


class LivenessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How often we speak, and how patient we are; every peer should send well within three of our timeouts."""

    heartbeat_s: float = 5.0
    session_timeout_s: float = 30.0
    radius: int = PINGWAVE_TTL + 1
    """How many hops away our pingwaves are heard; 0.23 nodes send theirs four hops far."""


class AnnounceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a node announces itself."""

    ttl_s: int = DEFAULT_TTL_SECS
    """How long peers keep an announcement; it is repeated at half of it."""
    min_interval_s: float = MIN_INTERVAL_S
    """The shortest time between two broadcasts."""
    enrich: bool = True
    """Add a tag for every subprotocol with a handler; without them no peer offers us the meshbus profile."""

    def __post_init__(self) -> None:
        if not 0 < self.ttl_s <= 0xFFFFFFFF:
            raise ConfigError("ttl_s", f"{self.ttl_s} is no lifetime: from 1 second on")
        if not 0 <= self.min_interval_s < self.ttl_s:
            raise ConfigError(
                "min_interval_s",
                f"{self.min_interval_s} is not below the lifetime of {self.ttl_s} s: peers would forget us",
            )


class DirectoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How announcements are believed."""

    require_signed: bool = True
    keep_pins: bool = True
    """Keep the entity of a node that failed; the other implementation forgets it."""
    checks_per_s: float = PEER_CHECKS_PER_S
    forwarded_checks_per_s: float = FORWARDED_CHECKS_PER_S


class NatConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows about its own address."""

    bind: Address | None = None
    """Where its socket is bound."""
    public_address: Address | None = None
    """Where it is reached from outside, when that is known: nobody is asked then."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a node a gateway."""

    peer_subnets: tuple[SubnetId, ...] = ()
    """The subnets beyond the boundary; packets from and to others are dropped."""
    exports: Mapping[ChannelName, tuple[SubnetId, ...]] = {}
    """Where channels of exported visibility may go."""
    forward_unknown: bool = False
    """Forward publications on channels without a configuration, in place of dropping them."""
    enforce_publishers: bool = True
    """Drop what was not published by one of those whom the channel's configuration allows."""


class OpaqueMode(StrEnum):
    """What happens to messages of subprotocols without a service here."""

    STRICT = "strict"
    """Drop those below the vendor range; deliver the others, under their id."""
    COMPATIBLE = "compatible"
    """Deliver them all, under their id."""


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
