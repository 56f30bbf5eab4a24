"""One node and peers at the ends of real links, for tests of subscribing and publishing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from meshbus.engine.base.notices import DownReason, PeerFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.admission import Admission, Lapse
from meshbus.engine.services import SERVICES
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer, PeerClaims
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.limits import FailureThrottle
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.rig import replaced, rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.header import Header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.membership import Ack, MembershipMessage, decode_membership, encode_membership
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain
from meshbus.wire.seal import Opener

UNIX = 1_000_000
"""Unix seconds at which the monotonic clock is 0."""

NODE, ROOT, STRANGER = (Identity.from_seed(bytes([n]) * 32) for n in (101, 102, 103))
"""This node, an issuer it trusts, and one it does not."""


def wall(now: float) -> int:
    return int((UNIX + now) * 1_000_000_000)


def entity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def configs(*entries: ChannelConfig) -> ChannelConfigRegistry:
    registry = ChannelConfigRegistry()
    for entry in entries:
        registry.insert(entry)
    return registry


def channel_config(name: str, **options: Any) -> ChannelConfig:
    return ChannelConfig(name=ChannelName(name), **options)


def token(
    subject: Identity,
    channel: str | None,
    scope: int = Scope.SUBSCRIBE,
    *,
    issuer: Identity = ROOT,
    now: float = 0.0,
    ttl_s: int = 1000,
    **options: Any,
) -> bytes:
    """Issue a token, valid from `now` on the stage's clock."""
    issued = PermissionToken.issue(
        issuer, subject.entity_id, scope, channel, ttl_s=ttl_s, now=UNIX + now, entropy=bytes, **options
    )
    return encode_chain([issued])


class Stage:
    """One node without a network; options are the fields of EngineSettings."""

    def __init__(
        self,
        registry: ChannelConfigRegistry | None = None,
        *,
        subnet: SubnetId = SubnetId.GLOBAL,
        tags: Iterable[str] = (),
        throttle: FailureThrottle[int] | None = None,
        **settings: Any,
    ) -> None:
        self._random = 0
        engine = rig(
            NODE,
            wall=wall,
            entropy=self.entropy,
            table=replaced(SERVICES, Admission, partial(Admission, throttle=throttle)),
            trusted_issuers=(ROOT.entity_id,),
            subnet=subnet,
            **settings,
        )
        self.engine = engine
        self.counters, self.peers, self.tokens, self.joined = (
            engine.counters,
            engine.peers,
            engine.tokens,
            engine.joined,
        )
        self.services = engine.services
        self.admission, self.membership = engine.admission, engine.membership
        self.following, self.interests = engine.following, engine.interests
        self.channels = engine.interests.channels
        self.roster, self.authorizer = engine.admission.roster, engine.admission.authorizer
        self.authorizer.registry = registry
        self.authorizer.own = PeerClaims(NODE.entity_id, CapabilitySet(tags), subnet)
        self._lapses: list[Lapse] = []
        self._on_lapse = engine.admission.on_lapse
        engine.admission.on_lapse = self._lapsed
        self._openers: dict[int, Opener] = {}

    def _lapsed(self, lapses: list[Lapse], out: Output) -> None:
        self._lapses += lapses
        self._on_lapse(lapses, out)

    def lapses(self) -> list[Lapse]:
        """Return the subscriptions that re-checks ended since the last call."""
        taken, self._lapses = self._lapses, []
        return taken

    def fail(self, peer: Peer, out: Output, now: float = 0.0) -> None:
        """Notify every service that a peer failed."""
        self.services.peer_down(PeerFailed(peer.node_id, DownReason.SILENT), now, out)

    def entropy(self, size: int) -> bytes:
        self._random += 1
        return self._random.to_bytes(size, "little")

    def peer(self, number: int, *, announced: bool = True, profile: Iterable[int] = ()) -> Peer:
        """Establish a session with a peer whose entity is `entity(number)`."""
        secret = number.to_bytes(32, "little")
        link = Link(derive_keys(secret, Role.RESPONDER), Role.RESPONDER, number, now=0.0)
        peer = self.peers.establish(entity(number).node_id, link, now=0.0)
        peer.negotiated = NegotiatedSet(frozenset(profile))
        self._openers[number] = Opener(derive_keys(secret, Role.INITIATOR))
        if announced:
            self.announce(peer, number)
        return peer

    def announce(self, peer: Peer, number: int, tags: Iterable[str] = (), subnet: SubnetId = SubnetId.GLOBAL) -> None:
        """Set what a peer's signed announcement claims."""
        peer.claims = PeerClaims(entity(number).entity_id, CapabilitySet(tags), subnet)

    def sent(self, out: Output) -> list[tuple[int, Header, list[bytes]]]:
        """Open everything that was sent, as the peers do: the number of the peer, the header, the events."""
        packets = []
        for train in out.trains:
            assert isinstance(train.address, int)
            for datagram in train.datagrams():
                header, payload = self._openers[train.address].open(datagram)
                packets.append((train.address, header, [bytes(e) for e in unpack_frames(payload, header.event_count)]))
        out.trains.clear()
        return packets

    def messages(self, out: Output, subprotocol_id: int = Subprotocol.MEMBERSHIP) -> list[tuple[int, bytes]]:
        """Return the messages of one subprotocol that were sent, each with the number of the receiving peer."""
        found = []
        for number, header, events in self.sent(out):
            assert (header.subprotocol_id, header.stream_id) == (subprotocol_id, subprotocol_id)
            assert (header.flags, header.event_count, len(events)) == (0, 1, 1)
            found.append((number, events[0]))
        return found

    def tell(self, peer: Peer, message: MembershipMessage, now: float = 0.0) -> Ack:
        """Receive a membership message from a peer, and return the answer."""
        out = Output()
        self.membership.receive(peer, encode_membership(message), now, out)
        ((_, answer),) = self.messages(out)
        ack = decode_membership(answer)
        assert isinstance(ack, Ack)
        assert ack.nonce == message.nonce
        return ack
