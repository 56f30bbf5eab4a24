"""Settings of an engine: one struct for each part of it, and one for the whole.

They are below the services (see the layers in pyproject.toml), so that every service can read them from its context.
Defaults follow the 0.23 wire unless a field says otherwise. How users write settings is in config/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.gateway import SubnetGateway
from meshbus.policy.guard import AuthGuard
from meshbus.wire.constants import HANDSHAKE_TTL, PINGWAVE_TTL, ROUTED_PAYLOAD, ROUTED_TTL
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.capability import DEFAULT_TTL_SECS
from meshbus.wire.messages.revocation import Revocation

PROFILE_WINDOW = 512 * 1024
"""Byte credit of a stream between meshbus nodes (profile.md §2); towards 0.23 nodes it is 64 KiB (transport.md §14)."""

CONFIRM_S = 30.0
"""How long a candidate session is kept. Our choice: a 0.23 node proves it within 5 s, by its first heartbeat."""
CONTEST_S = 2.0
"""How long a live session is probed. Our choice: more than a few round trips, and less than the 5 s that a peer waits
for message 2 (transport.md §10.2)."""
MAX_CHANNELS_PER_PEER = 1024
"""Channels that one peer may subscribe to (policy.md §4.4)."""
MIN_INTERVAL_S = 10.0
"""Shortest time between two announcements of a node (policy.md §8.4)."""
PEER_CHECKS_PER_S = 200.0
"""New announcements verified per second for one peer, with bursts of twice as many. Our choice: each takes about a
quarter of a millisecond, and at this rate a neighbor can forward the announcements of 30 000 nodes."""
FORWARDED_CHECKS_PER_S = 500.0
"""Forwarded announcements verified per second for all peers together. Our choice: at most an eighth of a core, however
many peers there are. Announcements of peers about themselves do not count; they have a limit for each host."""


class HandshakeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tries and timeouts of handshakes."""

    tries: int = 3
    """Tries before a handshake fails (transport.md §10.2)."""
    timeout_s: float = 5.0
    """Timeout of each try (transport.md §10.2)."""
    confirm_s: float = CONFIRM_S
    """How long a candidate session may wait to be proved and to take over (session/candidate.py)."""
    contest_s: float = CONTEST_S
    """How long a live session must ignore probes before a session from another address replaces it."""


class LivenessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeats and failure detection."""

    heartbeat_s: float = 5.0
    """Interval between heartbeats (transport.md §16)."""
    session_timeout_s: float = 30.0
    """A peer without a verified heartbeat for this long has failed; judged with every heartbeat of this node. A 0.23 node
    waits for three times its own timeout (transport.md §16)."""
    radius: int = PINGWAVE_TTL + 1
    """How many hops away pingwaves of this node are received; four for 0.23 nodes (mesh.md §4)."""

    @property
    def routed_ttl(self) -> int:
        """TTL of the packets of a relayed session: 8 as on the 0.23 wire (mesh.md §2), 16 if the radius is larger."""
        return ROUTED_TTL if self.radius <= ROUTED_TTL else HANDSHAKE_TTL


class NamedChannels(StrEnum):
    """Which of the channels that it publishes on a node announces by name."""

    NONE = "none"
    OPEN = "open"
    """Those that every node may subscribe to."""
    ALL = "all"
    """All but those that do not leave their subnet."""


class AnnounceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Announcements of this node about itself."""

    ttl_s: int = DEFAULT_TTL_SECS
    """How long peers keep an announcement, in seconds; it is repeated after half of that time."""
    min_interval_s: float = MIN_INTERVAL_S
    """Shortest time between two broadcasts."""
    enrich: bool = True
    """Add a tag for each subprotocol that this node handles; without the tags no peer offers the meshbus profile."""
    channels: NamedChannels = NamedChannels.OPEN
    """The channels of this node that are announced by name, so that gateways can apply rules by prefix to them."""

    def __post_init__(self) -> None:
        if not 0 < self.ttl_s <= 0xFFFFFFFF:
            raise ConfigError("ttl_s", f"must be in [1, 4294967295] seconds, got {self.ttl_s}")
        if not 0 <= self.min_interval_s < self.ttl_s:
            raise ConfigError(
                "min_interval_s",
                f"must be at least 0 and below ttl_s ({self.ttl_s} s), got {self.min_interval_s}; "
                "otherwise peers would forget this node between two announcements",
            )


class DirectoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Verification of the announcements of other nodes."""

    require_signed: bool = True
    """Ignore announcements without a signature."""
    keep_pins: bool = True
    """Keep the entity id of a node that failed, so that no other node can take its id; 0.23 nodes forget it."""
    checks_per_s: float = PEER_CHECKS_PER_S
    """Announcements verified per second for one peer."""
    forwarded_checks_per_s: float = FORWARDED_CHECKS_PER_S
    """Forwarded announcements verified per second for all peers together."""


class NatConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of this node."""

    bind: Address | None = None
    """The address to which its socket is bound."""
    public_address: Address | None = None
    """The address under which it is reached from outside, if known; then peers are not asked for it (mesh.md §8.2)."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of a gateway for the packets that it forwards (profile.md §9)."""

    peer_subnets: tuple[SubnetId, ...] = ()
    """The subnets beyond the boundary; packets from and to other subnets are dropped."""
    exports: Mapping[ChannelName, tuple[SubnetId, ...]] = {}
    """Subnets to which channels of exported visibility may go."""
    forward_unknown: bool = False
    """Forward publications on channels without a configuration instead of dropping them."""
    enforce_publishers: bool = True
    """Drop publications of nodes that the channel's configuration does not allow to publish."""

    def build(
        self,
        subnet: SubnetId,
        channels: ChannelConfigRegistry,
        publishers: AuthGuard,
        verify_publisher: Callable[[int, int], bool] | None = None,
    ) -> SubnetGateway:
        """Return a gateway with these rules in a subnet; the guard is asked only if publishers are enforced."""
        gateway = SubnetGateway(
            subnet,
            self.peer_subnets,
            channels=channels,
            forward_unknown=self.forward_unknown,
            publishers=publishers if self.enforce_publishers else None,
            verify_publisher=verify_publisher,
        )
        for channel, subnets in self.exports.items():
            gateway.export(channel, subnets)
        return gateway


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a policy decides at one node; `Engine.set_policy` applies it while the node runs."""

    channels: ChannelConfigRegistry | None = None
    """Configurations of channels; None if every channel is open."""
    assignment: Assignment | None = None
    """Rules that put peers into subnets by their announced tags."""
    gateway: GatewayConfig | None = None
    """Rules for packets forwarded between subnets; without them this node is a plain relay."""
    trusted_issuers: tuple[bytes, ...] = ()
    """Entity ids whose tokens are accepted, besides this node's own."""


class SecureMode(StrEnum):
    """Whether sessions with other meshbus nodes get keys of their own (docs/wire/secure.md)."""

    AUTO = "auto"
    """With peers that announce it. A peer that did it once is never talked to without it."""
    REQUIRE = "require"
    """With every peer: others get no data, and none is taken from them."""
    OFF = "off"


class SecureConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Secure sessions."""

    mode: SecureMode = SecureMode.OFF
    """Off as on the 0.23 wire; a node uses `auto` unless it is configured otherwise (config/node.py)."""
    pins: Mapping[int, bytes] = {}
    """Entity keys of the nodes that were seen secure before, by node id."""
    rekey_s: float = 3600.0
    """Age of keys at which new ones are made. Our choice: what is lost with the memory of a node is an hour of traffic."""
    rekey_packets: int = 1 << 30
    """Packets in one direction after which new keys are made. Our choice: far below the 2^64 of the packet counter."""
    patience_s: float = 10.0
    """How long data waits for a session to become secure before it is refused and that is reported. Our choice: the
    negotiation and the exchange take a few round trips and are repeated under loss."""


class OpaqueMode(StrEnum):
    """What happens to messages of subprotocols without a service (subprotocols.md §3)."""

    STRICT = "strict"
    """Drop those below the vendor range; deliver the others with their id."""
    COMPATIBLE = "compatible"
    """Deliver all of them with their id, as a 0.23 node does."""


class PreviousKey(msgspec.Struct, frozen=True):
    """The mesh key before the current one. Its repr shows no secrets."""

    key: bytes
    until_ns: int
    """Until when it is accepted, in unix nanoseconds. Later it is only recognized, to say why it is refused."""

    def __repr__(self) -> str:
        return f"PreviousKey(until_ns={self.until_ns})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("until_ns", self.until_ns)]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of an engine."""

    psk: bytes
    """The mesh key: 32 bytes that all nodes of a mesh share."""
    previous_psk: PreviousKey | None = None
    """The mesh key that it replaces."""
    subnet: SubnetId = SubnetId.GLOBAL
    assignment: Assignment | None = None
    """Rules that put peers into subnets by their announced tags."""
    handshake: HandshakeConfig = HandshakeConfig()
    liveness: LivenessConfig = LivenessConfig()
    announce: AnnounceConfig = AnnounceConfig()
    directory: DirectoryConfig = DirectoryConfig()
    nat: NatConfig = NatConfig()
    secure: SecureConfig = SecureConfig()
    opaque: OpaqueMode = OpaqueMode.STRICT
    ack_timeout_s: float = 5.0
    """How long to wait for the answer to a subscribe or unsubscribe request (transport.md §16)."""
    max_channels_per_peer: int = MAX_CHANNELS_PER_PEER
    """Channels that one peer may subscribe to (policy.md §4.4)."""
    token_sweep_s: float | None = 30.0
    """Interval in which the tokens of subscribers are checked again (policy.md §4.6); None for never."""
    trusted_issuers: tuple[bytes, ...] = ()
    """Entity ids whose tokens are accepted, besides this node's own."""
    renew_tokens_s: int | None = None
    """The longest validity of a token that this node issues in place of one that it issued before; None to renew none."""
    renew_issuers: tuple[bytes, ...] = ()
    """Entity ids of issuers whose tokens this node renews as well, with its own key, which replaces theirs."""
    any_issuer: bool = False
    """Accept tokens of any issuer, as a 0.23 node does (policy.md §7.5)."""
    unannounced_global: bool = False
    """Count a peer that never announced itself as a member of GLOBAL, as a 0.23 node does (policy.md §2.3)."""
    window: int = PROFILE_WINDOW
    """Byte credit of a stream between meshbus nodes."""
    profile: bool = True
    """Offer the meshbus profile to peers that ask for it."""
    max_payload: int = ROUTED_PAYLOAD
    """Packing target of a packet's plaintext, in bytes; a longer event is sent in a larger packet."""
    open_relay: bool = False
    """Forward packets of any sender, as a 0.23 node does (mesh.md §2.1), not only those of peers."""
    short_sync: bool = False
    """Accept SyncRequests in the documented form of 47 bytes (redex.md §3)."""
    gateway: GatewayConfig | None = None
    """Rules for packets forwarded between subnets; without them this node is a plain relay."""
    carries: frozenset[int] = frozenset()
    """Optional subprotocols of the service table that this node handles: those of daemons, if it can run any."""
    policy_issuers: tuple[bytes, ...] = ()
    """Entity ids whose signed policies and revocations this node takes from its neighbors; it needs 0x4D0B and 0x4D0C in
    `carries`."""
    revocations: tuple[Revocation, ...] = ()
    """Verified records of what was revoked before this start."""
    loopback: bool = False
    """Whether all peers are on this machine; then reliable streams start with a larger window."""
