"""Rules by prefix at a gateway: what a publisher, a gateway and a reader that only share the gateway see of them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from meshbus.engine.base.notices import RequestFailed, RequestFault
from meshbus.engine.routes.boundary import NOT_ASKED
from meshbus.engine.routes.tap import InColumns, Passed
from meshbus.engine.settings import AnnounceConfig, GatewayConfig, NamedChannels
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import SubnetPolicy, SubnetRule
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.reason import DropReason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.testing.rig import unix_ns
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.engine.fleet import meet, subscribed

ROOT = Identity.from_seed(b"\x07" * 32)
WEST, EAST = SubnetId.new([3, 1]), SubnetId.new([3, 2])
POLICY = SubnetPolicy(
    rules=tuple(
        SubnetRule(match_tags=(f"site:{name}",), target_subnet=subnet)
        for name, subnet in (("west", WEST), ("east", EAST))
    )
)
SECRET, FREE, LOCAL, ELSE = (ChannelName(name) for name in ("secret/a", "free/a", "local/a", "else/a"))


class Site:
    """A publisher in the west, a reader in the east, and a gateway with rules by prefix between them."""

    def __init__(self, *, channels: NamedChannels = NamedChannels.ALL, **gateway: Any) -> None:
        self.net = FakeNet(5)
        registry = ChannelConfigRegistry()
        registry.insert_prefix("secret/", ChannelConfig(name=ChannelName("secret/x"), require_token=True))
        registry.insert_prefix("free/", ChannelConfig(name=ChannelName("free/x")))
        registry.insert_prefix("local/", ChannelConfig(name=ChannelName("local/x"), visibility=Visibility.SUBNET_LOCAL))
        self.gateway = self.net.create(
            "gateway",
            subnet=SubnetId.new([3]),
            assignment=POLICY,
            gateway=GatewayConfig(peer_subnets=(WEST, EAST), **gateway),
            trusted_issuers=(ROOT.entity_id,),
        )
        with self.gateway.turn() as (engine, now, out):
            engine.set_channel_configs(registry, now, out)
        announce = AnnounceConfig(channels=channels)
        self.publisher = self._member("west", subnet=WEST, announce=announce)
        self.reader = self._member("east", subnet=EAST, announce=announce)
        for one, other in (("west", "east"), ("east", "west")):
            self.net.set_path(one, other, FakePath(loss=1.0))
        self.net.run(for_s=12)
        with self.publisher.turn() as (engine, now, out):
            engine.connect(self.reader.node_id, None, self.reader.engine.public_key, now, out)
        self.net.run_until(lambda: self.publisher.has_session_with(self.reader))

    def _member(self, name: str, **settings: Any) -> FakeNode:
        node = self.net.create(name, announces=False, **settings)
        with node.turn() as (engine, now, out):
            engine.announce(CapabilitySet([f"site:{name}"]), now, out)
        node.connect(self.gateway)
        return node

    def publish(self, channel: ChannelName, event: bytes) -> list[bytes]:
        """Publish an event, and return what the reader received of it."""
        subscribed(self.reader, self.publisher, channel)
        self.reader.forget()
        self.publisher.publish(channel, [event])
        self.net.run(for_s=0.1)
        return self.reader.payloads()

    def announce(self, *channels: ChannelName) -> None:
        """Make the publisher open channels, and wait for its next announcement."""
        for channel in channels:
            with self.publisher.turn() as (engine, now, out):
                engine.open_channel(channel, now, out)
        self.net.run(for_s=12)

    def dropped(self, reason: DropReason) -> int:
        return self.gateway.engine.mesh.boundary.gateway.stats.drops[reason]

    def issue(self, ttl_s: int) -> None:
        """Store a token at the gateway that lets the publisher publish on the secret channel."""
        unix = unix_ns(self.net.clock.now) // 1_000_000_000
        entity = self.publisher.engine.identity.entity_id
        token = PermissionToken.issue(ROOT, entity, Scope.PUBLISH, SECRET, ttl_s=ttl_s, now=unix, entropy=bytes)
        self.gateway.engine.tokens.insert(token)
        with self.gateway.turn() as (engine, now, out):
            engine.recheck(now, out)


def test_an_unknown_name_under_a_prefix_that_asks_for_a_token_is_not_forwarded_unchecked() -> None:
    site = Site(channels=NamedChannels.NONE, forward_unknown=True)
    site.announce(SECRET)
    assert site.publish(SECRET, b"unchecked") == []
    assert (site.dropped(DropReason.UNRESOLVED_CHANNEL), site.dropped(DropReason.SUBNET_LOCAL)) == (1, 0)
    assert site.gateway.engine.counters.get("drop", "transit_unresolved_channel") == 1


@pytest.mark.parametrize("forward_unknown", [False, True])
def test_announced_names_get_the_rule_of_their_prefix(forward_unknown: bool) -> None:
    site = Site(forward_unknown=forward_unknown)
    assert site.publish(FREE, b"too early") == []
    site.announce(SECRET, FREE, LOCAL, ELSE)
    assert site.publish(FREE, b"free") == [b"free"]
    assert site.publish(SECRET, b"secret") == []
    assert site.publish(LOCAL, b"local") == []
    assert site.publish(ELSE, b"else") == ([b"else"] if forward_unknown else [])
    site.issue(ttl_s=600)
    assert site.publish(SECRET, b"secret") == [b"secret"]
    assert site.dropped(DropReason.UNRESOLVED_CHANNEL) == 1
    assert site.dropped(DropReason.UNAUTHORIZED_PUBLISHER) == 1
    assert site.dropped(DropReason.SUBNET_LOCAL) == 2 - forward_unknown


def test_the_end_of_a_token_takes_effect_between_two_forwarded_packets() -> None:
    site = Site()
    site.announce(SECRET)
    site.issue(ttl_s=8)
    ends = site.net.clock.now + 8
    assert site.publish(SECRET, b"first") == [b"first"]
    version = site.gateway.engine.mesh.boundary.gateway.version
    site.net.run(for_s=ends - site.net.clock.now - 0.5)
    assert site.publish(SECRET, b"second") == [b"second"]
    assert site.gateway.engine.mesh.boundary.gateway.version == version, "nothing but the time has changed"
    site.net.run(for_s=0.5)
    assert site.publish(SECRET, b"third") == []
    assert site.dropped(DropReason.UNAUTHORIZED_PUBLISHER) == 1


def test_recorded_verdicts_under_rules_by_prefix_are_reproduced_from_the_recorded_policy() -> None:
    site = Site()
    told: list[tuple[GatewayPolicy, Passed]] = []
    mesh = site.gateway.engine.mesh

    def note(passed: Passed) -> None:
        written = msgspec.json.encode(mesh.boundary.gateway.snapshot())
        told.append((msgspec.json.decode(written, type=GatewayPolicy), passed))

    mesh.tap.recorder = InColumns(note)
    site.publish(FREE, b"unresolved")
    site.announce(SECRET, FREE, LOCAL)
    for channel in (SECRET, FREE, LOCAL, ELSE):
        site.publish(channel, b"x")
    site.issue(ttl_s=600)
    site.publish(SECRET, b"x")
    seen = set()
    for policy, passed in told:
        if passed.routes is None or passed.sources is None or passed.dests is None:
            continue
        guard = np.full(len(passed.headers), NOT_ASKED, np.uint8) if passed.guard is None else passed.guard
        again = policy.judge_again(
            passed.headers, passed.sources, passed.dests, np.ascontiguousarray(passed.routes["ttl"]), guard
        )
        assert again.tolist() == np.broadcast_to(passed.reasons, len(again)).tolist()
        seen |= set(again.tolist())
    assert seen >= {0, *(DropReason[name] for name in ("SUBNET_LOCAL", "UNAUTHORIZED_PUBLISHER", "UNRESOLVED_CHANNEL"))}


def test_a_request_needs_the_publish_policy_too() -> None:
    net = FakeNet(6)
    server, client = net.create("server", trusted_issuers=(ROOT.entity_id,)), net.create("client")
    meet(server, client)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=SECRET, require_token=True))
    with server.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
        engine.requests.responder.serve(SECRET)

    def ask(scope: Scope) -> list[RequestFault]:
        unix = unix_ns(net.clock.now) // 1_000_000_000
        entity = client.engine.identity.entity_id
        server.engine.tokens.insert(
            PermissionToken.issue(ROOT, entity, scope, SECRET, ttl_s=600, now=unix, entropy=bytes)
        )
        before = len(client.happened(RequestFailed))
        with client.turn() as (engine, now, out):
            peer = engine.peers.require(server.node_id)
            engine.requests.requester.ask(peer, SECRET, b"?", now, out, timeout_s=1.0)
        net.run(for_s=0.5)
        return [failed.fault for failed in client.happened(RequestFailed)[before:]]

    assert ask(Scope.SUBSCRIBE) == [RequestFault.DENIED]
    assert ask(Scope.PUBLISH) == [], "together with the first token"
