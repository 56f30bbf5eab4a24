"""Requests of applications: each reaches the service that handles it, and all services that must be notified."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.base.notices import DownReason, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publish import PublishConfig, PublishReport
from meshbus.engine.facade import Facade
from meshbus.engine.services import SERVICES
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.session.service import Row, Service
from meshbus.engine.settings import GatewayConfig, PolicySettings
from meshbus.errors import PeerError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import SubnetPolicy
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.interest import Interest, decode_interest
from meshbus.wire.messages.membership import Subscribe, Unsubscribe, decode_membership
from tests.engine.wires import FarEnd

A = ChannelName("s/a")
ME = Identity.from_seed(bytes(32))
THERE = 7


class Hooks(Service):
    """Records the hooks that are called."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def peer_down(self, down: Any, now: float, out: Output) -> None:
        self.told.append(("peer_down", down, now))

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        self.told.append(("channels_configured", registry, now))

    def tokens_changed(self, now: float, out: Output) -> None:
        self.told.append(("tokens_changed", now))


class Desk:
    """An engine with a peer, and the peer's end of the session."""

    def __init__(self) -> None:
        self.hooks = Hooks()
        self.engine = rig(ME, table=(*SERVICES, Row(lambda _context: self.hooks)))
        self.far = FarEnd(self.engine.peers, THERE)
        self.far.peer.negotiated = NegotiatedSet(frozenset({Subprotocol.INTEREST}))
        self.out = Output()

    def sent(self) -> list[tuple[int, bytes]]:
        messages, self.out = self.far.read(self.out), Output()
        return messages


def test_services_have_names_and_are_those_of_the_table() -> None:
    engine = rig(ME)
    named = {value for value in vars(engine).values() if isinstance(value, Service)}
    assert named <= set(engine.services)
    assert len(named) >= 15
    assert engine.traversal.reflex in set(engine.services)
    assert engine.node_id == ME.node_id
    assert engine.public_key == engine.handshakes.public_key
    assert isinstance(engine, Facade)


def test_a_connection_begins_with_a_handshake_and_remembers_what_is_known_of_the_peer() -> None:
    desk = Desk()
    other = rig(seed=5)
    desk.engine.connect(other.node_id, "there", other.public_key, 0.0, desk.out, profile=Profile.PLAIN)
    assert desk.engine.handshakes.connecting == {other.node_id}
    assert [train.address for train in desk.out.trains] == ["there"]
    far = FarEnd(desk.engine.peers, other.node_id)
    desk.engine.negotiator.peer_up(far.peer, 0.0, desk.out)
    assert desk.engine.negotiator.is_plain(far.peer)


def test_without_an_address_the_routes_decide() -> None:
    desk = Desk()
    other = rig(seed=5)
    with pytest.raises(PeerError):
        desk.engine.connect(other.node_id, None, other.public_key, 0.0, desk.out)
    desk.engine.mesh.table.install(other.node_id, "over there", 0.0)
    desk.engine.connect(other.node_id, None, other.public_key, 0.0, desk.out)
    assert [train.address for train in desk.out.trains] == ["over there"]


def test_what_is_announced_is_what_we_are_judged_by() -> None:
    desk = Desk()
    desk.engine.announce(CapabilitySet(["p"]), 0.0, desk.out)
    own = desk.engine.admission.authorizer.own
    assert own.entity_id == ME.entity_id
    assert own.capabilities == desk.engine.announcer.capabilities
    assert {"p"} < own.capabilities.tags
    assert [subprotocol_id for subprotocol_id, _ in desk.sent()] == [Subprotocol.CAPABILITY]


def test_configurations_and_rechecks_reach_every_service() -> None:
    desk = Desk()
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=A))
    desk.engine.set_channel_configs(registry, 1.0, desk.out)
    desk.engine.recheck(2.0, desk.out)
    assert desk.hooks.told == [("channels_configured", registry, 1.0), ("tokens_changed", 2.0)]
    assert desk.engine.admission.authorizer.registry is registry


