"""Facade: the requests that an application makes to the engine, passed on to the services that handle them.

The driver's side (`receive`, `tick`, `next_timer`) is engine/core.py. Methods that send take `now` (monotonic seconds)
and append to an `Output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshbus.engine.base.notices import DownReason
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.carriage.carrier import Carrier
from meshbus.engine.channels.admission import Admission
from meshbus.engine.channels.history_client import Replays
from meshbus.engine.channels.history_server import History
from meshbus.engine.channels.interest_client import Following
from meshbus.engine.channels.interest_server import Interests
from meshbus.engine.channels.membership import Membership
from meshbus.engine.channels.publication import Publication, Publications
from meshbus.engine.channels.publish import PublishConfig, PublishReport
from meshbus.engine.channels.request import Requests
from meshbus.engine.channels.rotation import Rotation
from meshbus.engine.directory.announce import Announcer
from meshbus.engine.directory.chains import Chains
from meshbus.engine.directory.directory import Directory
from meshbus.engine.directory.fleetpolicy import FleetPolicy
from meshbus.engine.directory.handlers import find_handlers
from meshbus.engine.directory.revoking import Revoking
from meshbus.engine.nat.traversal import Traversal
from meshbus.engine.replicas.appending import Appending
from meshbus.engine.replicas.replication import Replication
from meshbus.engine.replicas.sets import ReplicaSets
from meshbus.engine.routes.mesh import Mesh
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.keywindow import KeyWindow
from meshbus.engine.session.liveness import Liveness
from meshbus.engine.session.negotiate import Negotiator, Profile
from meshbus.engine.session.peer import PeerClaims
from meshbus.engine.session.presence import Presence
from meshbus.engine.session.secure import Secure
from meshbus.engine.session.service import Context
from meshbus.engine.settings import HandshakeConfig, PolicySettings, PreviousKey
from meshbus.engine.streams.delivery import Delivery
from meshbus.engine.streams.large import Large
from meshbus.engine.streams.streams import Streams
from meshbus.errors import LocalProtocolError, PeerError, PeerFault
from meshbus.names.channel import ChannelName
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.token import PermissionToken

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Facade:
    """The services of one node by name, and the requests of its application."""

    def __init__(self, context: Context) -> None:
        self.identity = context.identity
        self.settings = context.settings
        self.mesh_keys = context.mesh_keys
        self.counters = context.counters
        self.peers = context.peers
        self.tokens = context.tokens
        self.revocations = context.revocations
        self.index = context.index
        self.registry = context.registry
        self.services = services = context.services
        self.handshakes = services[Handshakes]
        self.liveness = services[Liveness]
        self.mesh = services[Mesh]
        self.streams = services[Streams]
        self.large = services[Large]
        self.joined = services[Delivery].joined
        self.announcer = services[Announcer]
        self.directory = services[Directory]
        self.chains = services[Chains]
        self.traversal = services[Traversal]
        self.negotiator = services[Negotiator]
        self.secure = services[Secure]
        self.admission = services[Admission]
        self.membership = services[Membership]
        self.following = services[Following]
        self.interests = services[Interests]
        self.requests = services[Requests]
        self.replays = services[Replays]
        self.history = services[History]
        self.publications = services[Publications]
        self.replication = services[Replication]
        self.replicas = services[ReplicaSets]
        self.appending = services[Appending]
        self.mesh.boundary.watch(self.interests.channels, self.joined)

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self.identity.node_id

    @property
    def public_key(self) -> bytes:
        """The Noise static public key of this node; a 0.23 peer needs it to connect."""
        return self.handshakes.public_key

    def connect(
        self,
        node_id: int,
        address: Address | None,
        public_key: bytes,
        now: float,
        out: Output,
        *,
        routed: bool = True,
        profile: Profile = Profile.AUTO,
        handshake: HandshakeConfig | None = None,
        given_key: bytes | None = None,
    ) -> None:
        """Connect to a node; the result is a SessionUp or HandshakeFailed notice.

        Without an address, the routing table provides the next hop. `handshake` overrides the settings, `given_key` is the
        key that messages show if the user gave another one than the Noise key. Raises PeerError if there is no next hop,
        and HandshakeError if another handshake with the node is under way.
        """
        where = self.mesh.way_to(node_id, now) if address is None else address
        self.negotiator.configure(node_id, profile)
        self.handshakes.connect(
            node_id,
            where,
            public_key,
            now,
            out,
            routed=routed,
            follows=address is None,
            config=handshake,
            given_key=given_key,
        )

    def announce(self, capabilities: CapabilitySet, now: float, out: Output) -> None:
        """Announce the capabilities of this node to all present and future peers."""
        self.announcer.announce(capabilities, now, out)
        # This node's own claims decide whether it may publish, and which peers its channels are visible to.
        self.admission.authorizer.own = PeerClaims(
            self.identity.entity_id, self.announcer.capabilities, self.settings.subnet
        )

    def set_channel_configs(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Set the configurations of this node's channels; current subscribers are checked against them at once."""
        self.services.channels_configured(registry, now, out)

    def set_policy(self, policy: PolicySettings, now: float, out: Output) -> None:
        """Apply a whole policy: every decision before this call was made by the old one, every later one by this one.

        Sessions stay. Subscribers and publishers are checked again at once, and those that are not allowed any more go.
        """
        self.tokens.trust((self.identity.entity_id, *policy.trusted_issuers))
        moved = self.directory.assign_by(policy.assignment)
        self.mesh.boundary.set_gateway(policy.gateway, policy.assignment, now)
        self.services.channels_configured(policy.channels, now, out)
        for peer in moved:
            self.services.claims_changed(peer, now, out)
        self.services.tokens_changed(now, out)

    def set_mesh_keys(self, current: bytes, previous: PreviousKey | None, now: float, out: Output) -> None:
        """Change the mesh key. No session ends before the window of the previous key does."""
        self.mesh_keys.change(current, previous)
        self.handshakes.keys_changed()
        self.services[KeyWindow].changed(now)
        if self.rotation is not None:
            self.rotation.keys_changed(now, out)

    def hold_token(self, token: PermissionToken, now: float) -> None:
        """Renew a token of this node before it expires, if its issuer allows that and is a peer by then."""
        if self.rotation is not None:
            self.rotation.renewals.hold(token, now)

    def drop_token(self, token: PermissionToken) -> None:
        """Stop renewing a token of this node."""
        if self.rotation is not None:
            self.rotation.renewals.drop(token)

    def token_renewed(self, old: bytes, new: bytes, now: float, out: Output) -> None:
        """Use a renewed token for the subscriptions that rest on the old one."""
        self.membership.token_renewed(old, new, now, out)
        self.following.token_renewed(old, new)

    def open_channel(self, channel: ChannelName, now: float, out: Output) -> None:
        """Offer a channel to peers that follow a prefix of its name."""
        self.interests.open_channel(channel, now, out)
        self.announcer.open_channel(channel, now)

    def close_channel(self, channel: ChannelName, out: Output) -> None:
        """Stop offering a channel to peers that follow a prefix of its name."""
        self.interests.close_channel(channel, out)
        self.announcer.close_channel(channel)

    def recheck(self, now: float, out: Output) -> None:
        """Check all subscribers again, for example after tokens were revoked."""
        self.services.tokens_changed(now, out)

    def subscribe(
        self,
        publisher: int,
        channel: ChannelName,
        now: float,
        out: Output,
        *,
        token: bytes = b"",
        queue_group: str = "",
    ) -> int:
        """Subscribe to a channel of a publisher, and return a request number; an `Acked` notice with it follows.

        Raises PeerError if the publisher is not a peer.
        """
        peer = self.peers.require(publisher)
        return self.membership.subscribe(peer, channel, now, out, token=token, queue_group=queue_group)

    def unsubscribe(self, publisher: int, channel: ChannelName, now: float, out: Output) -> int:
        """Unsubscribe from a channel of a publisher, and return a request number; an `Acked` notice with it follows."""
        return self.membership.unsubscribe(self.peers.require(publisher), channel, now, out)

    def interest(
        self, publisher: int, prefix: str, now: float, out: Output, *, token: bytes = b"", queue_group: str = ""
    ) -> int:
        """Subscribe to all channels of a meshbus publisher under a prefix, and return a request number.

        `Matched` notices with this number name the channels, now and when channels appear or go.
        """
        peer = self.peers.require(publisher)
        return self.following.follow(peer, prefix, now, out, token=token, queue_group=queue_group)

    def publish(
        self,
        channel: ChannelName,
        offsets: NDArray[np.int64],
        data: NDArray[np.uint8],
        config: PublishConfig,
        now: float,
        out: Output,
    ) -> Publication:
        """Send events to the subscribers of a channel.

        The publication is complete at once if no subscriber had to wait. Raises LocalProtocolError if an event is too
        large for the channel, and AuthError or ChannelError if this node may not publish now; then nothing is sent.
        """
        return self.publications.publish(channel, offsets, data, config, now, out)

    def publish_one(
        self, channel: ChannelName, event: bytes, config: PublishConfig, now: float, out: Output
    ) -> PublishReport | Publication:
        """Send one event, and return its report at once if no subscriber has to wait. Raises as `publish` does."""
        return self.publications.publish_one(channel, event, config, now, out)

    def send(self, node_id: int, events: Sequence[bytes], now: float, out: Output) -> None:
        """Send events to one peer without a channel; they are not acknowledged.

        Raises PeerError if there is no session with the node, LocalProtocolError if an event does not fit into a
        packet, and Backpressure if too many events wait for the peer.
        """
        self.publications.push(self.peers.require(node_id), events, now, out)

    def carrier(self, subprotocol_id: int) -> Carrier:
        """Return the carrier of a subprotocol that is handled above the engine: it sends messages to nodes by their id.

        Messages of peers are `Carried` notices. Raises LocalProtocolError if this node does not carry the subprotocol.
        """
        service = self.services.by_subprotocol.get(subprotocol_id)
        if not isinstance(service, Carrier):
            raise LocalProtocolError(
                f"this node does not carry subprotocol 0x{subprotocol_id:04x}; add it to `carries` of its settings"
            )
        return service

    @property
    def fleet_policy(self) -> FleetPolicy | None:
        """The distribution of signed policies; None if this node has no issuer of policies."""
        service = self.services.by_subprotocol.get(Subprotocol.POLICY)
        return service if isinstance(service, FleetPolicy) else None

    @property
    def revoking(self) -> Revoking | None:
        """The distribution of revocations; None if this node has no issuer of the fleet."""
        service = self.services.by_subprotocol.get(Subprotocol.REVOCATION)
        return service if isinstance(service, Revoking) else None

    @property
    def rotation(self) -> Rotation | None:
        """The service that rotates secrets with peers; None if this node does not carry it."""
        service = self.services.by_subprotocol.get(Subprotocol.ROTATION)
        return service if isinstance(service, Rotation) else None

    def find_handlers(
        self, subprotocol_id: int, now: float, capability_filter: CapabilityFilter | None = None
    ) -> list[int]:
        """Return the nodes that handle a subprotocol and match a filter, the nearest first; this node may be among them."""
        return find_handlers(self.directory, self.mesh.graph.latency_to, subprotocol_id, now, capability_filter)

    def route(
        self,
        subprotocol_id: int,
        message: bytes,
        now: float,
        out: Output,
        *,
        capability_filter: CapabilityFilter | None = None,
    ) -> int:
        """Send a message to the nearest other node that handles a subprotocol and matches a filter; return its id.

        Raises PeerError if no node does, or if there is no session with the nearest one, LocalProtocolError if this node
        does not carry the subprotocol.
        """
        carrier = self.carrier(subprotocol_id)
        others = [node for node in self.find_handlers(subprotocol_id, now, capability_filter) if node != self.node_id]
        if not others:
            problem = (
                f"no other node announced that it handles 0x{subprotocol_id:04x} and matches; look at find_handlers"
            )
            raise PeerError(PeerFault.UNREACHABLE, 0, problem)
        carrier.send(others[0], (message,), now, out)
        return others[0]

    def disconnect(self, node_id: int, now: float, out: Output) -> None:
        """Remove a peer, and notify it if it is a meshbus node."""
        self.services[Presence].part_from(node_id, DownReason.CLOSED, now, out)

    def close(self, now: float, out: Output) -> None:
        """Send goodbyes to all peers; the output must be sent before the socket is closed."""
        self.services.closing(now, out)
