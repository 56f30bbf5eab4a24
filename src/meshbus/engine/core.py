"""One node as a state machine: composes the services of this room, and holds no protocol of its own.

    receive(PacketBatch, now) -> Output        tick(now) -> Output        next_timer() -> float | None

Every method that does something takes `now` (monotonic seconds) and gives or fills an `Output`. Time and randomness
come in as arguments, so the same inputs give the same bytes. The driver is node/driver.py; whole fleets of engines run
in meshbus.testing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import DownReason, Negotiated, PeerFailed, PeerGone, SessionUp, StreamFailed
from meshbus.engine.base.packets import Address, Output, PacketBatch
from meshbus.engine.channels.admission import Admission
from meshbus.engine.channels.authorize import Authorizer
from meshbus.engine.channels.history_client import Replays
from meshbus.engine.channels.history_server import History
from meshbus.engine.channels.interest_client import Following
from meshbus.engine.channels.interest_server import Interests
from meshbus.engine.channels.local import LocalChannels
from meshbus.engine.channels.membership import Membership
from meshbus.engine.channels.publication import Publication, Publications
from meshbus.engine.channels.publish import Planner, PublishConfig, PublishReport
from meshbus.engine.channels.request import Requester, Requests, Responder
from meshbus.engine.directory.announce import Announcer
from meshbus.engine.directory.directory import Directory
from meshbus.engine.nat.traversal import Traversal
from meshbus.engine.nat.watch import initial_status
from meshbus.engine.receive.dispatch import Dispatch
from meshbus.engine.receive.intake import Intake
from meshbus.engine.receive.reception import Reception
from meshbus.engine.routes.boundary import Boundary
from meshbus.engine.routes.mesh import Mesh, routed_ttl
from meshbus.engine.routes.relay import HandshakeRelay
from meshbus.engine.session.handshake import Established, Handshakes
from meshbus.engine.session.liveness import Liveness
from meshbus.engine.session.negotiate import Negotiator, Profile
from meshbus.engine.session.peer import Peer, PeerClaims, PeerTable
from meshbus.engine.settings import (
    PLAIN_SERVICES,
    PROFILE_SERVICES,
    RELIABLE_SERVICES,
    EngineSettings,
    offered_services,
)
from meshbus.engine.streams.delivery import Delivery, Hooks
from meshbus.engine.streams.joined import JoinedChannels
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Entropy, Identity
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.discovery import CapabilityIndex
from meshbus.policy.tokens import TokenCache
from meshbus.wire.constants import STREAM_WINDOW, Subprotocol
from meshbus.wire.messages.capability import Announcement

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Timed(Protocol):
    def next_timer(self) -> float | None: ...


class Engine:
    """The protocol side of one node."""

    def __init__(
        self,
        identity: Identity,
        settings: EngineSettings,
        *,
        now: float,
        wall: Callable[[float], int],
        entropy: Entropy,
        static_private_key: bytes | None = None,
        counters: Counters | None = None,
    ) -> None:
        """Set up a node without peers.

        `wall` gives unix nanoseconds for a `now`. The Noise static key is the identity's own unless another is given.
        """
        self.identity = identity
        self.settings = settings
        self.counters = Counters() if counters is None else counters
        self.peers = PeerTable()
        self.local = LocalChannels()
        self.joined = JoinedChannels()
        self.registry = offered_services(settings)
        index = CapabilityIndex()
        self.tokens = TokenCache((identity.entity_id, *settings.trusted_issuers), any_issuer=settings.any_issuer)
        boundary = Boundary(
            identity,
            subnet=settings.subnet,
            assignment=settings.assignment,
            index=index,
            tokens=self.tokens,
            counters=self.counters,
            wall=wall,
            config=settings.gateway,
        )
        self.mesh = Mesh(
            identity.node_id,
            self.peers,
            self.counters,
            boundary,
            wall=wall,
            now=now,
            liveness=settings.liveness,
            open_relay=settings.open_relay,
            redirect=self._on_way,
        )
        self._relay = HandshakeRelay(
            identity.node_id,
            peers=self.peers,
            table=self.mesh.table,
            counters=self.counters,
            on_handshake=lambda *packet: self._reception.on_handshake(*packet, routed=True),
        )
        self.handshakes = Handshakes(
            identity.node_id,
            psk=settings.psk,
            static_private_key=identity.noise_private_key if static_private_key is None else static_private_key,
            peers=self.peers,
            counters=self.counters,
            entropy=entropy,
            config=settings.handshake,
            carry=self._relay.carry,
            routed_ttl=routed_ttl(settings.liveness.radius),
        )
        self.liveness = Liveness(identity.node_id, peers=self.peers, wall=wall, now=now, config=settings.liveness)
        self.announcer = Announcer(
            identity,
            self.peers,
            index,
            self.registry,
            wall=wall,
            nat=initial_status(settings.nat),
            config=settings.announce,
        )
        self.traversal = Traversal(
            identity.node_id,
            peers=self.peers,
            handshakes=self.handshakes,
            announcer=self.announcer,
            counters=self.counters,
            wall=wall,
            next_hop=self.mesh.next_hop,
            config=settings.nat,
        )
        self.directory = Directory(
            identity,
            self.peers,
            index,
            self.counters,
            subnet=settings.subnet,
            assignment=settings.assignment,
            surpass=self.announcer.surpass,
            next_hop=self.mesh.next_hop,
            claims_changed=self._claims_changed,
            announced=self._on_announced,
            config=settings.directory,
        )
        self.negotiator = Negotiator(
            identity.node_id, self.peers, self.registry, self.counters, announces=settings.announce.enrich
        )
        self.admission = Admission(
            authorizer=Authorizer(tokens=self.tokens, counters=self.counters, wall=wall, own=self._own_claims()),
            peers=self.peers,
            counters=self.counters,
            max_channels_per_peer=settings.max_channels_per_peer,
            sweep_interval_s=settings.token_sweep_s,
        )
        self.membership = Membership(
            admission=self.admission,
            joined=self.joined,
            counters=self.counters,
            entropy=entropy,
            ack_timeout_s=settings.ack_timeout_s,
        )
        self.following = Following(peers=self.peers, joined=self.joined, counters=self.counters, entropy=entropy)
        self.interests = Interests(
            admission=self.admission,
            channels=self.local,
            following=self.following,
            peers=self.peers,
            counters=self.counters,
        )
        self.planner = Planner(self.admission, self.counters)
        self.delivery = Delivery(
            joined=self.joined,
            counters=self.counters,
            entropy=entropy,
            wall=wall,
            loopback=settings.loopback,
            served=RELIABLE_SERVICES,
            hooks=Hooks(self._serve_one, self.negotiator.missed, self.following.unknown_stream),
        )
        send = self.delivery.send_reliable
        requester = Requester(self.peers, self.counters, entropy=entropy, send=send)
        responder = Responder(self.peers, self.counters, may_request=self.admission.may_request, send=send)
        self.requests = Requests(requester, responder, self.counters)
        self.replays = Replays(
            delivery=self.delivery, peers=self.peers, counters=self.counters, entropy=entropy, wall=wall
        )
        self.history = History(
            admission=self.admission,
            delivery=self.delivery,
            replays=self.replays,
            peers=self.peers,
            counters=self.counters,
            max_payload=settings.max_payload,
        )
        self.publications = Publications(
            self.planner,
            self.delivery,
            self.peers,
            self.counters,
            wall=wall,
            origin_hash=identity.origin_hash,
            subnet_id=settings.subnet,
            max_payload=settings.max_payload,
        )
        self._reception = Reception(
            Dispatch(PLAIN_SERVICES, PROFILE_SERVICES, mode=settings.opaque),
            {
                Subprotocol.NEGOTIATION: self.negotiator.receive,
                Subprotocol.HANDSHAKE_RELAY: self._relay.receive,
                Subprotocol.MEMBERSHIP: self.membership.receive,
                Subprotocol.STREAM_WINDOW: self.delivery.on_grant,
                Subprotocol.CAPABILITY: self._on_announcement,
                Subprotocol.REFLEX: self.traversal.reflex.receive,
                Subprotocol.RENDEZVOUS: self.traversal.rendezvous.receive,
                Subprotocol.RELIABLE: self.delivery.on_reliable,
                Subprotocol.INTEREST: self.interests.receive,
            },
            handshakes=self.handshakes,
            liveness=self.liveness,
            negotiator=self.negotiator,
            delivery=self.delivery,
            mesh=self.mesh,
            punches=self.traversal.punches,
            counters=self.counters,
            establish=self._establish,
            recovered=self._recovered,
        )
        self._intake = Intake(identity.node_id, self.peers, self.counters, self._reception, self.mesh.tap)

    # ── what the driver calls ───────────────────────────────────────────────────────────────

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self.identity.node_id

    @property
    def public_key(self) -> bytes:
        """The Noise static public key that a plain peer must be given."""
        return self.handshakes.public_key

    def receive(self, batch: PacketBatch, now: float) -> Output:
        """Take in datagrams; forwarded ones are sent from the batch itself, so send before you change it."""
        out = Output()
        self._intake.receive(batch, now, out)
        self._finish(now, out)
        self.delivery.confirm(now, out)
        return out

    def next_timer(self) -> float | None:
        """Say when `tick` is due."""
        times = [service.next_timer() for service in self._timed()]
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> Output:
        """Do what is due."""
        out = Output()
        self._establish(self.handshakes.tick(now, out), now, out)
        for verdict in self.liveness.tick(now, out):
            self._peer_down(verdict, now, out)
        self.mesh.tick(now)
        self.traversal.tick(now, out)
        self.announcer.tick(now, out)
        self.directory.tick(now, out)
        self.negotiator.tick(now, out)
        self.interests.lapsed(self.admission.tick(now, out), out)
        self.membership.tick(now, out)
        self.interests.tick(now, out)
        self.requests.tick(now, out)
        self.history.tick(now, out)
        self.delivery.tick(now, out)
        self._finish(now, out)
        return out

    # ── what the application calls ──────────────────────────────────────────────────────────

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
    ) -> None:
        """Begin a session with a node; SessionUp or HandshakeFailed tells the end.

        Without an address the routing table says the way; raises PeerError when it knows none.
        """
        where = self.mesh.way_to(node_id, now) if address is None else address
        self.negotiator.configure(node_id, profile)
        self.handshakes.connect(node_id, where, public_key, now, out, routed=routed, follows=address is None)

    def announce(self, capabilities: CapabilitySet, now: float, out: Output) -> None:
        """Tell every peer, now and in the future, what this node can do."""
        self.announcer.announce(capabilities, now, out)
        self.admission.authorizer.own = self._own_claims()

    def set_channel_configs(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Install the configurations of our channels; subscribers are judged by them at once."""
        self.interests.lapsed(self.admission.set_channel_configs(registry, now, out), out)
        self.interests.configure(registry, now, out)
        self.history.recheck(now, out)
        self.mesh.boundary.set_channels(registry, now)

    def open_channel(self, channel: ChannelName, now: float, out: Output) -> None:
        """Say that this node publishes a channel, for those who are interested in all of a prefix."""
        if self.local.open(channel):
            self.interests.channel_appeared(channel, now, out)

    def close_channel(self, channel: ChannelName, out: Output) -> None:
        """Take an `open_channel` back."""
        if self.local.close(channel):
            self.interests.channel_vanished(channel, out)

    def recheck(self, now: float, out: Output) -> None:
        """Judge all subscribers anew, as after tokens were revoked."""
        self.interests.lapsed(self.admission.sweep(now, out), out)
        self.history.recheck(now, out)
        self.mesh.boundary.recheck(now)

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
        """Ask a publisher for a channel; `Acked` with the same number tells the answer."""
        peer = self.peers.require(publisher)
        return self.membership.subscribe(peer, channel, now, out, token=token, queue_group=queue_group)

    def unsubscribe(self, publisher: int, channel: ChannelName, now: float, out: Output) -> int:
        """Ask a publisher to stop; `Acked` with the same number tells the answer."""
        return self.membership.unsubscribe(self.peers.require(publisher), channel, now, out)

    def interest(
        self, publisher: int, prefix: str, now: float, out: Output, *, token: bytes = b"", queue_group: str = ""
    ) -> int:
        """Ask a meshbus publisher for all its channels under a prefix; `Matched` with the same number tells them."""
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

        The publication is done at once when nobody had to wait. Raises LocalProtocolError for an event that does not
        fit a packet, AuthError or ChannelError when this node may not publish now; nothing is sent then.
        """
        return self.publications.publish(channel, offsets, data, config, now, out)

    def publish_one(
        self, channel: ChannelName, event: bytes, config: PublishConfig, now: float, out: Output
    ) -> PublishReport | Publication:
        """Send one event; gives the report at once when nobody has to wait. Raises as `publish` does."""
        return self.publications.publish_one(channel, event, config, now, out)

    def send(self, node_id: int, events: Sequence[bytes], out: Output) -> None:
        """Send events to one peer, straight or by way of others, without a channel; nothing tells whether they arrive.

        Raises PeerError for a node without a session, LocalProtocolError for an event that does not fit a packet.
        """
        self.peers.require(node_id).send_events(events, out)

    def disconnect(self, node_id: int, now: float, out: Output) -> None:
        """Forget a peer; the wire has no message for it."""
        if self.peers.remove(node_id) is not None:
            verdict = PeerGone(node_id, DownReason.CLOSED)
            out.control.append(verdict)
            self._peer_down(verdict, now, out)

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _on_announcement(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        if self.directory.receive(peer, message, now, out):
            self.negotiator.announced(peer, now, out)

    def _on_announced(self, peer: Peer, heard: Announcement, now: float) -> None:
        self.mesh.announced(heard.node_id, peer, heard.hop_count, now)
        self.traversal.whereabouts.heard(peer, heard, now)
        if heard.signature is not None:
            self.mesh.boundary.heard(heard.node_id, heard.entity_id, now)

    def _serve_one(self, peer: Peer, subprotocol_id: int, message: memoryview, now: float, out: Output) -> None:
        service = self.requests if subprotocol_id == Subprotocol.REQUEST else self.history
        service.receive(peer, message, now, out)

    # ── peers coming and going ──────────────────────────────────────────────────────────────

    def _establish(self, established: list[Established], now: float, out: Output) -> None:
        for new in established:
            known = self.peers.get(new.node_id) is not None
            peer = self.peers.establish(new.node_id, new.link, now)
            traffic = self.delivery.traffic_of(peer)
            if known:
                traffic.renew(now)
            out.control.append(SessionUp(new.node_id, new.link.session_id, new.initiated))
            self.mesh.session_up(peer, now)
            self.liveness.session_up(peer, now, out)
            self.negotiator.session_up(peer, now, out)
            self.history.session_up(peer, out)
            self.announcer.peer_up(peer, now, out)
            self.membership.rejoin(peer, now, out)
            for source, packet in new.held:
                self._intake.receive_one(source, memoryview(bytearray(packet)), now, out)

    def _on_way(self, node_id: int, address: Address) -> None:
        self.handshakes.redirect(node_id, address)

    def _recovered(self, peer: Peer, now: float, out: Output) -> None:
        self.announcer.peer_up(peer, now, out)
        self.membership.rejoin(peer, now, out)
        self.following.renew(peer, now, out)
        self.replays.renew(peer, now, out)

    def _peer_down(self, verdict: PeerFailed | PeerGone, now: float, out: Output) -> None:
        node_id = verdict.node_id
        self.mesh.peer_down(verdict, now)
        self.membership.forget(node_id, str(verdict.reason), out)
        self.interests.forget(node_id)
        self.directory.forget(node_id)
        self.requests.peer_gone(node_id, out)
        self.history.peer_down(node_id, now, out)
        if isinstance(verdict, PeerGone):
            self.negotiator.forget(node_id)
            self.delivery.drop(node_id)

    def _finish(self, now: float, out: Output) -> None:
        """Do what follows from what happened in a call: agreements take effect, publishes go on."""
        self.traversal.review(now, out)
        for event in out.control:
            if isinstance(event, Negotiated) and (peer := self.peers.get(event.node_id)) is not None:
                peer.widen(self.settings.window if peer.uses(Subprotocol.RELIABLE) else STREAM_WINDOW)
                self.delivery.traffic_of(peer).agreement_changed(now, out)
                self.following.renew(peer, now, out)
                self.replays.renew(peer, now, out)
            elif isinstance(event, StreamFailed):
                self.history.stream_failed(event.node_id, event.stream_id, now, out)
        self.history.advance(now, out)
        self.publications.advance(now, out)

    def _claims_changed(self, peer: Peer, now: float, out: Output) -> None:
        self.interests.lapsed(self.admission.recheck(peer, now, out), out)
        self.interests.recheck(peer, now, out)
        self.history.recheck(now, out, peer)

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _timed(self) -> tuple[_Timed, ...]:
        return (
            self.handshakes,
            self.liveness,
            self.mesh,
            self.announcer,
            self.directory,
            self.negotiator,
            self.admission,
            self.membership,
            self.interests,
            self.requests,
            self.history,
            self.delivery,
            self.publications,
            self.traversal,
        )

    def _own_claims(self) -> PeerClaims:
        return PeerClaims(self.identity.entity_id, self.announcer.capabilities, self.settings.subnet)