def test_a_policy_reaches_everything_at_once() -> None:
    desk = Desk()
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=A))
    rules = SubnetPolicy(default_subnet=SubnetId.new([3]))
    issuer = b"i" * 32
    policy = PolicySettings(channels=registry, assignment=rules, gateway=GatewayConfig(), trusted_issuers=(issuer,))
    desk.engine.set_policy(policy, 1.0, desk.out)
    assert desk.hooks.told == [("channels_configured", registry, 1.0), ("tokens_changed", 1.0)]
    assert desk.engine.tokens.trusted_issuers == {ME.entity_id, issuer}
    assert [desk.engine.directory.assigns] == [True]
    assert [desk.engine.mesh.boundary.config] == [GatewayConfig()]
    desk.engine.set_policy(PolicySettings(), 2.0, desk.out)
    assert desk.engine.admission.authorizer.registry is None
    assert desk.engine.tokens.trusted_issuers == {ME.entity_id}
    assert [desk.engine.directory.assigns] == [False]
    assert [desk.engine.mesh.boundary.config] == [None]
    assert desk.engine.fleet_policy is None


def test_opened_channels_are_there_until_closed_as_often() -> None:
    desk = Desk()
    for _ in range(2):
        desk.engine.open_channel(A, 0.0, desk.out)
    assert desk.engine.interests.channels.under("s/") == [A]
    desk.engine.close_channel(A, desk.out)
    assert desk.engine.interests.channels.under("s/") == [A]
    desk.engine.close_channel(A, desk.out)
    assert desk.engine.interests.channels.under("s/") == []


def test_subscriptions_go_to_the_publisher() -> None:
    desk = Desk()
    engine = desk.engine
    number = engine.subscribe(THERE, A, 0.0, desk.out, token=b"t", queue_group="g")
    other = engine.unsubscribe(THERE, A, 0.0, desk.out)
    wish = engine.interest(THERE, "s/", 0.0, desk.out)
    (_, first), (_, second), (_, third) = desk.sent()
    assert decode_membership(first) == Subscribe(nonce=number, channel=A, token=b"t", queue_group="g")
    assert decode_membership(second) == Unsubscribe(nonce=other, channel=A)
    assert decode_interest(third) == Interest(req=wish, prefix="s/")


def test_nothing_is_asked_of_a_node_without_a_session() -> None:
    desk = Desk()
    stranger = 12345
    for ask in (
        lambda: desk.engine.subscribe(stranger, A, 0.0, desk.out),
        lambda: desk.engine.unsubscribe(stranger, A, 0.0, desk.out),
        lambda: desk.engine.interest(stranger, "s/", 0.0, desk.out),
        lambda: desk.engine.send(stranger, [b"x"], 0.0, desk.out),
    ):
        with pytest.raises(PeerError):
            ask()
    assert desk.out.trains == []


def test_events_go_to_subscribers_or_to_one_peer() -> None:
    desk = Desk()
    engine = desk.engine
    assert engine.publish(A, *columns_of([b"x"]), PublishConfig(), 0.0, desk.out).report().is_empty
    assert engine.admission.subscribe(desk.far.peer, A, 0.0, desk.out) is None
    assert engine.publish(A, *columns_of([b"x", b"y"]), PublishConfig(), 0.0, desk.out).report() == PublishReport(1, 1)
    assert engine.publish_one(A, b"z", PublishConfig(), 0.0, desk.out) == PublishReport(1, 1)
    engine.send(THERE, [b"straight"], 0.0, desk.out)
    assert [event for _, event in desk.sent()] == [b"x", b"y", b"z", b"straight"]


def test_every_service_is_notified_once_of_a_removed_peer() -> None:
    desk = Desk()
    gone = PeerGone(THERE, DownReason.CLOSED)
    for _ in range(2):
        desk.engine.disconnect(THERE, 3.0, desk.out)
    assert desk.out.control == [gone]
    assert desk.hooks.told == [("peer_down", gone, 3.0)]
    assert desk.engine.peers.get(THERE) is None
